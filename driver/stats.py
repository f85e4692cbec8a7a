"""From raw windows to a ratio with an interval.

The block is the sampling unit, since windows of one slot are correlated. A block's value is

    d = mean log t over its two A slots − mean log t over its two B slots,    t = median window / k.

Blocks come in two orders (A B B A, B A A B). With n blocks, half of each order, the estimate is the
mean of the two order means, and its variance is s²/n with the pooled within-order variance s² on
n − 2 degrees of freedom: the comparison of a two-period crossover design (Jones and Kenward 2014,
ch. 2), with Student's t interval on the log scale. Fewer than 4 or an odd number of blocks gives a
ratio without an interval.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from scipy import stats as scipy_stats

from driver.parity import LEAST_BLOCKS, curve_error, paired_drift, slots_repeat
from driver.records import (
    ArmPlan,
    ArmSummary,
    BlockValue,
    Comparison,
    Estimate,
    Plan,
    ReferenceFacts,
    Side,
    Slot,
    Word,
)
from driver.tensors import model_flops

CONFIDENCE = 0.95


def compare(plan: Plan, reference: ReferenceFacts, slots: Sequence[Slot]) -> Comparison:
    """Everything that is derived from the raw slots."""
    blocks = tuple(
        block_value(index, "".join(order), [slot for slot in slots if slot.block == index])
        for index, order in enumerate(plan.order)
    )
    first, second = (summary(plan, arm, slots) for arm in plan.arms)
    sides: tuple[Side, Side] = ("A", "B")
    return Comparison(
        arms=(first, second),
        blocks=blocks,
        estimate=estimate(blocks, plan.margin, median_ratio(first, second)),
        curve_errors={side: curve_error(reference, slots, side) for side in sides},
        drift=paired_drift(slots),
        slots_repeat={side: slots_repeat(slots, side) for side in sides},
    )


def step_ms(slot: Slot) -> float | None:
    """A slot's median window over its steps, in ms; None without a usable window."""
    usable = [ms for ms in slot.windows_ms if math.isfinite(ms) and ms > 0]
    if not usable or len(usable) != len(slot.windows_ms):
        return None
    return median(usable) / slot.steps_per_window


def block_value(block: int, order: str, slots: Sequence[Slot]) -> BlockValue:
    """The log ratio of one block; without a value, and with the reason, when a slot is missing."""
    logs: dict[Side, list[float]] = {"A": [], "B": []}
    for slot in slots:
        t = step_ms(slot)
        if slot.status == "ok" and t is not None:
            logs[slot.side].append(math.log(t))
    if len(logs["A"]) != 2 or len(logs["B"]) != 2:
        done = len(logs["A"]) + len(logs["B"])
        reason = f"{done} of 4 slots have usable windows"
        return BlockValue(block=block, order=order, log_ratio=None, reason=reason)
    return BlockValue(block=block, order=order, log_ratio=fmean(logs["A"]) - fmean(logs["B"]))


def estimate(blocks: Sequence[BlockValue], margin: float, plain_ratio: float | None) -> Estimate:
    """Time of A over time of B from the blocks' values."""
    by_order: dict[str, list[float]] = {}
    for block in blocks:
        if block.log_ratio is not None:
            by_order.setdefault(block.order, []).append(block.log_ratio)
    n = sum(map(len, by_order.values()))

    def result(
        log_ratio: float | None, half: float | None, df: int | None, word: Word, reason: str | None
    ) -> Estimate:
        ends = (
            (None, None)
            if log_ratio is None or half is None
            else (log_ratio - half, log_ratio + half)
        )
        low, high = (None if end is None else math.exp(end) for end in ends)
        return Estimate(
            ratio=None if log_ratio is None else math.exp(log_ratio), low=low, high=high,
            confidence=CONFIDENCE, blocks=n, degrees_of_freedom=df, word=word, reason=reason,
            median_ratio=plain_ratio,
        )  # fmt: skip

    if n == 0:
        return result(None, None, None, "unsure", "no block finished")
    centre = fmean([fmean(values) for values in by_order.values()])
    sizes = sorted(map(len, by_order.values()))
    if n < LEAST_BLOCKS or n % 2 or sizes != [n // 2, n // 2]:
        reason = (
            f"{n} finished block{'s' if n > 1 else ''}: an interval needs an even number of at "
            f"least {LEAST_BLOCKS}, half of each order"
        )
        return result(centre, None, None, "unsure", reason)
    df = n - 2
    squares = sum(float(np.sum((np.array(v) - fmean(v)) ** 2)) for v in by_order.values())
    half = float(scipy_stats.t.ppf((1 + CONFIDENCE) / 2, df)) * math.sqrt(squares / df / n)
    return result(centre, half, df, word_for(centre - half, centre + half, margin), None)


def word_for(log_low: float, log_high: float, margin: float) -> Word:
    """B is faster, slower, equivalent (within the margin) or unsure, from A's time over B's."""
    inside = math.log1p(margin)
    if -inside <= log_low and log_high <= inside:
        return "equivalent"
    if log_low > 0:
        return "faster"
    if log_high < 0:
        return "slower"
    return "unsure"


def summary(plan: Plan, arm: ArmPlan, slots: Sequence[Slot]) -> ArmSummary:
    """One side's ms/step over all windows of its slots, and its first and last loss."""
    mine = [slot for slot in slots if slot.side == arm.side]
    samples = [
        ms / slot.steps_per_window for slot in mine for ms in slot.windows_ms if math.isfinite(ms)
    ]
    quartiles = [float(q) for q in np.quantile(samples, [0.25, 0.5, 0.75])] if samples else None
    middle = quartiles[1] if quartiles else None
    curve = next((slot.losses for slot in mine if slot.losses), [])
    return ArmSummary(
        side=arm.side,
        arm=arm.canonical,
        slots=len(mine),
        windows=len(samples),
        median_step_ms=middle,
        quartile1_step_ms=quartiles[0] if quartiles else None,
        quartile3_step_ms=quartiles[2] if quartiles else None,
        gflops=model_flops(plan.config) / middle / 1e6 if middle and arm.name != "null" else None,
        first_loss=curve[0] if curve else None,
        last_loss=curve[-1] if curve else None,
    )


def median_ratio(first: ArmSummary, second: ArmSummary) -> float | None:
    """Median step of A over median step of B; for comparison with older receipts only."""
    if not first.median_step_ms or not second.median_step_ms:
        return None
    return first.median_step_ms / second.median_step_ms

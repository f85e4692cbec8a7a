"""From raw windows to a ratio with an interval.

The block is the sampling unit, since windows of one slot are correlated. A block's value is

    d = mean log t over its two A slots − mean log t over its two B slots,    t = median window / k.

Blocks come in two orders (A B B A, B A A B). With n blocks, half of each order, the estimate is the
mean of the two order means, and its variance is s²/n with the pooled within-order variance s² on
n − 2 degrees of freedom: the comparison of a two-period crossover design (Jones and Kenward 2014,
ch. 2), with Student's t interval on the log scale. Fewer than 4 or an odd number of blocks gives a
ratio without an interval. With `--blocks auto` variance and degrees of freedom are the pilot's.

All blocks enter that estimate. Those that the plan's rule marks suspect are left out of a second
one beside it, whose orders may then be of unequal size: variance s²·(1/n₁ + 1/n₂)/4.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import numpy as np

from driver import power
from driver.parity import (
    LEAST_BLOCKS,
    SIDES,
    curve_error,
    paired_drift,
    slots_by_block,
    slots_repeat,
    within_band,
)
from driver.records import (
    ArmPlan,
    ArmSummary,
    AutoOutcome,
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
from driver.wording import counted

CONFIDENCE = power.CONFIDENCE


def compare(plan: Plan, reference: ReferenceFacts, slots: Sequence[Slot]) -> Comparison:
    """Everything that is derived from the raw slots."""
    values = block_values(plan, slots)
    auto = stein(plan, values)
    blocks = values[: auto.blocks] if auto else values
    first, second = (summary(plan, arm, slots) for arm in plan.arms)
    return Comparison(
        arms=(first, second),
        blocks=blocks,
        estimate=estimate(
            blocks, plan.margin, median_ratio(first, second), plan.auto.pilot if plan.auto else None
        ),
        sensitivity=sensitivity(blocks, plan.margin),
        auto=auto,
        curve_errors={side: curve_error(reference, slots, side) for side in SIDES},
        band_errors={side: curve_error(within_band(reference), slots, side) for side in SIDES}
        if reference.band
        else None,
        drift=paired_drift(slots),
        slots_repeat={side: slots_repeat(slots, side) for side in SIDES},
    )


def block_values(plan: Plan, slots: Sequence[Slot]) -> tuple[BlockValue, ...]:
    """Every block of the plan's order, also those that did not run."""
    marks, by_block = suspects(plan, slots), slots_by_block(slots)
    return tuple(
        block_value(index, "".join(order), by_block.get(index, [])).model_copy(
            update={"suspect": marks.get(index, ())}
        )
        for index, order in enumerate(plan.order)
    )


def planned_blocks(plan: Plan, slots: Sequence[Slot]) -> int:
    """Blocks that are to run; with `auto` the pilot's until it is done, then what it asks for."""
    auto = stein(plan, block_values(plan, slots))
    return auto.blocks if auto else len(plan.order)


def stein(plan: Plan, values: Sequence[BlockValue]) -> AutoOutcome | None:
    """The number of blocks from the pilot's variance alone; None where the number was fixed."""
    rule = plan.auto
    if rule is None:
        return None
    most = min(rule.most, len(plan.order))
    by_order = by_order_of(values[: rule.pilot])
    if sorted(map(len, by_order.values())) != [rule.pilot // 2] * 2:
        done = sum(map(len, by_order.values()))
        reason = f"{done} of {rule.pilot} pilot blocks finished"
        return AutoOutcome(pilot_sd=None, blocks=min(rule.pilot, most), reason=reason)
    sd, df = within_orders(by_order)
    difference = math.log1p(rule.difference)
    blocks = power.stein_blocks(sd, df, difference, rule.pilot, most)
    found = math.expm1(power.stein_detectable(sd, blocks, df, rule.power))
    reason = (
        f"deviation {sd:.2%} of the pilot's {rule.pilot} blocks: {blocks} blocks find a difference "
        f"of {found:.2%} with power {rule.power:.0%}"
    )
    if found > rule.difference * (1 + 1e-9):
        reason += f", not the {rule.difference:.0%} asked for, within the budget"
    return AutoOutcome(pilot_sd=sd, blocks=blocks, reason=reason)


def suspects(plan: Plan, slots: Sequence[Slot]) -> dict[int, tuple[str, ...]]:
    """Blocks that the plan's rule marks, with the reasons; none without a rule."""
    if plan.suspects is None:
        return {}
    sentinels = {slot.index: s for slot in slots if (s := sentinel_ms(slot)) is not None}
    usual = median(sentinels.values()) if sentinels else None
    factor = plan.suspects.sentinel_factor
    found: dict[int, tuple[str, ...]] = {}
    for slot in slots:
        reasons = [f"slot {slot.index}: {event.kind}" for event in slot.events if _odd(event.kind)]
        own = sentinels.get(slot.index)
        if own is not None and usual is not None and not usual / factor <= own <= usual * factor:
            reasons.append(
                f"slot {slot.index}: the machine's sentinel took {own / usual:.2f} times the usual"
            )
        most, others = plan.suspects.others_cpu, slot.others_cpu
        if most is not None and others is not None and not others <= most:
            reasons.append(f"slot {slot.index}: others used {others:.0%} of the machine's CPU time")
        if reasons:
            found[slot.block] = (*found.get(slot.block, ()), *reasons)
    return found


def _odd(kind: str) -> bool:
    """An event that can touch a time. A warning in the console does not."""
    return kind != "console-warning"


def sentinel_ms(slot: Slot) -> float | None:
    """Median of the fixed work timed before the slot; None without a usable time."""
    usable = [ms for ms in slot.sentinel_ms if math.isfinite(ms) and ms > 0]
    return median(usable) if usable else None


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


def estimate(
    blocks: Sequence[BlockValue], margin: float, plain_ratio: float | None, pilot: int | None = None
) -> Estimate:
    """Time of A over time of B from the blocks' values; with `pilot` after Stein's two stages.

    Such an interval is of the first `pilot` blocks' variance and degrees of freedom, unless the
    later blocks vary more than chance allows: then of all blocks, where that is wider.
    """
    by_order = by_order_of(blocks)
    n = sum(map(len, by_order.values()))
    sizes = sorted(map(len, by_order.values()))
    if n < LEAST_BLOCKS or n % 2 or sizes != [n // 2, n // 2]:
        reason = (
            f"{n} finished block{'s' if n > 1 else ''}: an interval needs an even number of at "
            f"least {LEAST_BLOCKS}, half of each order"
        )
        return _without_interval(by_order, plain_ratio, reason)
    sd, df = within_orders(by_order)
    found = [power.detectable(sd, n, df, p) for p in power.POWERS]
    whole = _with_interval(by_order, margin, plain_ratio, sd, df, found)
    first = by_order_of(blocks[:pilot]) if pilot else {}
    if not pilot or pilot == n or sum(map(len, first.values())) != pilot:
        return whole
    sd, df = within_orders(first)
    found = [power.stein_detectable(sd, n, df, p) for p in power.POWERS]
    staged = _with_interval(by_order, margin, plain_ratio, sd, df, found)
    # A pilot that met none of the rare disturbances would promise too much.
    wilder = n - pilot > 2 and power.varies_more(
        *within_orders(by_order_of(blocks[pilot:])), sd, df
    )
    if wilder and (whole.high or 0) > (staged.high or 0):
        reason = (
            "later blocks vary more than the pilot's, so the interval is of all blocks' variance"
        )
        return whole.model_copy(update={"reason": reason})
    return staged


def sensitivity(blocks: Sequence[BlockValue], margin: float) -> Estimate | None:
    """The estimate without suspect blocks; None where none is suspect."""
    calm = [block for block in blocks if not block.suspect]
    if len(calm) == len(blocks):
        return None
    by_order = by_order_of(calm)
    n = sum(map(len, by_order.values()))
    if n < LEAST_BLOCKS or len(by_order) < 2:
        left = counted(n, "finished block") if n else "no finished block"
        reason = (
            f"{left} {'are' if n > 1 else 'is'} left without the suspect ones: an interval needs "
            f"at least {LEAST_BLOCKS} of both orders"
        )
        return _without_interval(by_order, None, reason).model_copy(update={"reason": reason})
    sd, df = within_orders(by_order)
    return _with_interval(by_order, margin, None, sd, df, None)


ByOrder = Mapping[str, Sequence[float]]


def by_order_of(blocks: Sequence[BlockValue]) -> dict[str, list[float]]:
    """The log ratios of finished blocks, by order."""
    found: dict[str, list[float]] = {}
    for block in blocks:
        if block.log_ratio is not None:
            found.setdefault(block.order, []).append(block.log_ratio)
    return found


def within_orders(by_order: ByOrder) -> tuple[float, int]:
    """Pooled standard deviation within the orders, and its degrees of freedom."""
    df = sum(map(len, by_order.values())) - len(by_order)
    squares = sum(float(np.sum((np.array(v) - fmean(v)) ** 2)) for v in by_order.values())
    return math.sqrt(squares / df), df


def _without_interval(by_order: ByOrder, plain_ratio: float | None, reason: str) -> Estimate:
    n = sum(map(len, by_order.values()))
    centre = fmean([fmean(values) for values in by_order.values()]) if n else None
    return Estimate(
        ratio=None if centre is None else math.exp(centre), low=None, high=None,
        confidence=CONFIDENCE, blocks=n, degrees_of_freedom=None, word="unsure",
        reason=reason if n else "no block finished", median_ratio=plain_ratio,
    )  # fmt: skip


def _with_interval(
    by_order: ByOrder,
    margin: float,
    plain_ratio: float | None,
    sd: float,
    df: int,
    detectable: Sequence[float] | None,
) -> Estimate:
    centre = fmean([fmean(values) for values in by_order.values()])
    error = sd / 2 * math.sqrt(sum(1 / len(values) for values in by_order.values()))
    half = power.t_quantile(df) * error
    found = [math.expm1(d) for d in detectable] if detectable else (None, None)
    return Estimate(
        ratio=math.exp(centre), low=math.exp(centre - half), high=math.exp(centre + half),
        confidence=CONFIDENCE, blocks=sum(map(len, by_order.values())), degrees_of_freedom=df,
        word=word_for(centre - half, centre + half, margin), reason=None,
        median_ratio=plain_ratio, detectable_80=found[0], detectable_95=found[1],
    )  # fmt: skip


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

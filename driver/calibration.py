"""A/A runs → how noisy an arm is on a machine, and what a run there can find.

Both sides of an A/A run are the same, so whatever it measures is noise. *Within* a run noise is the
spread of its blocks; it shrinks with their number. *Between* runs (another process, memory laid out
otherwise, another day) a run's whole result moves, which no number of blocks shows: its spread over
runs is what two receipts have to be compared with. That spread contains the within-run part too, so
whoever adds both counts that part twice, and errs towards "unsure".

The minimum effect of n blocks at standard deviation s is (t(0.975) + t(0.8)) · s/√n on n − 2
degrees of freedom, on the log scale: a difference of that size is found by 80% of runs.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import scipy

from driver import power
from driver.records import Calibration, CalibrationKey, CalibrationRun, Environment, Plan, Receipt
from driver.stats import by_order_of, step_ms, within_orders

LEAST_RUNS = 3  # from which a spread between runs is told
MOST_RUNS = 200  # kept; the oldest go first
_MOST_BLOCKS = 1000
_SHOWN_BLOCKS = (4, 6, 8, 12, 20)
_POWER = 0.8


def calibration_key(plan: Plan, environment: Environment, which: int) -> CalibrationKey:
    """The key of arm `which` (0 for A, 1 for B) in this plan and environment."""
    arm, machine, browser = plan.arms[which], environment.machine, environment.browser
    kept = {k: v for k, v in arm.options.items() if not k.startswith("tile_")}
    adapter = environment.adapter if arm.name == "webgpu" else None
    gpu = f"{adapter.get('vendor')} {adapter.get('architecture')}" if adapter else ""
    cores = machine.get("cores_usable")
    return CalibrationKey(
        cpu=str(machine.get("cpu")),
        architecture=str(machine.get("architecture")),
        cores_usable=cores if isinstance(cores, int) else 0,
        system=str(machine.get("system")),
        browser=str(browser.get("name")),
        browser_major=str(browser.get("version")).partition(".")[0],
        adapter=gpu,
        preset=str(plan.preset.get("name")),
        config=plan.config,
        arm=f"{arm.name}:" + "+".join(f"{key}={kept[key]}" for key in sorted(kept)),
    )


def calibration_run(receipt: Receipt) -> CalibrationRun | None:
    """What one A/A receipt says; None where it has no estimate with a spread."""
    estimate = receipt.comparison.estimate
    logs = [math.log(t) for t in map(step_ms, receipt.slots) if t is not None]
    spread = _within_sd(receipt)
    if estimate.ratio is None or not logs or spread is None:
        return None
    return CalibrationRun(
        utc=receipt.plan.frozen_utc,
        receipt_digest=receipt.digest,
        blocks=estimate.blocks,
        word=estimate.word,
        log_step_ms=fmean(logs),
        log_ratio=math.log(estimate.ratio),
        within_sd=spread,
    )


def _within_sd(receipt: Receipt) -> float | None:
    """Standard deviation of the blocks' log ratios, pooled within the two orders."""
    by_order = by_order_of(receipt.comparison.blocks)
    if all(len(values) < 2 for values in by_order.values()):
        return None
    return within_orders(by_order)[0]


def calibration_of(
    key: CalibrationKey, margin: float, runs: Sequence[CalibrationRun]
) -> Calibration:
    """Everything that these runs tell."""
    kept = tuple(sorted(runs, key=lambda run: run.utc)[-MOST_RUNS:])
    judged = [run for run in kept if run.word != "unsure" or run.blocks >= 4]
    wrong = sum(run.word in ("faster", "slower") for run in judged)
    low, high = _binomial_interval(wrong, len(judged)) if judged else (None, None)
    enough = len(kept) >= LEAST_RUNS
    within = math.sqrt(fmean([run.within_sd**2 for run in kept])) if kept else None
    return Calibration(
        key=key,
        margin=margin,
        runs=kept,
        false_positives=wrong,
        false_positive_rate=wrong / len(judged) if judged else None,
        false_positive_low=low,
        false_positive_high=high,
        within_sd=within,
        between_step_sd=stdev([run.log_step_ms for run in kept]) if enough else None,
        between_ratio_sd=stdev([run.log_ratio for run in kept]) if enough else None,
        minimum_effects={}
        if within is None
        else {str(n): minimum_effect(within, n) for n in _SHOWN_BLOCKS},
        recommended_blocks=None if within is None else recommended_blocks(within, margin),
    )


def minimum_effect(sd: float, blocks: int) -> float:
    """Relative effect that 80% of runs of so many (≥ 4) blocks find, at that spread of blocks."""
    return math.expm1(min(power.stein_detectable(sd, blocks, blocks - 2, _POWER), 700.0))


def recommended_blocks(sd: float, margin: float) -> int | None:
    """The fewest blocks, even and at least 4, whose minimum effect is within the margin."""
    even = range(4, _MOST_BLOCKS + 1, 2)
    return next((blocks for blocks in even if minimum_effect(sd, blocks) <= margin), None)


def _binomial_interval(hits: int, trials: int) -> tuple[float, float]:
    """95% interval of Clopper and Pearson (1934) on a rate."""
    low = float(scipy.stats.beta.ppf(0.025, hits, trials - hits + 1)) if hits else 0.0
    high = float(scipy.stats.beta.ppf(0.975, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high

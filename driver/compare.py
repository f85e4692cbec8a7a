"""Two receipts → what changed from BASE to NEW, and whether that is proved.

A quantity's change is the difference of its means over blocks, on the log scale. Its variance has
three parts: that of the blocks of either receipt (s²/n), and twice the variance *between runs*,
which blocks do not show and a calibration or the history does. The interval is Student's with the
degrees of freedom of Welch and Satterthwaite. Without a calibration there is only the part that
blocks show, and the answer is `unsure` whatever it looks like.

An arm's times in different runs have the between-run spread of that arm. The ratio of two arms that
are the same has that of A/A ratios; for two different arms both arms' spreads are added.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean, variance
from typing import Literal

from driver.errors import UsageError
from driver.parity import ADAPTER_IDENTITY, SIDES
from driver.power import t_quantile
from driver.records import (
    BY_HAND,
    ArmPlan,
    Calibration,
    Change,
    ChangeWord,
    CompareReport,
    Receipt,
    Side,
)
from driver.stats import CONFIDENCE, step_ms

_SAME_MACHINE = ("cpu", "architecture", "cores_usable", "system")
NO_CALIBRATION = (
    "between-run noise is not known: `driver calibrate` measures it on this machine, and later "
    "receipts quote it; three runs of the arm in `driver history` tell it too. The interval is "
    "from blocks alone and would be too narrow"
)


@dataclass(frozen=True)
class Part:
    """One variance of a sum, with its degrees of freedom."""

    variance: float
    df: float


@dataclass(frozen=True)
class RunTime:
    """When a run was."""

    utc: str


@dataclass(frozen=True)
class Spread:
    """What earlier receipts of an arm say of noise between runs, as a calibration does."""

    between_step_sd: float | None
    between_ratio_sd: float | None  # of the ratio of the two arms compared, not of A/A runs
    ratio_runs: int
    runs: tuple[RunTime, ...]


Noise = Calibration | Spread


@dataclass(frozen=True)
class Level:
    """A quantity in one receipt: mean of its logarithm, and the variance of that mean."""

    log: float
    part: Part | None


def compare_receipts(
    base: Receipt, new: Receipt, margin: float, calibrations: Sequence[Noise | None]
) -> CompareReport:
    """Every arm's change and the ratio's. `calibrations` are of A and of B, where known.

    Raises UsageError, with all reasons, for receipts that cannot be compared.
    """
    reasons = [*incomparable(base, new)]
    if reasons:
        raise UsageError("the receipts cannot be compared: " + "; ".join(reasons))
    changes = tuple(changes_of(base, new, margin, calibrations))
    return CompareReport(
        base_digest=base.digest,
        new_digest=new.digest,
        margin=margin,
        confidence=CONFIDENCE,
        changes=changes,
        remarks=tuple(_remarks(base, new, calibrations)),
    )


# --------------------------------------------------------------------------- comparable?


def larger(*calibrations: Noise | None) -> Noise | None:
    """The one that knows of most noise; None where none knows of any."""
    known = [c for c in calibrations if c is not None and c.between_step_sd is not None]
    return max(known, key=lambda c: c.between_step_sd or 0.0, default=None)


def incomparable(base: Receipt, new: Receipt) -> Iterator[str]:
    """Why times of the two say nothing about each other."""
    for which, receipt in (("BASE", base), ("NEW", new)):
        if receipt.verdict.status == "failed":
            yield f"{which}'s verdict is failed ({'; '.join(receipt.verdict.reasons)[:200]})"
    yield from other_work(base, new)
    yield from other_place(base, new)


def other_work(base: Receipt, new: Receipt) -> Iterator[str]:
    """Another workload: preset, recipe, corpus or arms."""
    one, two = base.plan, new.plan
    if one.config != two.config:
        shapes = (plan.config.model_dump() for plan in (one, two))
        first, second = shapes
        keys = [key for key in first if first[key] != second[key]]
        yield f"another config ({', '.join(f'{k} {first[k]!r} and {second[k]!r}' for k in keys)})"
    if one.preset.get("name") != two.preset.get("name"):
        yield f"presets {one.preset.get('name')!r:.60} and {two.preset.get('name')!r:.60}"
    if one.corpus.sha256 != two.corpus.sha256:
        yield f"corpora {one.corpus.sha256[:12]!r} and {two.corpus.sha256[:12]!r}"
    for first_arm, second_arm in zip(one.arms, two.arms, strict=True):
        if _without_tiles(first_arm) != _without_tiles(second_arm):
            yield (
                f"arm {first_arm.side} is {first_arm.canonical!r:.150} and "
                f"{second_arm.canonical!r:.150}"
            )


def other_place(base: Receipt, new: Receipt) -> Iterator[str]:
    """Another machine, browser or adapter."""
    one, two = base.environment, new.environment
    for key in _SAME_MACHINE:
        if one.machine.get(key) != two.machine.get(key):
            yield f"machines: {key} {one.machine.get(key)!r:.80} and {two.machine.get(key)!r:.80}"
    if browser_major(base) != browser_major(new):
        yield f"browsers {browser_major(base)!r:.60} and {browser_major(new)!r:.60}"
    if _by_hand(base) != _by_hand(new):
        yield (
            "browsers: one was opened by hand, where all slots share a tab, the other started "
            "afresh for every block"
        )
    if any(arm.name == "webgpu" for arm in base.plan.arms):
        for key in ADAPTER_IDENTITY:
            first, second = ((found or {}).get(key) for found in (one.adapter, two.adapter))
            if first != second:
                yield f"adapters: {key} {first!r:.80} and {second!r:.80}"


def _by_hand(receipt: Receipt) -> bool:
    """Measured in a person's own browser (`driver serve`)."""
    return receipt.environment.browser.get("source") == BY_HAND


def browser_major(receipt: Receipt) -> str:
    """`chromium 156`."""
    browser = receipt.environment.browser
    return f"{browser.get('name')} {str(browser.get('version')).partition('.')[0]}"


def _without_tiles(arm: ArmPlan) -> tuple[object, ...]:
    """Tiles are tuned anew by every run: part of what is measured, not of what was asked for."""
    kept = {key: value for key, value in arm.options.items() if not key.startswith("tile_")}
    return arm.name, sorted(kept.items())


# --------------------------------------------------------------------------- changes


def changes_of(
    base: Receipt, new: Receipt, margin: float, calibrations: Sequence[Noise | None]
) -> Iterator[Change]:
    """A, B, and B against A."""
    arms = []
    for side, calibration in zip(SIDES, calibrations, strict=True):
        spread = _between(calibration.between_step_sd if calibration else None, calibration)
        arms.append(
            change_between(side, arm_level(base, side), arm_level(new, side), spread, margin)
        )
    yield from arms
    levels = ratio_level(base), ratio_level(new)
    ratio = change_between("B against A", *levels, _ratio_between(base, calibrations), margin)
    gained = arms[0].change is not None and arms[0].change < 1 - margin
    if ratio.word == "regression" and gained:
        words = "A became faster, so that B may have lost nothing"
        ratio = ratio.model_copy(update={"word": "unsure", "reason": words})
    yield ratio


def _between(sd: float | None, calibration: Noise | None) -> Part | None:
    if sd is None or calibration is None:
        return None
    return Part(sd * sd, len(calibration.runs) - 1)


def _ratio_between(base: Receipt, calibrations: Sequence[Noise | None]) -> Part | None:
    """Between-run variance of the log ratio."""
    a, b = calibrations
    if isinstance(a, Spread) and a.between_ratio_sd is not None:
        return Part(a.between_ratio_sd**2, a.ratio_runs - 1)
    same = _without_tiles(base.plan.arms[0]) == _without_tiles(base.plan.arms[1])
    if same and not isinstance(a, Spread):
        return _between(a.between_ratio_sd if a else None, a)
    first = _between(a.between_step_sd if a else None, a)
    second = _between(b.between_step_sd if b else None, b)
    if first is None or second is None:
        return None
    return _sum([first, second])


def arm_level(receipt: Receipt, side: Side) -> Level | None:
    """Mean log ms per step of one side over its blocks."""
    blocks: dict[int, list[float]] = {}
    for slot in receipt.slots:
        t = step_ms(slot)
        if slot.side == side and slot.status == "ok" and t is not None:
            blocks.setdefault(slot.block, []).append(math.log(t))
    values = [fmean(logs) for logs in blocks.values() if len(logs) == 2]
    if not values:
        return None
    n = len(values)
    return Level(fmean(values), Part(variance(values) / n, n - 1) if n > 1 else None)


def ratio_level(receipt: Receipt) -> Level | None:
    """Log of time of B over time of A, from the receipt's own estimate."""
    estimate = receipt.comparison.estimate
    if estimate.ratio is None:
        return None
    part, df = None, estimate.degrees_of_freedom
    if estimate.low and estimate.high and df:
        half = (math.log(estimate.high) - math.log(estimate.low)) / 2
        part = Part((half / t_quantile(df)) ** 2, df)
    return Level(-math.log(estimate.ratio), part)


def change_between(
    of: Literal["A", "B", "B against A"],
    base: Level | None,
    new: Level | None,
    between: Part | None,
    margin: float,
) -> Change:
    if base is None or new is None:
        which = "BASE" if base is None else "NEW"
        return Change(
            of=of, base=base and _exp(base.log), new=new and _exp(new.log), change=None,
            low=None, high=None, between_run_sd=None, word="unsure",
            reason=f"{which} has no finished block",
        )  # fmt: skip
    change = new.log - base.log
    low = high = None
    word: ChangeWord = "unsure"
    reason: str | None = "too few blocks for an interval"
    if base.part and new.part:
        parts = [base.part, new.part]
        if between:  # either run has its own share of it
            parts.append(Part(2 * between.variance, between.df))
        whole = _sum(parts)
        half = t_quantile(whole.df) * math.sqrt(whole.variance)
        low, high = change - half, change + half
        word, reason = change_word(low, high, margin), None
        if between is None:
            word, reason = "unsure", NO_CALIBRATION
    return Change(
        of=of,
        base=_exp(base.log),
        new=_exp(new.log),
        change=_exp(change),
        low=None if low is None else _exp(low),
        high=None if high is None else _exp(high),
        between_run_sd=between and math.sqrt(between.variance),
        word=word,
        reason=reason,
    )


def change_word(low: float, high: float, margin: float) -> ChangeWord:
    """From the interval on the log of NEW over BASE; regression only where all of it is beyond."""
    inside = math.log1p(margin)
    if low > inside:
        return "regression"
    if high < -inside:
        return "improvement"
    return "equivalent" if -inside <= low and high <= inside else "unsure"


def _sum(parts: Sequence[Part]) -> Part:
    """Variance of a sum with the degrees of freedom of Welch and Satterthwaite."""
    whole = sum(part.variance for part in parts)
    weights = sum(part.variance**2 / part.df for part in parts)
    df = whole**2 / weights if weights > 0 else min(part.df for part in parts)
    return Part(whole, max(df, 1.0))


def _exp(log: float) -> float:
    """e^log, held inside float64: a stranger's receipt may claim anything."""
    return math.exp(max(-700.0, min(log, 700.0)))


# --------------------------------------------------------------------------- remarks


def _remarks(base: Receipt, new: Receipt, calibrations: Sequence[Noise | None]) -> Iterator[str]:
    for one, two in zip(base.plan.arms, new.plan.arms, strict=True):
        if one.options != two.options:
            keys = [k for k in sorted(one.options) if one.options[k] != two.options.get(k)]
            yield f"arm {one.side} was tuned otherwise in NEW: {', '.join(keys)}"
    if base.plan.seed != new.plan.seed:
        yield f"other seeds ({base.plan.seed} and {new.plan.seed}): other weights and batches"
    for which, receipt in (("BASE", base), ("NEW", new)):
        if receipt.verdict.status != "qualified":
            yield f"{which} is {receipt.verdict.status}: {'; '.join(receipt.verdict.reasons)[:200]}"
    apart = _span([base.plan.frozen_utc, new.plan.frozen_utc])
    for calibration in calibrations:
        if calibration is None:
            continue
        covered = _span([run.utc for run in calibration.runs])
        if apart > timedelta(hours=12) and covered < apart / 2:
            yield (
                f"the receipts are {apart.total_seconds() / 3600:.0f} hours apart, the calibration "
                f"covers {covered.total_seconds() / 3600:.1f}: more runs on other days would tell "
                "whether days differ more"
            )
            break


def _span(times: Sequence[str]) -> timedelta:
    """From the first to the last of these times; none where one of them is no time."""
    try:
        moments = [datetime.fromisoformat(text) for text in times]
        return max(moments) - min(moments)
    except (ValueError, TypeError):
        return timedelta()

"""A new receipt beside earlier runs of its arms, beside a baseline, and its arms beside each other.

Three questions, since each misses something. *Against the last runs*: did anything change since the
last change? A slow creep is not seen so, since the earlier runs creep along. *Against a baseline*
that stays: has it crept? *In the same run*, where A is B's arm from another source: is the change
itself to blame? Only the last does not depend on which machine the run came to.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Literal

import duckdb

from driver import trend
from driver.calibration import LEAST_RUNS
from driver.compare import Level, Noise, Part, RunTime, Spread, change_between, change_word, larger
from driver.errors import UsageError
from driver.history.database import earlier
from driver.parity import SIDES
from driver.records import HistoryChange, HistoryReceipt, HistoryReport
from driver.stats import CONFIDENCE

DEFAULT_LAST = 20


def judge(
    connection: duckdb.DuckDBPyConnection | None,
    new: HistoryReceipt,
    baseline: HistoryReceipt | None,
    last: int,
    margin: float,
    calibrations: Sequence[Noise | None],
) -> HistoryReport:
    """Everything that is known of the new receipt's times. `calibrations` are of A and of B.

    Raises UsageError for a receipt whose verdict is failed: its times say nothing.
    """
    if new.verdict == "failed":
        raise UsageError(f"the receipt's verdict is failed ({'; '.join(new.reasons)[:200]})")
    changes: list[HistoryChange] = []
    sides = SIDES[:1] if new.series_a == new.series_b else SIDES
    for side, calibration in zip(sides, calibrations, strict=False):
        runs = _earlier_levels(connection, new, side, last)
        changes.append(_against_last(new, side, runs, margin))
        if baseline:
            noise = larger(calibration, _spread(runs, None))
            changes.append(_against_baseline(new, side, baseline, noise, margin))
    changes += _in_one_run(new, margin)
    return HistoryReport(
        new_digest=new.digest,
        baseline_digest=baseline and baseline.digest,
        margin=margin,
        confidence=CONFIDENCE,
        last=last,
        changes=tuple(changes),
        remarks=tuple(_remarks(new, baseline)),
    )


def spread_of(
    connection: duckdb.DuckDBPyConnection, new: HistoryReceipt, side: str, leave_out: Sequence[str]
) -> Spread | None:
    """What the history says of noise between runs of one arm of `new`; None: too little."""
    found = earlier(connection, _series(new, side), None, leave_out, DEFAULT_LAST)
    pairs = [
        math.log(row.ratio)
        for row in found
        if row.ratio and (row.series_a, row.series_b) == (new.series_a, new.series_b)
    ]
    return _spread(_levels(found, _series(new, side)), pairs)


def _spread(runs: Sequence[tuple[str, float]], ratios: Sequence[float] | None) -> Spread | None:
    """Of runs as (time, log ms/step), oldest first: of those since the last change point."""
    recent = runs[len(runs) - len(trend.settled([log for _, log in runs])) :]
    if len(recent) < LEAST_RUNS:
        return None
    settled = trend.settled(ratios or ())
    return Spread(
        between_step_sd=stdev([log for _, log in recent]),
        between_ratio_sd=stdev(settled) if len(settled) >= LEAST_RUNS else None,
        ratio_runs=len(settled),
        runs=tuple(RunTime(utc) for utc, _ in recent),
    )


def _series(row: HistoryReceipt, side: str) -> str:
    return row.series_a if side == "A" else row.series_b


def _ms(row: HistoryReceipt, side: str) -> float | None:
    return row.ms_a if side == "A" else row.ms_b


def _earlier_levels(
    connection: duckdb.DuckDBPyConnection | None, new: HistoryReceipt, side: str, last: int
) -> list[tuple[str, float]]:
    if connection is None:
        return []
    key = _series(new, side)
    return _levels(earlier(connection, key, new.frozen_utc, [new.digest], last), key)


def _levels(rows: Sequence[HistoryReceipt], series: str) -> list[tuple[str, float]]:
    """(time, log ms/step) of an arm's runs. Where both sides are that arm, their mean is one."""
    found = []
    for row in rows:
        sides = [side for side in SIDES if _series(row, side) == series]
        logs = [math.log(ms) for side in sides if (ms := _ms(row, side))]
        if logs and row.frozen_utc:
            found.append((row.frozen_utc.isoformat() + "+00:00", fmean(logs)))
    return found


def _level(row: HistoryReceipt, side: str) -> Level | None:
    ms = _ms(row, side)
    variance, freedom = (
        (row.variance_a, row.freedom_a) if side == "A" else (row.variance_b, row.freedom_b)
    )
    if not ms:
        return None
    part = Part(variance, freedom) if variance is not None and freedom else None
    return Level(math.log(ms), part)


def _against_last(
    new: HistoryReceipt, side: Literal["A", "B"], runs: Sequence[tuple[str, float]], margin: float
) -> HistoryChange:
    logs = [log for _, log in runs]
    level, ms = trend.level_of(logs), _ms(new, side)
    arm = new.label_a if side == "A" else new.label_b
    if level is None or ms is None:
        count = len(trend.settled(logs))
        reason = (
            "it has no finished block"
            if ms is None
            else f"{count} comparable runs since the last change, it takes {LEAST_RUNS}"
        )
        return HistoryChange(
            of=side, arm=arm, against="last runs", runs=count, earlier=None, new=ms, change=None,
            low=None, high=None, between_run_sd=None, word="unsure", reason=reason,
        )  # fmt: skip
    log = math.log(ms)
    low, high = trend.interval(level, log)
    runs_sd = trend.spread(logs)
    assert runs_sd
    return HistoryChange(
        of=side, arm=arm, against="last runs", runs=len(trend.settled(logs)),
        earlier=_exp(level.log), new=ms, change=_exp(log - level.log), low=_exp(low),
        high=_exp(high), between_run_sd=math.sqrt(runs_sd.variance),
        word=change_word(low, high, margin), reason=None,
    )  # fmt: skip


def _against_baseline(
    new: HistoryReceipt,
    side: Literal["A", "B"],
    baseline: HistoryReceipt,
    noise: Noise | None,
    margin: float,
) -> HistoryChange:
    arm = new.label_a if side == "A" else new.label_b
    there = next((s for s in SIDES[::-1] if _series(baseline, s) == _series(new, side)), None)
    if there is None or baseline.verdict == "failed":
        return HistoryChange(
            of=side, arm=arm, against="baseline", runs=1, earlier=None, new=_ms(new, side),
            change=None, low=None, high=None, between_run_sd=None, word="unsure",
            reason="; ".join(_unlike(baseline, new, side)),
        )  # fmt: skip
    sd = noise.between_step_sd if noise else None
    between = Part(sd * sd, len(noise.runs) - 1) if sd is not None and noise else None
    found = change_between(side, _level(baseline, there), _level(new, side), between, margin)
    return HistoryChange(
        of=side, arm=arm, against="baseline", runs=1, earlier=found.base, new=found.new,
        change=found.change, low=found.low, high=found.high, between_run_sd=found.between_run_sd,
        word=found.word, reason=found.reason,
    )  # fmt: skip


def _unlike(baseline: HistoryReceipt, new: HistoryReceipt, side: str) -> Iterator[str]:
    """Why an arm's times in the two say nothing about each other."""
    if baseline.verdict == "failed":
        yield "the baseline's verdict is failed"
    for name in ("preset", "machine", "browser", "adapter"):
        one, two = getattr(baseline, name), getattr(new, name)
        if one != two:
            yield f"another {name} ({one!r:.60} and {two!r:.60})"
    arm = new.label_a if side == "A" else new.label_b
    if arm not in (baseline.label_a, baseline.label_b):
        yield "the baseline has no such arm"
    elif all(getattr(baseline, n) == getattr(new, n) for n in ("preset", "machine", "browser")):
        yield "another source, recipe, corpus or adapter"


def _in_one_run(new: HistoryReceipt, margin: float) -> Iterator[HistoryChange]:
    """B against A where both are the same arm from two sources: the receipt's own estimate."""
    same = _without_source(new.label_a) == _without_source(new.label_b)
    if not same or new.series_a == new.series_b:
        return
    known = new.ratio and new.ratio_low and new.ratio_high
    low, high = (
        (-math.log(new.ratio_high), -math.log(new.ratio_low))
        if new.ratio_low and new.ratio_high
        else (0.0, 0.0)
    )
    yield HistoryChange(
        of="B against A", arm=new.label_b, against="the same run", runs=1, earlier=new.ms_a,
        new=new.ms_b, change=1 / new.ratio if new.ratio else None,
        low=_exp(low) if known else None, high=_exp(high) if known else None, between_run_sd=None,
        word=change_word(low, high, margin) if known else "unsure",
        reason=None if known else "too few blocks for an interval",
    )  # fmt: skip


def _without_source(label: str) -> str:
    """Options hold neither `+` nor `=`; a source's stands as REV in labels."""
    name, _, options = label.partition(":")
    return name + ":" + "+".join(o for o in options.split("+") if not o.startswith("source="))


def _remarks(new: HistoryReceipt, baseline: HistoryReceipt | None) -> Iterator[str]:
    if new.verdict != "qualified":
        yield f"the receipt is {new.verdict}: {'; '.join(new.reasons)[:200]}"
    if new.series_a == new.series_b:
        yield "both sides are the same arm; side A stands for it"
    if baseline and baseline.frozen_utc and new.frozen_utc:
        yield f"the baseline is of {baseline.frozen_utc:%Y-%m-%d}"


def _exp(log: float) -> float:
    return math.exp(max(-700.0, min(log, 700.0)))

"""Runs over time: where their level changed, and how a new run stands to those before it.

Change points are found as Pettitt (1979) and Matteson and James (E-divisive, 2014) do, the latter
as MongoDB's performance tests use it (Daly et al., 2020): the best split of the series is tested by
permutations, and its two halves are searched in turn. The statistic is the largest standardised
CUSUM of *ranks*, so that an outlier counts no more than any other extreme run. Permuting is exact
for whatever distribution the noise has, as long as runs are independent: a series without a change
gets a mark with probability `ALPHA`, not more. Where days resemble their neighbours more than
others, marks come more often. A change point's place is where the least absolute deviations from
two medians are, near the split.

A new run stands against the mean of earlier ones with the prediction interval of the normal
distribution: s²·(1 + 1/n), n − 1 degrees of freedom, s the spread of the runs since the last change
point. That spread contains everything that makes runs differ, blocks and days alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from driver.calibration import LEAST_RUNS
from driver.compare import Level, Part
from driver.power import t_quantile

ALPHA = 0.01  # of a mark in a series without a change
LEAST_STEP = 0.01  # smaller changes of the level are not marked, however certain
LEAST_SEGMENT = 3  # runs on either side
_PERMUTATIONS = 999
_CHUNK_CELLS = 500_000  # of permuted ranks held at once
_NEAR = 8  # runs around the split among which its place is looked for


@dataclass(frozen=True)
class ChangePoint:
    """The first run of a new level. Levels are medians of logarithms."""

    index: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """New over old level, as a factor."""
        return math.exp(max(-700.0, min(self.after - self.before, 700.0)))


# --------------------------------------------------------------------------- change points


def change_points(
    logs: Sequence[float], alpha: float = ALPHA, least: float = LEAST_STEP
) -> tuple[ChangePoint, ...]:
    """Where the level of a series changed, in order. `logs` are finite, of runs in order of time.

    The same series gives the same marks: permutations are drawn from a fixed seed.
    """
    values = np.asarray(logs, np.float64)
    starts: list[int] = []
    _divide(values, 0, len(values), alpha, starts)
    return _kept(values, [0, *sorted(starts), len(values)], math.log1p(least))


def _divide(
    values: NDArray[np.float64], first: int, end: int, alpha: float, starts: list[int]
) -> None:
    """Adds the change points of values[first:end] to `starts`."""
    todo = [(first, end)]
    while todo:
        low, high = todo.pop()
        part = values[low:high]
        if len(part) < 2 * LEAST_SEGMENT:
            continue
        ranks = rankdata(part) - (len(part) + 1) / 2
        split, statistic = _best_split(ranks)
        if statistic == 0 or not _significant(ranks, statistic, alpha):
            continue
        place = low + _place(part, split)
        starts.append(place)
        todo += [(low, place), (place, high)]


def _scale(n: int) -> NDArray[np.float64]:
    """Standard deviation of a CUSUM of n exchangeable values at every allowed split, but a factor.

    At split k (1 ≤ k < n) it is in proportion to √(k·(n − k)).
    """
    k = np.arange(LEAST_SEGMENT, n - LEAST_SEGMENT + 1)
    return np.sqrt((k * (n - k)).astype(np.float64))


def _best_split(ranks: NDArray[np.float64]) -> tuple[int, float]:
    """Where the CUSUM of centred ranks is largest for its place, and how large."""
    n = len(ranks)
    sums = np.abs(np.cumsum(ranks)[LEAST_SEGMENT - 1 : n - LEAST_SEGMENT]) / _scale(n)
    best = int(np.argmax(sums))
    return best + LEAST_SEGMENT, float(sums[best])


def _significant(ranks: NDArray[np.float64], statistic: float, alpha: float) -> bool:
    """Whether at most a part `alpha` of all permutations splits as well; stops once it is more."""
    n = len(ranks)
    rng = np.random.Generator(np.random.Philox(key=[n, 0]))
    ordered = np.sort(ranks)  # the same statistic of as many runs has the same answer
    most = math.floor(alpha * (_PERMUTATIONS + 1)) - 1
    done = as_good = 0
    while done < _PERMUTATIONS:
        count = min(_PERMUTATIONS - done, max(1, _CHUNK_CELLS // n))
        drawn = rng.permuted(np.broadcast_to(ordered, (count, n)), axis=1)
        sums = np.abs(np.cumsum(drawn, axis=1)[:, LEAST_SEGMENT - 1 : n - LEAST_SEGMENT])
        as_good += int(((sums / _scale(n)).max(axis=1) >= statistic * (1 - 1e-12)).sum())
        done += count
        if as_good > most:
            return False
    return True


def _place(part: NDArray[np.float64], split: int) -> int:
    """The split near `split` with the least absolute deviations from the medians of its sides."""
    first = max(LEAST_SEGMENT, split - _NEAR)
    last = min(len(part) - LEAST_SEGMENT, split + _NEAR)
    costs = [
        np.abs(part[:k] - np.median(part[:k])).sum() + np.abs(part[k:] - np.median(part[k:])).sum()
        for k in range(first, last + 1)
    ]
    return first + int(np.argmin(costs))


def _kept(values: NDArray[np.float64], bounds: list[int], least: float) -> tuple[ChangePoint, ...]:
    """Change points of at least that size; the smallest goes first, and levels join."""
    while True:
        levels = [float(np.median(values[a:b])) for a, b in pairwise(bounds) if b > a]
        steps = [abs(after - before) for before, after in pairwise(levels)]
        if not steps or min(steps) >= least:
            break
        del bounds[steps.index(min(steps)) + 1]
    return tuple(
        ChangePoint(index, before, after)
        for index, (before, after) in zip(bounds[1:-1], pairwise(levels), strict=True)
    )


# --------------------------------------------------------------------------- earlier runs


def settled(logs: Sequence[float]) -> Sequence[float]:
    """The runs since the last change point."""
    found = change_points(logs)
    return logs[found[-1].index :] if found else logs


def spread(logs: Sequence[float]) -> Part | None:
    """Variance of one run's level around that of its like; None where too few runs tell."""
    recent = settled(logs)
    return Part(stdev(recent) ** 2, len(recent) - 1) if len(recent) >= LEAST_RUNS else None


def level_of(logs: Sequence[float]) -> Level | None:
    """Level of the runs since the last change point, as one that a new run is to be like.

    Its variance is that of the *difference* from a new run, so the new run's own is not added.
    """
    recent, part = settled(logs), spread(logs)
    if part is None:
        return None
    return Level(fmean(recent), Part(part.variance * (1 + 1 / len(recent)), part.df))


def interval(level: Level, log: float) -> tuple[float, float]:
    """95% interval of how far a run at `log` is from `level`, made by `level_of`."""
    assert level.part
    half = t_quantile(level.part.df) * math.sqrt(level.part.variance)
    return log - level.log - half, log - level.log + half


def typical(logs: Sequence[float]) -> float:
    """The median, as a factor."""
    return math.exp(max(-700.0, min(median(logs), 700.0)))

"""Runs over time: where their level changed, and how a new run stands to those before it.

Change points are found as Pettitt (1979) and Matteson and James (E-divisive, 2014) do, the latter
as MongoDB's performance tests use it (Daly et al., 2020): the best split of the series is tested by
permutations, and its two halves are searched in turn. The statistic is the largest standardised
CUSUM of *ranks* over the series and over stretches of it, so that an outlier counts no more than
any other extreme run, and a rise that falls again is seen. Permuting is exact for whatever
distribution the noise has, as long as runs are independent: a series without a change gets a mark
with probability `ALPHA`, not more. Where days resemble their neighbours more than others, marks
come more often. A change point's place is where the least absolute deviations from two medians
are, near the split.

A new run stands against the mean of earlier ones with the prediction interval of the normal
distribution: s²·(1 + 1/n), n − 1 degrees of freedom, s the spread of the runs since the last change
point. That spread contains everything that makes runs differ, blocks and days alike.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

import numpy as np
import scipy
from numpy.typing import NDArray

from driver.calibration import LEAST_RUNS
from driver.compare import Level, Part
from driver.power import t_quantile

ALPHA = 0.01  # of a mark in a series without a change
LEAST_STEP = 0.01  # smaller changes of the level are not marked, however certain
LEAST_SEGMENT = 3  # runs on either side
_PERMUTATIONS = 999
_LONG, _PERMUTATIONS_OF_LONG = 1000, 199  # runs from which fewer have to do
_SHORTEST_WINDOW, _MOST_PARTS = 10, 64
_CHUNK_CELLS = 100_000  # of permuted ranks held at once
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
    bounds = [0, *sorted(starts), len(values)]
    for _ in range(2):  # each place once more, now that its neighbours are known
        for i in range(1, len(bounds) - 1):
            part = values[bounds[i - 1] : bounds[i + 1]]
            bounds[i] = bounds[i - 1] + _place(part, bounds[i] - bounds[i - 1])
    return _kept(values, bounds, math.log1p(least))


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
        ranks = scipy.stats.rankdata(part) - (len(part) + 1) / 2
        split, statistic = _best_split(ranks)
        if statistic == 0 or not _significant(ranks, statistic, alpha):
            continue
        place = low + _place(part, split)
        starts.append(place)
        todo += [(low, place), (place, high)]


def _windows(n: int) -> Iterator[tuple[int, int]]:
    """Stretches of n runs: all, halves, quarters, … each overlapping the next by half.

    One whose level rises and falls again hides both from a split of the whole (Kovács, Bühlmann,
    Li and Munk, Seeded binary segmentation, 2023).
    """
    length = n
    while length >= max(_SHORTEST_WINDOW, n / _MOST_PARTS) or length == n:
        starts = {*range(0, n - length + 1, max(1, length // 2)), n - length}
        yield from ((start, start + length) for start in sorted(starts))
        length //= 2


def _cusums(sums: NDArray[np.float64], low: int, high: int) -> NDArray[np.float64]:
    """|CUSUM| of ranks low … high at every allowed split, over its standard deviation but a factor.

    `sums` (…, n + 1) are cumulative sums of ranks with a leading 0. At split k of m exchangeable
    values the deviation is in proportion to √(k·(m − k)/m).
    """
    m = high - low
    k = np.arange(LEAST_SEGMENT, m - LEAST_SEGMENT + 1)
    left = sums[..., low + LEAST_SEGMENT : high - LEAST_SEGMENT + 1] - sums[..., low, None]
    whole = (sums[..., high] - sums[..., low])[..., None]
    found: NDArray[np.float64] = np.abs(left - whole * (k / m)) / np.sqrt(k * (m - k) / m)
    return found


def _best_split(ranks: NDArray[np.float64]) -> tuple[int, float]:
    """Where the CUSUM of centred ranks is largest for its place, in any window, and how large."""
    sums = np.concatenate([[0.0], np.cumsum(ranks)])
    split, statistic = 0, 0.0
    for low, high in _windows(len(ranks)):
        found = _cusums(sums, low, high)
        best = int(np.argmax(found))
        if found[best] > statistic:
            split, statistic = low + best + LEAST_SEGMENT, float(found[best])
    return split, statistic


def _significant(ranks: NDArray[np.float64], statistic: float, alpha: float) -> bool:
    """Whether at most a part `alpha` of all permutations splits as well; stops once it is more."""
    n = len(ranks)
    rng = np.random.Generator(np.random.Philox(key=[n, 0]))
    permutations = _PERMUTATIONS if n <= _LONG else _PERMUTATIONS_OF_LONG
    most = math.floor(alpha * (permutations + 1)) - 1
    ordered = np.sort(ranks)  # the same statistic of as many runs has the same answer
    windows = list(_windows(n))
    done = as_good = 0
    while done < permutations:
        count = min(permutations - done, max(1, _CHUNK_CELLS // n))
        drawn = rng.permuted(np.broadcast_to(ordered, (count, n)), axis=1)
        sums = np.concatenate([np.zeros((count, 1)), np.cumsum(drawn, axis=1)], axis=1)
        best = np.max([_cusums(sums, low, high).max(axis=1) for low, high in windows], axis=0)
        as_good += int((best >= statistic * (1 - 1e-12)).sum())
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

"""What a number of blocks can tell, and how many blocks a difference asks for. No I/O.

The smallest detectable difference is that which a two-sided test at the interval's level finds with
a stated probability: by the noncentral t distribution for a fixed number of blocks. For `--blocks
auto` it is Stein's two-stage procedure (Stein 1945, Annals of Mathematical Statistics 16, 243): the
number of blocks comes from the pilot's variance, and the interval keeps that variance and its
degrees of freedom, so (mean − truth)·√n/s has Student's t distribution whatever the true variance.
The estimate so far is never looked at. Where the later blocks vary more than the pilot's by more
than chance allows (rare disturbances that the pilot did not meet), the interval is that of all
blocks; simulation says what each does.
"""

import math
from functools import lru_cache

import scipy

CONFIDENCE = 0.95
POWERS = (0.8, 0.95)
PILOT_BLOCKS = 6
MOST_BLOCKS = 60
STEIN_POWER = 0.95


@lru_cache
def t_quantile(df: float, confidence: float = CONFIDENCE) -> float:
    """Half-width of a two-sided interval in standard errors."""
    return float(scipy.special.stdtrit(df, (1 + confidence) / 2))


def detectable(sd: float, blocks: int, df: int, power: float) -> float:
    """The log ratio that `blocks` blocks of within-order deviation `sd` find with `power`."""
    return _noncentrality(df, power) * sd / math.sqrt(blocks)


def stein_detectable(sd: float, blocks: int, df: int, power: float) -> float:
    """The same after two stages, where the pilot's `sd` and `df` stay: at least that power."""
    return _stein_shift(df, power) * sd / math.sqrt(blocks)


def stein_blocks(sd: float, df: int, difference: float, pilot: int, most: int) -> int:
    """Blocks in all so that a log ratio of `difference` is found with `STEIN_POWER`: even, from
    `pilot` to `most`."""
    asked = (_stein_shift(df, STEIN_POWER) * sd / difference) ** 2
    if not asked < most:  # infinite and NaN included
        return most
    wanted = max(pilot, math.ceil(asked - 1e-9))
    return min(most, wanted + wanted % 2)


def varies_more(sd: float, df: int, other_sd: float, other_df: int) -> bool:
    """Whether a deviation is larger than another by more than chance allows: F test, 5%."""
    return sd**2 > float(scipy.special.fdtri(df, other_df, CONFIDENCE)) * other_sd**2


@lru_cache
def _noncentrality(df: int, power: float) -> float:
    """Of the t statistic whose test rejects with `power`."""
    edge = t_quantile(df)

    def excess(nc: float) -> float:
        # The other tail counts for nothing here.
        return 1 - float(scipy.special.nctdtr(df, nc, edge)) - power

    return float(scipy.optimize.brentq(excess, 0.0, 4 * edge))


@lru_cache
def _stein_shift(df: int, power: float) -> float:
    return t_quantile(df) + float(scipy.special.stdtrit(df, power))

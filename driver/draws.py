"""Generators: normals for weights, offsets for batches; the same bits on every machine.

Two families. The project's own reads NumPy's Philox and inverts the normal distribution. The other
is that of the 2026-09-02 receipt: mulberry32 with Box-Muller for weights, a hash for offsets.
NumPy keeps a bit generator's raw stream stable across versions and platforms, but not what
`Generator` makes of it, and log and cos differ in the last bit between C libraries. So what is
drawn here is made with additions, multiplications, divisions and square roots alone, which IEEE
754 rounds the same way everywhere.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
U32 = NDArray[np.uint32]
Init = Literal["philox", "mulberry32"]  # where weights come from
Offsets = Literal["philox", "hashed"]  # where sequences begin
NormalSource = Callable[[int], F64]


def normal_source(init: Init, seed: int) -> NormalSource:
    """A function that gives the next `count` standard normals of the preset's scheme.

    For mulberry32 the seed counts modulo 2^32, which is all the state that it has.
    """
    if init == "mulberry32":
        return BoxMuller(seed).normals
    stream = np.random.Philox(key=seed)
    return lambda count: normals(stream, count)


# --------------------------------------------------------------------------- Philox


def normals(stream: np.random.BitGenerator, count: int) -> NDArray[np.float64]:
    """`count` standard normals (float64) from raw 64-bit draws: the distribution inverted.

    Source: Wichura 1988, algorithm AS 241 (PPND16), relative accuracy about 1e-16.
    """
    p = ((stream.random_raw(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    p = np.minimum(p, 1 - 2.0**-53)  # the largest draw would round to 1
    q = p - 0.5
    central = np.abs(q) <= 0.425
    x = np.empty(count)
    r = 0.180625 - q[central] ** 2
    x[central] = q[central] * _ratio(r, _A, _B)

    outer = ~central
    tail = np.minimum(p[outer], 1 - p[outer])
    r = np.sqrt(-_log(tail))
    near = r <= 5
    value = np.empty(r.size)
    value[near] = _ratio(r[near] - 1.6, _C, _D)
    value[~near] = _ratio(r[~near] - 5, _E, _F)
    x[outer] = np.where(q[outer] < 0, -value, value)
    return x


def _ratio(
    x: NDArray[np.float64], above: tuple[float, ...], below: tuple[float, ...]
) -> NDArray[np.float64]:
    """Quotient of two polynomials, coefficients from the constant term up (Horner)."""
    num, den = np.zeros_like(x), np.zeros_like(x)
    for a, b in zip(reversed(above), reversed(below), strict=True):
        num = num * x + a
        den = den * x + b
    return np.asarray(num / den)


# --------------------------------------------------------------------------- the 2026-09-02 receipt


class BoxMuller:
    """Normals from mulberry32 by Box and Muller's transform, two from each pair of uniforms.

    The second of a pair is kept for the next call, however many values a call asks for.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0  # uniforms so far
        self._kept: F64 = np.empty(0)

    def normals(self, count: int) -> F64:
        """The next `count` standard normals, float64."""
        pairs = -(-max(count - self._kept.size, 0) // 2)
        draws = mulberry32(self._seed, self._drawn, 2 * pairs).reshape(pairs, 2)
        self._drawn += 2 * pairs
        radius = np.sqrt(-2 * _log(np.maximum(draws[:, 0], 1e-9)))
        fresh = radius[:, None] * np.stack(_turn(draws[:, 1]), axis=1)
        found = np.concatenate([self._kept, fresh.reshape(-1)])
        self._kept = found[count:]
        return found[:count]


def mulberry32(seed: int, start: int, count: int) -> F64:
    """Uniforms number `start` … `start + count − 1` in [0, 1), float64, of mulberry32.

    The generator's state is an arithmetic progression modulo 2^32, so all draws are made at once.
    Source: T. Ettinger's mulberry32 (public domain).
    """
    steps = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    # Unsigned arrays wrap modulo 2^64, and so modulo 2^32 after the cast.
    t = (np.uint64(seed % 2**32) + steps * np.uint64(0x6D2B79F5)).astype(np.uint32)
    t = (t ^ (t >> np.uint32(15))) * (t | np.uint32(1))
    t ^= t + (t ^ (t >> np.uint32(7))) * (t | np.uint32(61))
    return np.asarray((t ^ (t >> np.uint32(14))) / 2.0**32)


def hashed_offsets(seed: int, bound: int, steps: int, batch: int) -> NDArray[np.int64]:
    """Where row b of step i starts, below `bound`, (steps, batch): a hash of seed, step and row."""
    step = (np.arange(1, steps + 1, dtype=np.uint64) * np.uint64(0x9E3779B9)).astype(np.uint32)
    row = (np.arange(1, batch + 1, dtype=np.uint64) * np.uint64(0x85EBCA6B)).astype(np.uint32)
    return mix(np.uint32(seed % 2**32) ^ step[:, None] ^ row).astype(np.int64) % bound


def mix(x: U32) -> U32:
    """A bijective hash of 32 bits. Source: C. Wellons' lowbias32 (public domain)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _turn(turns: F64) -> tuple[F64, F64]:
    """Cosine and sine of 2π·turns, turns in [0, 1).

    The nearest quarter is taken off exactly; the series below leave less than 1e-17 on what is
    left, at most π/4.
    """
    quarter = np.rint(4 * turns)
    t = 2 * math.pi * (turns - quarter / 4)
    square = t * t
    cosine, sine = np.ones_like(t), np.ones_like(t)
    for k in range(18, 0, -2):
        cosine = 1 - cosine * square / (k * (k - 1))
        sine = 1 - sine * square / (k * (k + 1))
    sine = sine * t
    near = quarter.astype(np.int64) % 4
    return (
        np.choose(near, [cosine, -sine, -cosine, sine]),
        np.choose(near, [sine, cosine, -sine, -cosine]),
    )


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithm from arithmetic alone: log m·2^e with 2·atanh((m−1)/(m+1)) for log m."""
    m, e = np.frexp(x)
    low = m < math.sqrt(0.5)
    m, e = np.where(low, 2 * m, m), np.where(low, e - 1, e)
    s = (m - 1) / (m + 1)
    square, series = s * s, np.zeros_like(s)
    for k in range(25, -1, -2):
        series = series * square + 1 / k
    return np.asarray(2 * s * series + e * 0.6931471805599453)


# Wichura 1988, table of PPND16: central region, then r <= 5, then r > 5.
_A = (
    3.3871328727963666080e0,
    1.3314166789178437745e2,
    1.9715909503065514427e3,
    1.3731693765509461125e4,
    4.5921953931549871457e4,
    6.7265770927008700853e4,
    3.3430575583588128105e4,
    2.5090809287301226727e3,
)
_B = (
    1.0,
    4.2313330701600911252e1,
    6.8718700749205790830e2,
    5.3941960214247511077e3,
    2.1213794301586595867e4,
    3.9307895800092710610e4,
    2.8729085735721942674e4,
    5.2264952788528545610e3,
)
_C = (
    1.42343711074968357734e0,
    4.63033784615654529590e0,
    5.76949722146069140550e0,
    3.64784832476320460504e0,
    1.27045825245236838258e0,
    2.41780725177450611770e-1,
    2.27238449892691845833e-2,
    7.74545014278341407640e-4,
)
_D = (
    1.0,
    2.05319162663775882187e0,
    1.67638483018380384940e0,
    6.89767334985100004550e-1,
    1.48103976427480074590e-1,
    1.51986665636164571966e-2,
    5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)
_E = (
    6.65790464350110377720e0,
    5.46378491116411436990e0,
    1.78482653991729133580e0,
    2.96560571828504891230e-1,
    2.65321895265761230930e-2,
    1.24266094738807843860e-3,
    2.71155556874348757815e-5,
    2.01033439929228813265e-7,
)
_F = (
    1.0,
    5.99832206555887937690e-1,
    1.36929880922735805310e-1,
    1.48753612908506148525e-2,
    7.86869131145613259100e-4,
    1.84631831751005468180e-5,
    1.42151175831644588870e-7,
    2.04426310338993978564e-15,
)

"""Bounds of what float32 rounding may make of a sum."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
UNIT = 2.0**-24  # float32's unit roundoff
HALF_ULP = 2.0**-10  # of a half: WGSL's conversions and arithmetic may round either way
HALF_LEAST = 2.0**-14  # the smallest normal half: what is below may be flushed


def gamma(n: int, unit: float = UNIT) -> float:
    """Relative bound of n roundings in a chain."""
    return n * unit / (1 - n * unit)


def largest_ratio(error: F64, bound: F64) -> float:
    """The largest error over its bound; NaN, and an error where the bound is 0, give infinity."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return float(np.nan_to_num(ratio, nan=np.inf, posinf=np.inf).max())


def product_error(a: F64, b: F64, got: F64) -> float:
    """Largest |C − a·b| over γ(K)·|a||b|, the bound of any order of K float32 multiply-adds.

    a (M,K), b (K,N), got (M,N), all float64. Source: Higham 2002, Accuracy and Stability of
    Numerical Algorithms, section 3.5. NaN and a difference where the bound is 0 give infinity.
    """
    bound: F64 = gamma(a.shape[1]) * (np.abs(a) @ np.abs(b))
    return largest_ratio(np.abs(got - a @ b), bound)


def half_product_error(a: F64, b: F64, got: F64) -> float:
    """Largest |C − a·b| over the bound of products in half precision, as the _f16 kernels make
    them: a (M,K), b (K,N) whose elements are halves, got (M,N), all float64.

    An element of a is rounded to a half, as is each product and, three times, the sum of four of
    them: five roundings. Those sums are added in float32, K/4 of them. What falls below the
    smallest normal half may be lost: an element of a, a product, a sum.
    """
    K = a.shape[1]
    relative = (1 + gamma(5, HALF_ULP)) * (1 + gamma(K // 4 + 4)) - 1
    sizes = np.abs(b)
    bound: F64 = relative * (np.abs(a) @ sizes) + HALF_LEAST * (sizes.sum(0) + 2 * K)
    return largest_ratio(np.abs(got - a @ b), bound)

"""Bounds of what float32 rounding may make of a sum."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
UNIT = 2.0**-24  # float32's unit roundoff


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

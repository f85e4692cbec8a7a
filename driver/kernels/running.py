"""Running error analysis: values in float64 beside a bound of what float32 may make of them.

A `Running` holds an array and, for every element, a bound of the absolute error of a float32
computation of it. Each operation carries the bounds of its operands forward and adds its own
rounding, u·|result| with u = 2^-24, and 2^-149 for results that underflow. A sum of n terms adds
γ(n−1) times the terms' magnitudes, γ(n) = n·u/(1 − n·u), which holds for every order of summation;
a product of matrices γ(n). Multiply-adds that round once are covered by the bound for two
roundings. So formulas written with these operators are their own error bounds.

Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 2.2, 3.1, 3.3, 3.5.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
UNIT = 2.0**-24  # float32's unit roundoff
UNDERFLOW = 2.0**-149  # half of this is lost where a result is subnormal


# Relative error of the kernels' e^x, and what it may be instead of less: exp4 of wasm_src/vec.h
# errs by 1.4 units on a sweep of every fourth float of [-87, 0], and stays at e^-87 below that.
# Quotients and roots are IEEE 754's, rounded once. An arm with other ones needs other figures.
EXP = 2 * UNIT
EXP_FLOOR = 2e-38


def gamma(n: int, unit: float = UNIT) -> float:
    """Relative bound of n roundings in a chain."""
    return n * unit / (1 - n * unit)


@dataclass(frozen=True)
class Running:
    """`value` (float64) and a bound of its absolute error, of the same shape."""

    value: F64
    error: F64

    # NumPy arrays on the left leave the operator to this class.
    __array_ufunc__ = None

    def _made(self, value: F64, carried: F64, unit: float = UNIT) -> "Running":
        """A result with the error carried to it and one rounding more."""
        value, carried = np.broadcast_arrays(value, carried)
        return Running(value, carried + unit * (np.abs(value) + carried) + UNDERFLOW)

    def __add__(self, other: "Running") -> "Running":
        return self._made(self.value + other.value, self.error + other.error)

    def __sub__(self, other: "Running") -> "Running":
        return self._made(self.value - other.value, self.error + other.error)

    def __mul__(self, other: "Running") -> "Running":
        return self._made(self.value * other.value, _product_error(self, other))

    def __truediv__(self, other: "Running") -> "Running":
        """Infinite bound where the divisor may be 0."""
        room = np.abs(other.value) - other.error
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self.value / other.value
            carried = (self.error + np.abs(value) * other.error) / room
        carried = np.where(room > 0, carried, np.inf)
        return self._made(value, carried)

    def sum(self, axis: int) -> "Running":
        """In any order; the axis stays, with length 1."""
        carried = self.error.sum(axis=axis, keepdims=True)
        magnitude = (np.abs(self.value) + self.error).sum(axis=axis, keepdims=True)
        rounding = gamma(self.value.shape[axis] - 1) * magnitude
        value = self.value.sum(axis=axis, keepdims=True)
        return Running(value, carried + rounding)

    def __matmul__(self, other: "Running") -> "Running":
        """Sums of products, over any common length, in any order."""
        a, b = np.abs(self.value), np.abs(other.value)
        carried = a @ other.error + self.error @ b + self.error @ other.error
        magnitude = (a + self.error) @ (b + other.error)
        length = self.value.shape[-1]
        error = carried + gamma(length) * magnitude + length * UNDERFLOW
        return Running(self.value @ other.value, error)

    def exp(self) -> "Running":
        """e^value."""
        value = np.exp(self.value)
        carried = value * np.expm1(self.error) + EXP_FLOOR
        return self._made(value, carried, EXP)

    def sqrt(self) -> "Running":
        """The root; where the operand may be 0 its error is at most the root of the error."""
        value = np.sqrt(self.value)
        with np.errstate(divide="ignore", invalid="ignore"):
            carried = self.error / (value + np.sqrt(np.maximum(self.value - self.error, 0)))
        carried = np.where(self.error == 0, 0.0, np.fmin(carried, np.sqrt(self.error)))
        return self._made(value, carried)

    def transposed(self) -> "Running":
        """The last two axes exchanged."""
        return Running(self.value.swapaxes(-1, -2), self.error.swapaxes(-1, -2))

    def where(self, mask: NDArray[np.bool_]) -> "Running":
        """Exactly 0 elsewhere."""
        return Running(np.where(mask, self.value, 0.0), np.where(mask, self.error, 0.0))


def exact(x: Any) -> Running:
    """An input that float32 holds as it is."""
    value = np.asarray(x, np.float64)
    return Running(value, np.zeros_like(value))


def rounded(x: Any, times: int = 1) -> Running:
    """A value that float32 holds rounded, after so many roundings."""
    value = np.asarray(x, np.float64)
    return Running(value, gamma(times) * np.abs(value))


def largest_ratio(error: F64, bound: F64) -> float:
    """The largest error over its bound; NaN, and an error where the bound is 0, give infinity."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / bound)
    return float(np.nan_to_num(ratio, nan=np.inf, posinf=np.inf).max())


def _product_error(a: Running, b: Running) -> F64:
    error: F64 = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
    return error

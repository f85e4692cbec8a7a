"""Running error analysis: values in float64 beside a bound of what float32 may make of them.

A `Running` holds an array and, for every element, a bound of the absolute error of a float32
computation of it. Each operation carries the bounds of its operands forward and adds its own
rounding, u·|result| with u = 2^-24, and 2^-149 for results that underflow. A sum of n terms adds
γ(n−1) times the terms' magnitudes, γ(n) = n·u/(1 − n·u), which holds for every order of summation;
a product of matrices γ(n). Multiply-adds that round once are covered by the bound for two
roundings. So formulas written with these operators are their own error bounds.

Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 2.2, 3.1, 3.3, 3.5.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driver.parity import UNIT, gamma

F64 = NDArray[np.float64]
UNDERFLOW = 2.0**-149  # half of this is lost where a result is subnormal


@dataclass(frozen=True)
class Accuracy:
    """What e^x, quotients and roots of an arm may err: relative, in units of 2^-24."""

    exp: Callable[[F64], F64]
    quotient: float
    root: float


# exp4 of wasm_src/vec.h errs by 1.4 units on a sweep of every fourth float of [-87, 0], and stays
# at e^-87 below that, which may be instead of less. Quotients and roots are rounded once.
WASM = Accuracy(exp=lambda x: np.full_like(x, 2.0), quotient=1.0, root=1.0)
EXP_FLOOR = 2e-38
# The WGSL specification's section on floating-point accuracy, with 1 ulp as 2 units: e^x 3 + 2·|x|
# ulp, quotients 2.5 ulp, roots what 1/inverseSqrt(x) makes of 2 ulp and a quotient. Subnormal
# results may be flushed to 0.
WGSL = Accuracy(exp=lambda x: 2 * (3 + 2 * np.abs(x)), quotient=5.0, root=9.0)
_accuracy: ContextVar[Accuracy] = ContextVar("accuracy", default=WASM)


@contextmanager
def accuracy(of: Accuracy) -> Iterator[None]:
    """Bounds computed inside are those of an arm so accurate."""
    token = _accuracy.set(of)
    try:
        yield
    finally:
        _accuracy.reset(token)


@dataclass(frozen=True)
class Running:
    """`value` (float64) and a bound of its absolute error, of the same shape."""

    value: F64
    error: F64

    # NumPy arrays on the left leave the operator to this class.
    __array_ufunc__ = None

    def _made(self, value: F64, carried: F64, units: float | F64 = 1.0) -> "Running":
        """A result with the error carried to it and its own, one rounding unless more is given."""
        value, carried = np.broadcast_arrays(value, carried)
        return Running(value, carried + units * UNIT * (np.abs(value) + carried) + UNDERFLOW)

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
        return self._made(value, carried, _accuracy.get().quotient)

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
        return self._made(value, carried, _accuracy.get().exp(self.value))

    def sqrt(self) -> "Running":
        """The root; where the operand may be 0 its error is at most the root of the error."""
        value = np.sqrt(self.value)
        with np.errstate(divide="ignore", invalid="ignore"):
            carried = self.error / (value + np.sqrt(np.maximum(self.value - self.error, 0)))
        carried = np.where(self.error == 0, 0.0, np.fmin(carried, np.sqrt(self.error)))
        return self._made(value, carried, _accuracy.get().root)

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


def _product_error(a: Running, b: Running) -> F64:
    error: F64 = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
    return error

"""An operation at one shape, and its operands as arrays by name."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from driver.records import ModelConfig

Arrays = dict[str, NDArray[Any]]
Sizes = dict[str, int]
_TERM = re.compile(r"(\d+)?([A-Za-z]+)?(\+1)?")


@dataclass(frozen=True)
class Array:
    """One operand: an array of float32 unless `dtype` says otherwise.

    Its shape is given in the letters of the operation's sizes: "B T 3C", "B T+1".
    """

    name: str
    role: Literal["in", "out", "inout"]
    shape: str
    dtype: str = "<f4"

    def lengths(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape in numbers."""
        return tuple(_length(term, sizes) for term in self.shape.split())

    def size_bytes(self, sizes: Sizes) -> int:
        """Bytes of the whole array."""
        return int(np.prod(self.lengths(sizes), dtype=np.int64)) * np.dtype(self.dtype).itemsize


def _length(term: str, sizes: Sizes) -> int:
    found = _TERM.fullmatch(term)
    assert found, term
    factor, letter, plus = found.groups()
    return int(factor or 1) * (sizes[letter] if letter else 1) + bool(plus)


@dataclass(frozen=True)
class Case:
    """The operation `name` at the sizes of one model's step, `sizes` in the kernels' order.

    On a `device` it is WGSL's, else C's.
    """

    name: str
    sizes: Sizes = field(hash=False)
    config: ModelConfig = field(compare=False)
    device: bool = False

    @property
    def label(self) -> str:
        """Sizes for people: N=1024 C=96."""
        return sizes_label(self.sizes)


def sizes_label(sizes: Sizes) -> str:
    """`N=1024 C=96`."""
    return " ".join(f"{letter}={size}" for letter, size in sizes.items())

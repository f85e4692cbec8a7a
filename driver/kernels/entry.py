"""What a table of operations holds for each, and the sizes of a step by letter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from driver.kernels.bounds import Bounds
from driver.kernels.case import Array, Arrays, Case, Sizes
from driver.records import ModelConfig
from driver.tensors import flat_size, table


@dataclass(frozen=True)
class Entry:
    """One operation; `group` is the word that stands for it and its other direction."""

    name: str
    group: str
    sizes: Callable[[ModelConfig], Sequence[Sizes]]
    operands: tuple[Array, ...]
    draw: Callable[[Case, np.random.BitGenerator], Arrays]
    exact: Callable[[Case, Arrays], Arrays]
    bound: Callable[[Case, Arrays], Bounds]
    flops: Callable[[Sizes], int] | None = None  # where arithmetic binds
    most_calls: int | None = None  # on what it wrote itself


def letters(*names: str) -> Callable[[ModelConfig], Sequence[Sizes]]:
    """Sizes of a step by letter; N = B·T."""

    def of(config: ModelConfig) -> Sequence[Sizes]:
        every = {
            "B": config.batch, "T": config.ctx, "C": config.d_model, "H": config.n_head,
            "V": config.vocab, "F": config.d_ff, "N": config.positions,
            "floats": flat_size(config), "tensors": len(table(config)),
        }  # fmt: skip
        return [{name: every[name] for name in names}]

    return of


def read(name: str, shape: str, dtype: str = "<f4") -> Array:
    """An operand that is only read."""
    return Array(name, "in", shape, dtype)


def written(name: str, shape: str, dtype: str = "<f4") -> Array:
    """An operand that is only written."""
    return Array(name, "out", shape, dtype)


def updated(name: str, shape: str) -> Array:
    """An operand that is written over."""
    return Array(name, "inout", shape)

"""Simulated benchmarks: what the driver's intervals and words do where the truth is known.

`python tests/simulation.py [RUNS]` prints the tables for RUNS benchmarks a row (2000). Each is
drawn window by window; slots, blocks and estimate follow by the code that judges receipts.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from driver.plan import AUTO_RULE
from driver.power import MOST_BLOCKS, PILOT_BLOCKS, STEIN_POWER
from driver.records import AutoBlocks, BlockValue, Estimate, Plan
from driver.schedule import Order, block_orders, staged_orders
from driver.stats import estimate, stein

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

import receipts

Array = NDArray[np.float64]
WINDOWS = 5
MARGIN = 0.02
# Log times (blocks, 4 slots, WINDOWS) of one benchmark without its arms' own difference.
Noise = Callable[[np.random.Generator, int], Array]


def gaussian(rng: np.random.Generator, blocks: int, level: float = 0.02) -> Array:
    """Slots differ by `level`, so that block values do too; windows of a slot by as much again."""
    slots = level * rng.standard_normal((blocks, 4, 1))
    return slots + level * rng.standard_normal((blocks, 4, WINDOWS))


def heavy_tails(rng: np.random.Generator, blocks: int) -> Array:
    """Slots and windows by Student's t with 3 degrees of freedom."""
    slots = 0.02 * rng.standard_t(3, (blocks, 4, 1))
    return slots + 0.02 * rng.standard_t(3, (blocks, 4, WINDOWS))


def correlated(rng: np.random.Generator, blocks: int) -> Array:
    """The machine wanders through the run: each window keeps 95% of the last one's deviation."""
    count = blocks * 4 * WINDOWS
    shocks = 0.01 * rng.standard_normal(count)
    shocks[0] /= math.sqrt(1 - 0.95**2)
    walk = np.empty(count)
    at = 0.0
    for i, shock in enumerate(shocks):
        at = walk[i] = 0.95 * at + shock
    return gaussian(rng, blocks, 0.01) + walk.reshape(blocks, 4, WINDOWS)


def linear_drift(rng: np.random.Generator, blocks: int) -> Array:
    """Every slot takes 2% longer than the one before it."""
    slots = 0.02 * np.arange(blocks * 4.0).reshape(blocks, 4, 1)
    return gaussian(rng, blocks) + slots


def slow_first_slot(rng: np.random.Generator, blocks: int) -> Array:
    """The first slot of every block takes about 10% longer."""
    found = gaussian(rng, blocks)
    found[:, 0, :] += 0.1 + 0.02 * rng.standard_normal((blocks, 1))
    return found


def spikes(rng: np.random.Generator, blocks: int) -> Array:
    """One window in ten takes 10 times as long, one slot in twenty half as long again."""
    found = gaussian(rng, blocks)
    found += math.log(1.5) * (rng.random((blocks, 4, 1)) < 0.05)
    return found + math.log(10) * (rng.random((blocks, 4, WINDOWS)) < 0.1)


MODELS: dict[str, Noise] = {
    "Gaussian": gaussian,
    "heavy tails": heavy_tails,
    "correlated windows": correlated,
    "linear drift": linear_drift,
    "slow first slot": slow_first_slot,
    "spikes": spikes,
}

_FIXED = receipts.parts(names=("wasm", "wasm"), blocks=PILOT_BLOCKS).plan
_AUTO = _FIXED.model_copy(
    update={
        "order": ((),) * MOST_BLOCKS,
        "auto": AutoBlocks(
            pilot=PILOT_BLOCKS, most=MOST_BLOCKS, difference=MARGIN, power=STEIN_POWER,
            rule=AUTO_RULE,
        ),
    }
)  # fmt: skip


def block_values(logs: Array, orders: tuple[Order, ...], truth: float) -> list[BlockValue]:
    """Blocks of one benchmark whose A takes exp(`truth`) times as long as B."""
    slots = np.median(logs, axis=2)  # the log of a median is the median of logs
    found = []
    for index, order in enumerate(orders):
        is_a = np.array([side == "A" for side in order])
        value = slots[index, is_a].mean() - slots[index, ~is_a].mean() + truth
        found.append(BlockValue(block=index, order="".join(order), log_ratio=float(value)))
    return found


def benchmark(noise: Noise, auto: bool, truth: float, seed: tuple[int, ...]) -> Estimate:
    """One simulated benchmark, judged as a receipt is."""
    rng = np.random.default_rng(seed)
    draw = int(rng.integers(2**32))
    plan: Plan = _AUTO if auto else _FIXED
    if not auto:
        orders = block_orders(PILOT_BLOCKS, draw)
        return estimate(block_values(noise(rng, PILOT_BLOCKS), orders, truth), MARGIN, None)
    orders = staged_orders(PILOT_BLOCKS, MOST_BLOCKS, draw)
    values = block_values(noise(rng, MOST_BLOCKS), orders, truth)
    asked = stein(plan, values)
    assert asked is not None
    return estimate(values[: asked.blocks], MARGIN, None, PILOT_BLOCKS)


@dataclass(frozen=True)
class Row:
    """What many benchmarks of one kind did."""

    model: str
    auto: bool
    coverage: float
    false_positives: float
    bias: float
    blocks: float


def row(model: str, auto: bool, runs: int, truth: float = math.log(1.05)) -> Row:
    """Coverage, mean error of the log ratio and mean blocks at `truth`, false positives of A/A."""
    key = list(MODELS).index(model)
    noise = MODELS[model]
    found = [benchmark(noise, auto, truth, (1, key, auto, i)) for i in range(runs)]
    # Another truth moves every block value by as much: A/A is the same noise around 0.
    same = [benchmark(noise, auto, 0.0, (2, key, auto, i)) for i in range(runs)]
    ratio = math.exp(truth)
    return Row(
        model=model,
        auto=auto,
        coverage=float(np.mean([(e.low or 9) <= ratio <= (e.high or 0) for e in found])),
        false_positives=float(
            np.mean([(e.low or 0) > 1 or (e.high or 9) < 1 for e in same])
        ),
        bias=float(np.mean([math.log(e.ratio or 9) - truth for e in found])),
        blocks=float(np.mean([e.blocks for e in found])),
    )  # fmt: skip


def power_at(level: float, change: float, runs: int, blocks: int = PILOT_BLOCKS) -> float:
    """How often the interval excludes 1 when A takes 1 + `change` times as long as B and block
    values deviate by `level`."""
    truth, found = math.log1p(change), 0
    for i in range(runs):
        rng = np.random.default_rng((3, i, blocks))
        orders = block_orders(blocks, i)
        values = [
            BlockValue(
                block=k, order="".join(order),
                log_ratio=truth + level * float(rng.standard_normal()),
            )
            for k, order in enumerate(orders)
        ]  # fmt: skip
        e = estimate(values, MARGIN, None)
        found += (e.low or 0) > 1
    return found / runs


def tables(runs: int) -> Iterator[str]:
    """Both tables as Markdown, line by line."""
    yield f"| noise | blocks | coverage of 95% | A/A called different | mean error | ({runs} runs)"
    yield "|---|---|---|---|---|---|"
    for model in MODELS:
        for auto in (False, True):
            r = row(model, auto, runs)
            kind = f"auto, {r.blocks:.1f} on average" if auto else f"{r.blocks:.0f}"
            yield (
                f"| {model} | {kind} | {r.coverage:.1%} | {r.false_positives:.1%} | "
                f"{r.bias:+.3%} | |"
            )
    yield ""
    changes = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
    yield "| block noise | blocks | " + " | ".join(f"{c:.0%} found" for c in changes) + " |"
    yield "|---|---|" + "---|" * len(changes)
    for level in (0.02, 0.05, 0.1):
        for blocks in (6, 10, 20):
            cells = " | ".join(f"{power_at(level, c, runs, blocks):.1%}" for c in changes)
            yield f"| {level:.0%} | {blocks} | {cells} |"


if __name__ == "__main__":
    for line in tables(int(sys.argv[1]) if len(sys.argv) > 1 else 2000):
        print(line, flush=True)

"""Which slot runs when: blocks of A B B A and B A A B, and what fits the budget.

The block is the sampling unit; its symmetric order cancels a linear drift of the machine, and both
orders come in equal numbers so that an effect of the position cancels as well.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from driver.records import Side
from driver.wording import counted

Order = tuple[Side, Side, Side, Side]
ABBA: Order = ("A", "B", "B", "A")
BAAB: Order = ("B", "A", "A", "B")

BUDGET_RULE = (
    "The first of these that fits the time left, decided before the first slot: everything as the "
    "preset says; 3 windows a slot; fewer blocks, by two, down to 4; 2 windows; 2 blocks; 1 block; "
    "1 warm-up step; 1 window; 1 step a window. Until the warm-up is cut, it keeps an arm's least "
    "warm-up time, and takes as many steps as a slot needs to tell whether the arm learns, where "
    "the preset asks for so many."
)


def block_orders(blocks: int, seed: int) -> tuple[Order, ...]:
    """`blocks` orders, both in equal numbers (ABBA once more when odd), shuffled by the seed."""
    orders = [ABBA] * (blocks - blocks // 2) + [BAAB] * (blocks // 2)
    # A key of its own: words 0 to 3 belong to the weights, batches and corpus.
    stream = np.random.Philox(key=seed + (4 << 64))
    for last in range(blocks - 1, 0, -1):
        pick = int(stream.random_raw()) % (last + 1)
        orders[last], orders[pick] = orders[pick], orders[last]
    return tuple(orders)


def staged_orders(pilot: int, most: int, seed: int) -> tuple[Order, ...]:
    """As `block_orders` for a pilot, then pairs of both orders: balanced after every pair."""
    orders = block_orders(most + pilot, seed)[: most - pilot]  # a draw for every later block
    later = [(a, BAAB if a == ABBA else ABBA) for a in orders[: (most - pilot) // 2]]
    return block_orders(pilot, seed) + tuple(order for pair in later for order in pair)


@dataclass(frozen=True)
class ArmCost:
    """What prepare measured of an arm. Times in ms; `overhead_ms` is a slot without its steps."""

    step_ms: float
    readback_ms: float
    overhead_ms: float


@dataclass(frozen=True)
class Wishes:
    """What the preset or the command line asks for."""

    blocks: int
    windows: int
    warmup_steps: int
    warmup_ms: float
    window_ms: float
    max_steps_per_window: int
    least_steps: int = 0
    """Of a slot in all, where this asks for so many."""


@dataclass(frozen=True)
class Choice:
    """One arm's pinned loop."""

    warmup_steps: int
    windows: int
    steps_per_window: int

    @property
    def total_steps(self) -> int:
        """Steps of one slot, warm-up included."""
        return self.warmup_steps + self.windows * self.steps_per_window


@dataclass(frozen=True)
class Fit:
    """What will run, how long it takes, and what the budget took away."""

    blocks: int
    choices: tuple[Choice, Choice]
    estimated_ms: float
    reductions: tuple[str, ...]
    pilot: int | None = None  # of `blocks`, the most, where the number is decided after these

    @property
    def longest(self) -> int:
        """Steps of the longer arm's slot."""
        return max(choice.total_steps for choice in self.choices)


def steps_per_window(cost: ArmCost, wishes: Wishes) -> int:
    """k so that a window lasts ≥ `window_ms` and ≥ 50 empty readbacks; 1 where a step is slower."""
    least = max(wishes.window_ms, 50 * cost.readback_ms)
    return max(1, min(wishes.max_steps_per_window, math.ceil(least / max(cost.step_ms, 1e-6))))


def fit(
    wishes: Wishes, costs: tuple[ArmCost, ArmCost], browser_ms: float, left_ms: float
) -> Fit | None:
    """The richest plan by `BUDGET_RULE` that fits `left_ms`; None when not even the least does."""
    for rung in _rungs(wishes):
        plan = plan_for(rung, costs, browser_ms, wishes)
        if plan.estimated_ms <= left_ms:
            return plan
    return None


def more_blocks(shape: Fit, pilot: int, most: int, left_ms: float) -> Fit:
    """A pilot's plan with room for later pairs of blocks, up to `most` in all and `left_ms`.

    Where the budget did not allow the pilot, the number of blocks is fixed and says so.
    """
    if shape.blocks < pilot:
        cut = (f"blocks auto → {shape.blocks}", *shape.reductions[1:])
        return replace(shape, reductions=cut)
    block_ms = shape.estimated_ms / shape.blocks
    blocks = min(most, max(pilot, 2 * int(left_ms / max(block_ms, 1e-6) / 2)))
    return replace(shape, blocks=blocks, estimated_ms=blocks * block_ms, pilot=pilot)


def least(wishes: Wishes, costs: tuple[ArmCost, ArmCost], browser_ms: float) -> Fit:
    """The smallest plan that the rule allows."""
    return plan_for(_rungs(wishes)[-1], costs, browser_ms, wishes)


@dataclass(frozen=True)
class _Rung:
    wishes: Wishes
    full_warmup: bool = True
    single_step: bool = False


def _rungs(w: Wishes) -> list[_Rung]:
    few = replace(w, windows=min(w.windows, 3))
    rungs = [_Rung(w), _Rung(few)]
    rungs += [_Rung(replace(few, blocks=b)) for b in range(w.blocks - 1, 3, -1) if b % 2 == 0]
    two = replace(w, windows=min(w.windows, 2))
    for blocks in (4, 2, 1):
        rungs.append(_Rung(replace(two, blocks=min(w.blocks, blocks))))
    small = replace(two, blocks=1, warmup_steps=min(w.warmup_steps, 1))
    one = replace(small, windows=1)
    rungs += [_Rung(small, False), _Rung(one, False), _Rung(one, False, True)]
    return rungs


def plan_for(rung: _Rung, costs: tuple[ArmCost, ArmCost], browser_ms: float, asked: Wishes) -> Fit:
    """The plan of one rung with its estimated time."""
    w = rung.wishes
    choices = []
    for cost in costs:
        warm = w.warmup_steps
        if rung.full_warmup and warm:
            warm = max(warm, math.ceil(w.warmup_ms / max(cost.step_ms, 1e-6)))
            warm = min(warm, max(w.warmup_steps, 10 * w.max_steps_per_window))
        k = 1 if rung.single_step else steps_per_window(cost, w)
        if rung.full_warmup:
            wished = asked.warmup_steps + asked.windows * k
            warm = max(warm, min(asked.least_steps, wished) - w.windows * k)
        choices.append(Choice(warm, w.windows, k))
    slots = [
        cost.overhead_ms + choice.total_steps * cost.step_ms
        for cost, choice in zip(costs, choices, strict=True)
    ]
    # Four slots a block, a priming slot of the cheaper arm, a fresh browser.
    block_ms = 2 * slots[0] + 2 * slots[1] + min(slots) + browser_ms
    reductions = []
    if w.blocks < asked.blocks:
        reductions.append(f"blocks {asked.blocks} → {w.blocks}")
    if w.windows < asked.windows:
        reductions.append(f"windows per slot {asked.windows} → {w.windows}")
    if not rung.full_warmup:
        reductions.append(f"warm-up cut to {counted(w.warmup_steps, 'step')}")
    if rung.single_step:
        reductions.append("one step per window")
    return Fit(w.blocks, (choices[0], choices[1]), w.blocks * block_ms, tuple(reductions))

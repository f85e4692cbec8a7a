"""The order of slots, and what fits a budget."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.schedule import (
    ABBA,
    BAAB,
    ArmCost,
    Choice,
    Fit,
    Wishes,
    block_orders,
    fit,
    least,
    more_blocks,
    staged_orders,
    steps_per_window,
)

wishes = st.builds(
    Wishes,
    blocks=st.integers(1, 13),
    windows=st.integers(1, 9),
    warmup_steps=st.integers(0, 30),
    warmup_ms=st.floats(0, 5000),
    window_ms=st.floats(1, 2000),
    max_steps_per_window=st.integers(1, 500),
    least_steps=st.integers(0, 20),
)
cost = st.builds(
    ArmCost,
    step_ms=st.floats(0.01, 1e5),
    readback_ms=st.floats(0, 20),
    overhead_ms=st.floats(0, 5000),
)
costs = st.tuples(cost, cost)

RICH = Wishes(
    blocks=8, windows=5, warmup_steps=10, warmup_ms=0, window_ms=500, max_steps_per_window=100
)
EVEN = (ArmCost(50, 0.1, 1000), ArmCost(25, 0.1, 1000))


# --------------------------------------------------------------------------- order


@given(st.integers(0, 40), st.integers(0, 2**53 - 1))
def test_both_orders_come_in_equal_numbers(pairs: int, seed: int) -> None:
    assert Counter(block_orders(2 * pairs, seed)) == Counter({ABBA: pairs, BAAB: pairs})
    odd = Counter(block_orders(2 * pairs + 1, seed))
    assert (odd[ABBA], odd[BAAB]) == (pairs + 1, pairs)


@given(st.integers(1, 20), st.integers(0, 2**53 - 1))
def test_the_order_comes_from_the_seed(blocks: int, seed: int) -> None:
    assert block_orders(blocks, seed) == block_orders(blocks, seed)


def test_seeds_shuffle_differently_and_evenly() -> None:
    drawn = [block_orders(6, seed) for seed in range(400)]
    assert len(set(drawn)) == math.comb(6, 3)  # every arrangement of three and three
    assert 150 <= sum(orders[0] == ABBA for orders in drawn) <= 250


def test_the_order_is_the_same_everywhere() -> None:
    # A receipt's seed must give its order on another machine and version.
    drawn = " ".join("".join(order) for order in block_orders(6, 11))
    assert drawn == "ABBA BAAB BAAB BAAB ABBA ABBA"


@given(st.integers(0, 30), st.integers(0, 2**53 - 1))
def test_two_stages_are_balanced_after_every_pair(pairs: int, seed: int) -> None:
    most = 6 + 2 * pairs
    orders = staged_orders(6, most, seed)
    assert len(orders) == most
    assert orders[:6] == block_orders(6, seed)
    for n in range(6, most + 1, 2):
        assert Counter(orders[:n]) == Counter({ABBA: n // 2, BAAB: n // 2})


def test_a_later_pair_does_not_depend_on_how_many_there_may_be() -> None:
    drawn = {staged_orders(6, 8, seed)[6:] for seed in range(50)}
    assert drawn == {(ABBA, BAAB), (BAAB, ABBA)}


@pytest.mark.parametrize(
    ("left_ms", "blocks", "pilot"), [(7000, 6, 6), (8000, 8, 6), (9999, 8, 6), (1e9, 60, 6)]
)
def test_a_budget_for_later_blocks(left_ms: float, blocks: int, pilot: int) -> None:
    shape = Fit(6, (Choice(1, 5, 1), Choice(1, 5, 1)), 6000.0, ())
    got = more_blocks(shape, 6, 60, left_ms)
    assert (got.blocks, got.pilot, got.estimated_ms) == (blocks, pilot, 1000.0 * blocks)


def test_a_budget_too_small_for_the_pilot_fixes_the_blocks() -> None:
    shape = Fit(4, (Choice(1, 3, 1), Choice(1, 3, 1)), 4000.0, ("blocks 6 → 4", "windows"))
    got = more_blocks(shape, 6, 60, 1e9)
    assert (got.blocks, got.pilot) == (4, None)
    assert got.reductions == ("blocks auto → 4", "windows")


# --------------------------------------------------------------------------- windows


@given(cost, wishes)
def test_a_window_is_long_enough_or_at_its_cap(arm: ArmCost, asked: Wishes) -> None:
    k = steps_per_window(arm, asked)
    wanted = max(asked.window_ms, 50 * arm.readback_ms)
    assert 1 <= k <= asked.max_steps_per_window
    assert k * arm.step_ms >= wanted * (1 - 1e-9) or k == asked.max_steps_per_window
    assert k == 1 or (k - 1) * arm.step_ms < wanted * (1 + 1e-9)


def test_windows_of_known_arms() -> None:
    assert steps_per_window(ArmCost(600, 0.1, 0), RICH) == 1  # slower than a window
    assert steps_per_window(ArmCost(50, 0.1, 0), RICH) == 10  # 500 ms
    assert steps_per_window(ArmCost(50, 20, 0), RICH) == 20  # 50 readbacks of 20 ms
    assert steps_per_window(ArmCost(0, 0, 0), RICH) == 100  # capped


# --------------------------------------------------------------------------- budget


@given(wishes, costs, st.floats(0, 10_000), st.floats(0, 1e7))
def test_a_plan_keeps_its_budget_or_there_is_none(
    asked: Wishes, arms: tuple[ArmCost, ArmCost], browser_ms: float, left_ms: float
) -> None:
    plan, smallest = fit(asked, arms, browser_ms, left_ms), least(asked, arms, browser_ms)
    if plan is None:
        assert smallest.estimated_ms > left_ms
        return
    assert plan.estimated_ms <= left_ms
    assert smallest.estimated_ms <= plan.estimated_ms
    assert 1 <= plan.blocks <= asked.blocks
    for choice in plan.choices:
        assert 1 <= choice.windows <= asked.windows
        assert 1 <= choice.steps_per_window <= asked.max_steps_per_window


@given(wishes, costs, st.lists(st.floats(0, 1e7), min_size=2, max_size=6))
def test_more_time_never_measures_less(
    asked: Wishes, arms: tuple[ArmCost, ArmCost], budgets: list[float]
) -> None:
    plans = [fit(asked, arms, 3000, budget) for budget in sorted(budgets)]
    sizes = [work(plan) for plan in plans]
    assert sizes == sorted(sizes)


def work(plan: Fit | None) -> tuple[float, float]:
    if plan is None:
        return (0, 0)
    windows = sum(choice.windows * choice.steps_per_window for choice in plan.choices)
    return (plan.blocks * windows, plan.estimated_ms)


def estimate_by_hand(plan: Fit, arms: tuple[ArmCost, ArmCost], browser_ms: float) -> float:
    a, b = (
        arm.overhead_ms
        + (choice.warmup_steps + choice.windows * choice.steps_per_window) * arm.step_ms
        for arm, choice in zip(arms, plan.choices, strict=True)
    )
    return plan.blocks * (browser_ms + min(a, b) + 2 * a + 2 * b)


@given(wishes, costs, st.floats(0, 1e4), st.floats(0, 1e7))
def test_the_estimate_counts_four_slots_a_priming_slot_and_a_browser(
    asked: Wishes, arms: tuple[ArmCost, ArmCost], browser_ms: float, left_ms: float
) -> None:
    plan = fit(asked, arms, browser_ms, left_ms) or least(asked, arms, browser_ms)
    assert plan.estimated_ms == pytest.approx(estimate_by_hand(plan, arms, browser_ms))


def ladder(asked: Wishes, arms: tuple[ArmCost, ArmCost]) -> list[Fit]:
    """All plans that some budget gives, richest first."""
    plans = []
    plan = fit(asked, arms, 3000, math.inf)
    while plan is not None:
        plans.append(plan)
        plan = fit(asked, arms, 3000, math.nextafter(plan.estimated_ms, 0))
    return plans


def test_the_rungs_are_those_of_the_rule() -> None:
    rungs = [
        (plan.blocks, a.windows, a.warmup_steps, a.steps_per_window)
        for plan in ladder(RICH, EVEN)
        for a in plan.choices[:1]
    ]
    assert rungs == [
        (8, 5, 10, 10),  # as the preset says
        (8, 3, 10, 10),  # 3 windows
        (6, 3, 10, 10),  # fewer blocks, by two,
        (4, 3, 10, 10),  # down to 4
        (4, 2, 10, 10),  # 2 windows
        (2, 2, 10, 10),  # 2 blocks
        (1, 2, 10, 10),  # 1 block
        (1, 2, 1, 10),  # 1 warm-up step
        (1, 1, 1, 10),  # 1 window
        (1, 1, 1, 1),  # 1 step a window
    ]


def test_every_reduction_is_said() -> None:
    plans = ladder(RICH, EVEN)
    assert plans[0].reductions == ()
    assert plans[1].reductions == ("windows per slot 5 → 3",)
    assert plans[-1] == least(RICH, EVEN, 3000)
    assert plans[-1].reductions == (
        "blocks 8 → 1",
        "windows per slot 5 → 1",
        "warm-up cut to 1 step",
        "one step per window",
    )


def test_the_least_warmup_time_is_kept_until_the_warmup_is_cut() -> None:
    asked = Wishes(
        blocks=2, windows=2, warmup_steps=2, warmup_ms=1000, window_ms=100, max_steps_per_window=50
    )
    plans = ladder(asked, EVEN)
    assert [choice.warmup_steps for choice in plans[0].choices] == [20, 40]
    assert [choice.warmup_steps for choice in plans[-1].choices] == [1, 1]
    assert plans[0].longest == 40 + 2 * 4


def test_a_cut_slot_still_tells_whether_it_learns() -> None:
    asked = Wishes(
        blocks=6, windows=10, warmup_steps=2, warmup_ms=0, window_ms=500, max_steps_per_window=50,
        least_steps=8,
    )  # fmt: skip
    arms = (ArmCost(50, 0.1, 1000), ArmCost(600, 1.0, 1000))  # windows of 10 steps and of one
    slow = [plan.choices[1] for plan in ladder(asked, arms)]
    kept = [choice for choice in slow if choice.warmup_steps > 1]
    assert {choice.total_steps for choice in kept} == {12, 8}
    assert slow[-1].total_steps == 2
    few = Wishes(
        blocks=1, windows=2, warmup_steps=0, warmup_ms=0, window_ms=500, max_steps_per_window=1,
        least_steps=8,
    )  # fmt: skip
    assert {plan.longest for plan in ladder(few, arms)} == {2, 1}  # nobody asked for more

"""Ratios and intervals: against other computations, and by simulating thousands of benchmarks."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import receipts
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from driver import stats
from driver.records import BlockValue, Estimate, Side, Slot
from driver.schedule import block_orders

ORDERS = ("ABBA", "BAAB")


def values(by_order: Sequence[Sequence[float]]) -> list[BlockValue]:
    pairs = [(order, x) for order, xs in zip(ORDERS, by_order, strict=True) for x in xs]
    return [BlockValue(block=i, order=order, log_ratio=x) for i, (order, x) in enumerate(pairs)]


def estimate(*by_order: Sequence[float], margin: float = 0.02) -> Estimate:
    return stats.estimate(values(by_order), margin, None)


def slot(side: Side, windows: Sequence[float], k: int = 1, **changes: Any) -> Slot:
    built = receipts.parts(blocks=1).slots[0]
    fields = {"side": side, "windows_ms": list(windows), "steps_per_window": k} | changes
    return built.model_copy(update=fields)


# --------------------------------------------------------------------------- the interval


@pytest.mark.parametrize("n", [4, 6, 10])
def test_against_a_regression_on_the_order(n: int) -> None:
    # A crossover's treatment effect is the intercept of a regression on the order coded ±1.
    rng = np.random.default_rng(n)
    first, second = rng.normal(0.3, 0.05, n // 2), rng.normal(0.35, 0.05, n // 2)
    got = estimate(first, second)
    y, x = np.concatenate([first, second]), np.repeat([1.0, -1.0], n // 2)
    line = scipy.stats.linregress(x, y)
    assert math.log(got.ratio or 0) == pytest.approx(line.intercept, rel=1e-12)
    half = scipy.stats.t.isf(0.025, n - 2) * line.intercept_stderr
    assert math.log(got.low or 0) == pytest.approx(line.intercept - half, rel=1e-9)
    assert math.log(got.high or 0) == pytest.approx(line.intercept + half, rel=1e-9)
    assert (got.blocks, got.degrees_of_freedom, got.confidence) == (n, n - 2, 0.95)


@pytest.mark.parametrize("n", [4, 6, 10])
def test_against_a_two_sample_test(n: int) -> None:
    # With the second order's signs turned, the difference of means is twice the effect.
    rng = np.random.default_rng([n, 2])
    first, second = rng.normal(-0.1, 0.02, n // 2), rng.normal(-0.12, 0.02, n // 2)
    other = scipy.stats.ttest_ind(first, -second).confidence_interval(0.95)
    got = estimate(first, second)
    assert math.log(got.low or 0) == pytest.approx(other.low / 2, rel=1e-9)
    assert math.log(got.high or 0) == pytest.approx(other.high / 2, rel=1e-9)


def test_an_effect_of_the_order_does_not_widen_the_interval() -> None:
    plain = estimate([0.1, 0.12, 0.11], [0.1, 0.12, 0.11])
    shifted = estimate([0.6, 0.62, 0.61], [-0.4, -0.38, -0.39])
    assert shifted.ratio == pytest.approx(plain.ratio)
    assert shifted.low == pytest.approx(plain.low)


@pytest.mark.parametrize(
    ("by_order", "why"),
    [
        (([0.2], []), "1 finished block:"),
        (([0.2], [0.4]), "2 finished blocks:"),
        (([0.2, 0.2], [0.4]), "3 finished blocks:"),
        (([0.2, 0.2, 0.2], [0.4, 0.4]), "5 finished blocks:"),
        (([0.2, 0.2, 0.2], [0.4]), "4 finished blocks:"),  # unequal orders
        (([0.2] * 4, []), "4 finished blocks:"),
        (([0.2] * 4, [0.4] * 2), "6 finished blocks:"),
    ],
)
def test_a_ratio_without_an_interval(by_order: Any, why: str) -> None:
    got = estimate(*by_order)
    centre = np.mean([np.mean(xs) for xs in by_order if xs])
    assert got.ratio == pytest.approx(math.exp(centre))
    assert (got.low, got.high, got.degrees_of_freedom, got.word) == (None, None, None, "unsure")
    assert (got.reason or "").startswith(why)


def test_no_block_no_ratio() -> None:
    blocks = [BlockValue(block=0, order="ABBA", log_ratio=None, reason="x")]
    for got in (stats.estimate([], 0.02, None), stats.estimate(blocks, 0.02, 1.5)):
        assert (got.ratio, got.low, got.high, got.blocks) == (None, None, None, 0)
        assert (got.word, got.reason) == ("unsure", "no block finished")


def test_blocks_without_a_value_do_not_count() -> None:
    blocks = [*values([[0.1, 0.2], [0.1, 0.2]]), BlockValue(block=9, order="ABBA", log_ratio=None)]
    assert stats.estimate(blocks, 0.02, None) == estimate([0.1, 0.2], [0.1, 0.2])


# --------------------------------------------------------------------------- words


INSIDE = math.log1p(0.02)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-INSIDE, INSIDE, "equivalent"),
        (0.0, 0.0, "equivalent"),
        (0.001, INSIDE, "equivalent"),
        (0.001, math.nextafter(INSIDE, 1), "faster"),
        (0.0, math.nextafter(INSIDE, 1), "unsure"),
        (-0.001, 0.5, "unsure"),
        (0.4, 0.5, "faster"),
        (-0.5, -0.4, "slower"),
        (math.nextafter(-INSIDE, -1), -0.001, "slower"),
        (math.nextafter(-INSIDE, -1), 0.0, "unsure"),
        (-math.inf, math.inf, "unsure"),
        (math.nan, math.nan, "unsure"),
    ],
)
def test_words_at_their_borders(low: float, high: float, word: str) -> None:
    assert stats.word_for(low, high, 0.02) == word


def test_a_takes_longer_means_that_b_is_faster() -> None:
    assert estimate([0.69, 0.70], [0.69, 0.70]).word == "faster"
    assert estimate([-0.69, -0.70], [-0.69, -0.70]).word == "slower"
    assert estimate([0.001, -0.001], [0.001, -0.001]).word == "equivalent"
    assert estimate([0.5, -0.5], [0.5, -0.5]).word == "unsure"


# --------------------------------------------------------------------------- slots and blocks


def test_a_slot_is_its_median_window_over_its_steps() -> None:
    assert stats.step_ms(slot("A", [40, 48, 1000], k=4)) == 12.0
    assert stats.step_ms(slot("A", [40, 48], k=4)) == 11.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -3.0])
def test_a_window_that_is_no_time_spoils_its_slot(bad: float) -> None:
    assert stats.step_ms(slot("A", [40, bad, 40])) is None
    assert stats.step_ms(slot("A", [bad])) is None
    four = [slot("A", [40]), slot("B", [20, bad]), slot("B", [20]), slot("A", [40])]
    value = stats.block_value(0, "ABBA", four)
    assert value.log_ratio is None
    assert value.reason == "3 of 4 slots have usable windows"


def test_no_window_no_time() -> None:
    assert stats.step_ms(slot("A", [])) is None


def test_a_block_is_a_ratio_of_geometric_means() -> None:
    four = [slot("A", [40]), slot("B", [10]), slot("B", [40]), slot("A", [90])]
    value = stats.block_value(3, "ABBA", four)
    assert (value.block, value.order) == (3, "ABBA")
    assert math.exp(value.log_ratio or 0) == pytest.approx(math.sqrt(40 * 90) / math.sqrt(10 * 40))


@pytest.mark.parametrize("missing", range(4))
def test_a_block_with_a_missing_or_failed_slot_has_no_value(missing: int) -> None:
    four = [slot(side, [10]) for side in ("A", "B", "B", "A")]  # type: ignore[arg-type]
    failed = four[missing].model_copy(update={"status": "failed"})
    for three in (
        four[:missing] + four[missing + 1 :],
        [*four[:missing], failed, *four[missing + 1 :]],
    ):
        value = stats.block_value(0, "ABBA", three)
        assert value.log_ratio is None
        assert value.reason == "3 of 4 slots have usable windows"


@given(st.floats(-0.2, 0.2), st.floats(0.1, 10), st.sampled_from(ORDERS))
def test_a_linear_drift_cancels_in_a_block(drift: float, ratio: float, order: str) -> None:
    # Linear on the log scale: every slot takes exp(drift) times as long as the one before.
    base = {"A": ratio, "B": 1.0}
    four = [
        slot(side, [base[side] * math.exp(drift * i)])  # type: ignore[arg-type]
        for i, side in enumerate(order)
    ]
    assert stats.block_value(0, order, four).log_ratio == pytest.approx(math.log(ratio), abs=1e-12)


# --------------------------------------------------------------------------- whole runs


def test_compare_of_a_run() -> None:
    run = receipts.parts(blocks=4)
    found = stats.compare(run.plan, run.reference, run.slots)
    assert [block.order for block in found.blocks] == ["".join(o) for o in run.plan.order]
    assert found.estimate.ratio == pytest.approx(2.0, rel=0.02)
    assert found.estimate.word == "faster"
    medians = {
        side: np.median([w for s in run.slots if s.side == side for w in s.windows_ms]) / 4
        for side in ("A", "B")
    }
    assert [arm.median_step_ms for arm in found.arms] == pytest.approx([*medians.values()])
    assert found.estimate.median_ratio == pytest.approx(medians["A"] / medians["B"])
    assert found.arms[0].slots == 8
    assert found.arms[0].windows == 8 * receipts.WINDOWS
    # 6·N·(params − T·C) + 12·L·N·T·C with N = 6, params = 212, T·C = 12.
    flops = 6 * 6 * (212 - 12) + 12 * 6 * 12
    assert found.arms[0].gflops == pytest.approx(flops / (medians["A"] * 1e6))
    a = next(s for s in run.slots if s.side == "A")
    assert (found.arms[0].first_loss, found.arms[0].last_loss) == (a.losses[0], a.losses[-1])


def test_compare_counts_steps_per_window() -> None:
    # One arm with twice the steps in twice the time is the same arm.
    run = receipts.parts(names=("wasm", "wasm"), blocks=4, noise=0.0)
    slots = tuple(
        s.model_copy(update={"steps_per_window": 8}) if s.side == "A" else s for s in run.slots
    )
    found = stats.compare(run.plan, run.reference, slots)
    assert found.estimate.ratio == pytest.approx(1.0)
    assert found.estimate.word == "equivalent"


def test_compare_of_nothing() -> None:
    run = receipts.parts()
    found = stats.compare(run.plan, run.reference, [])
    assert found.estimate.ratio is None
    assert found.estimate.median_ratio is None
    assert [arm.median_step_ms for arm in found.arms] == [None, None]
    assert found.drift.loss is None


def test_a_fake_arm_has_no_gflops() -> None:
    run = receipts.parts(names=("null", "null"))
    assert [arm.gflops for arm in stats.compare(run.plan, run.reference, run.slots).arms] == [
        None,
        None,
    ]


def test_all_blocks_enter_the_estimate() -> None:
    run = receipts.parts(blocks=4)
    spoilt = replace(run).with_slot(5, windows_ms=[4000.0] * receipts.WINDOWS)
    before, after = (stats.compare(r.plan, r.reference, r.slots) for r in (run, spoilt))
    assert after.estimate.blocks == before.estimate.blocks == 4
    assert after.estimate.ratio != pytest.approx(before.estimate.ratio, rel=0.05)


# --------------------------------------------------------------------------- simulation


def simulated(truth: float, runs: int, seed: int, order_effect: float = 0.0) -> list[Estimate]:
    """`runs` benchmarks of 6 blocks with Gaussian noise between blocks."""
    rng = np.random.default_rng(seed)
    found = []
    for run in range(runs):
        blocks = []
        for index, order in enumerate(block_orders(6, run)):
            name = "".join(order)
            off = order_effect if name == "ABBA" else -order_effect
            x = truth + off + 0.03 * rng.standard_normal()
            blocks.append(BlockValue(block=index, order=name, log_ratio=float(x)))
        found.append(stats.estimate(blocks, 0.02, None))
    return found


@pytest.mark.parametrize("order_effect", [0.0, 0.1])
def test_intervals_cover_what_they_say(order_effect: float) -> None:
    truth = 0.4
    runs = simulated(truth, 2000, seed=20261130, order_effect=order_effect)
    inside = [(e.low or 0) <= math.exp(truth) <= (e.high or 0) for e in runs]
    assert 0.935 <= np.mean(inside) <= 0.965


def test_an_aa_run_rarely_finds_a_difference() -> None:
    words = [e.word for e in simulated(0.0, 2000, seed=7)]
    assert np.mean([word in ("faster", "slower") for word in words]) <= 0.062


def test_a_difference_of_a_tenth_is_found() -> None:
    words = [e.word for e in simulated(math.log(1.1), 500, seed=8)]
    assert np.mean([word == "faster" for word in words]) > 0.9
    assert "slower" not in words


def test_simulated_machines_that_drift() -> None:
    """Whole slots: noise per slot, a machine that slows down by 40% over the run."""
    run = receipts.parts(names=("wasm", "wasm"), blocks=6)
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(60):
        slots = []
        for old in run.slots:
            t = (1.5 if old.side == "A" else 1.0) * math.exp(
                0.4 * old.index / len(run.slots) + 0.01 * rng.standard_normal()
            )
            slots.append(old.model_copy(update={"windows_ms": [t, t, t]}))
        found = stats.compare(run.plan, run.reference, slots).estimate
        ratios.append(found.ratio or 0)
        assert (found.high or 9) / (found.low or 1) < 1.05  # the drift is not noise to it
    assert np.mean(ratios) == pytest.approx(1.5, rel=0.002)

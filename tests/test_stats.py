"""Ratios and intervals: against other computations, and by simulating thousands of benchmarks."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import receipts
import scipy.stats
import simulation
from hypothesis import given
from hypothesis import strategies as st

from driver import power, stats
from driver.plan import SUSPECTS
from driver.records import AutoBlocks, BlockValue, Estimate, Side, Slot, SlotEvent
from driver.schedule import block_orders, staged_orders

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


# --------------------------------------------------------------------------- what blocks can tell


@pytest.mark.parametrize("wanted", power.POWERS)
@pytest.mark.parametrize("blocks", [4, 6, 20])
def test_the_detectable_difference_is_detected_that_often(blocks: int, wanted: float) -> None:
    df, sd = blocks - 2, 0.03
    change = power.detectable(sd, blocks, df, wanted)
    rng = np.random.default_rng([blocks, int(100 * wanted)])
    means = change + sd / math.sqrt(blocks) * rng.standard_normal(20_000)
    deviations = sd * np.sqrt(rng.chisquare(df, 20_000) / df)
    found = np.abs(means) > power.t_quantile(df) * deviations / math.sqrt(blocks)
    assert np.mean(found) == pytest.approx(wanted, abs=0.01)


def test_an_estimate_tells_what_it_could_have_found() -> None:
    got = estimate([0.01, 0.03, 0.02], [0.01, 0.03, 0.02])
    want = power.detectable(0.01, 6, 4, 0.8)
    assert got.detectable_80 == pytest.approx(math.expm1(want))
    assert (got.detectable_95 or 0) > (got.detectable_80 or 0)
    assert estimate([0.1], [0.1]).detectable_80 is None
    assert estimate([0.1, 0.1], [0.1, 0.1]).detectable_80 == 0


# --------------------------------------------------------------------------- two stages


def staged_plan(most: int = 20) -> Any:
    plan = receipts.parts(names=("wasm", "wasm"), blocks=6).plan
    rule = AutoBlocks(pilot=6, most=most, difference=0.02, power=0.95, rule="")
    return plan.model_copy(update={"order": staged_orders(6, most, 3), "auto": rule})


def pilot_of(sd: float) -> list[BlockValue]:
    """Six blocks with a within-order deviation of `sd`."""
    return values([[0.1 - sd, 0.1, 0.1 + sd], [0.2 - sd, 0.2, 0.2 + sd]])


@pytest.mark.parametrize(
    ("sd", "blocks"), [(0.0, 6), (0.001, 6), (0.012, 10), (0.0122, 10), (0.015, 14), (0.3, 20)]
)
def test_the_pilots_variance_asks_for_blocks(sd: float, blocks: int) -> None:
    found = stats.stein(staged_plan(), pilot_of(sd))
    assert found is not None
    assert found.blocks == blocks
    assert found.pilot_sd == pytest.approx(sd)
    asked = ((2.776445 + 2.131847) * sd / math.log(1.02)) ** 2
    assert blocks == min(20, max(6, 2 * math.ceil(asked / 2)))
    assert ("within the budget" in found.reason) == (sd == 0.3)


def test_later_blocks_do_not_change_how_many_there_are() -> None:
    plan, pilot = staged_plan(), pilot_of(0.012)
    later = [
        BlockValue(block=6 + i, order="".join(order), log_ratio=9.0 * i)
        for i, order in enumerate(plan.order[6:])
    ]
    assert stats.stein(plan, [*pilot, *later]) == stats.stein(plan, pilot)


def test_a_pilot_that_did_not_finish_asks_for_nothing_more() -> None:
    found = stats.stein(staged_plan(), pilot_of(0.5)[:5])
    assert found is not None
    assert (found.blocks, found.pilot_sd) == (6, None)
    assert found.reason == "5 of 6 pilot blocks finished"


def test_no_stages_where_the_number_was_fixed() -> None:
    assert stats.stein(receipts.parts().plan, pilot_of(0.1)) is None


def test_the_interval_keeps_the_pilots_variance() -> None:
    calm = values([[0.1, 0.1], [0.2, 0.2]])
    got = stats.estimate([*pilot_of(0.01), *calm], 0.02, None, 6)
    assert (got.blocks, got.degrees_of_freedom, got.reason) == (10, 4, None)
    half = math.log((got.high or 0) / (got.low or 1)) / 2
    assert half == pytest.approx(2.776445 * 0.01 / math.sqrt(10), rel=1e-6)


def test_a_pilot_that_saw_no_disturbance_does_not_promise_what_later_blocks_break() -> None:
    wild = values([[0.0, 0.5], [0.2, 0.9]])
    got = stats.estimate([*pilot_of(0.01), *wild], 0.02, None, 6)
    plain = stats.estimate([*pilot_of(0.01), *wild], 0.02, None)
    assert (got.low, got.high, got.degrees_of_freedom) == (plain.low, plain.high, 8)
    assert "later blocks vary more" in (got.reason or "")


def test_a_run_of_two_stages_is_computed_again_from_its_slots() -> None:
    run = receipts.parts(names=("wasm", "wasm"), blocks=6, noise=0.0)
    rule = AutoBlocks(pilot=6, most=20, difference=0.02, power=0.95, rule="")
    order = (*run.plan.order, *staged_orders(6, 20, 3)[6:])
    plan = run.plan.model_copy(update={"order": order, "auto": rule})
    found = stats.compare(plan, run.reference, run.slots)
    assert found.auto is not None
    assert found.auto.blocks == len(found.blocks) == 6
    assert stats.planned_blocks(plan, run.slots) == stats.planned_blocks(plan, []) == 6


# --------------------------------------------------------------------------- suspect blocks


def suspect_run(index: int, **changes: Any) -> Any:
    run = receipts.parts(blocks=6).with_slot(index, **changes).with_plan(suspects=SUSPECTS)
    return stats.compare(run.plan, run.reference, run.slots)


def test_no_suspect_block_no_second_estimate() -> None:
    found = suspect_run(0)
    assert found.sensitivity is None
    assert all(block.suspect == () for block in found.blocks)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sentinel_ms": [4.0, 4.2]}, "slot 9: the machine's sentinel took 1.34 times the usual"),
        ({"sentinel_ms": [2.0]}, "sentinel took 0.66 times"),
        ({"events": [SlotEvent(kind="hidden", message="once hidden")]}, "slot 9: hidden"),
    ],
)
def test_a_suspect_block_stays_in_the_estimate(changes: dict[str, Any], words: str) -> None:
    before, found = suspect_run(9), suspect_run(9, **changes)
    assert [bool(block.suspect) for block in found.blocks] == [i == 2 for i in range(6)]
    assert words in found.blocks[2].suspect[0]
    assert found.estimate == before.estimate
    assert found.sensitivity is not None
    assert (found.sensitivity.blocks, found.sensitivity.degrees_of_freedom) == (5, 3)
    assert found.sensitivity.ratio == pytest.approx(2.0, rel=0.02)


def test_slots_without_a_sentinel_are_not_suspect() -> None:
    assert suspect_run(9, sentinel_ms=[]).sensitivity is None
    assert suspect_run(9, sentinel_ms=[math.nan]).sensitivity is None


def test_too_few_blocks_are_left_for_an_interval() -> None:
    marked = [b.model_copy(update={"suspect": ("x",)}) for b in pilot_of(0.1)[:3]]
    got = stats.sensitivity([*marked, *pilot_of(0.1)[3:]], 0.02)
    assert got is not None
    assert (got.blocks, got.low, got.word) == (3, None, "unsure")
    assert "at least 4 of both orders" in (got.reason or "")


def test_a_sensitivity_of_unequal_orders_is_a_regression_on_the_order() -> None:
    first, second = [0.3, 0.31, 0.33], [0.5, 0.52]
    marked = BlockValue(block=9, order="BAAB", log_ratio=7.0, suspect=("x",))
    got = stats.sensitivity([*values([first, second]), marked], 0.02)
    assert got is not None
    other = scipy.stats.ttest_ind(first, [-x for x in second]).confidence_interval(0.95)
    assert math.log(got.low or 0) == pytest.approx(other.low / 2, rel=1e-9)
    assert math.log(got.high or 0) == pytest.approx(other.high / 2, rel=1e-9)


# --------------------------------------------------------------------------- models of noise


def holds(row: simulation.Row, runs: int) -> None:
    """The targets, widened by what chance allows `runs` runs over the 2000 of the full size."""
    slack = 2.6 * math.sqrt(0.05 * 0.95) * (1 / math.sqrt(runs) - 1 / math.sqrt(2000))
    assert row.coverage >= 0.935 - slack, row
    assert row.coverage <= 0.965 + slack or row.model != "Gaussian", row
    assert row.false_positives <= 0.062 + slack, row


@pytest.mark.parametrize("auto", [False, True], ids=["fixed", "auto"])
@pytest.mark.parametrize("model", simulation.MODELS)
def test_simulated_benchmarks(model: str, auto: bool) -> None:
    holds(simulation.row(model, auto, 200), 200)


@pytest.mark.slow
@pytest.mark.parametrize("auto", [False, True], ids=["fixed", "auto"])
@pytest.mark.parametrize("model", simulation.MODELS)
def test_two_thousand_simulated_benchmarks(model: str, auto: bool) -> None:
    holds(simulation.row(model, auto, 2000), 2000)


def test_a_linear_drift_changes_no_simulated_estimate() -> None:
    for i in range(20):
        drifting, steady = (
            simulation.benchmark(noise, False, 0.1, (i,))
            for noise in (simulation.linear_drift, simulation.gaussian)
        )
        assert drifting.low == pytest.approx(steady.low, rel=1e-12)
        assert drifting.high == pytest.approx(steady.high, rel=1e-12)


def test_a_slowdown_of_a_twentieth_is_found() -> None:
    assert simulation.power_at(0.02, 0.05, 1000) >= 0.98

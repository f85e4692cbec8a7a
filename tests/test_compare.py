"""Two receipts: what is proved, what is not, and what is refused."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from receipts import MS, Parts, parts, timed

from driver.calibration import (
    calibration_key,
    calibration_of,
    calibration_run,
    minimum_effect,
    recommended_blocks,
)
from driver.compare import changes_of, compare_receipts, larger
from driver.errors import UsageError
from driver.receipt import examine, parse
from driver.records import BY_HAND, Calibration, CalibrationRun, Receipt, Slot

MARGIN = 0.02


def sealed(run: Parts) -> Receipt:
    return parse(run.sealed())


def scaled(run: Parts, a: float = 1.0, b: float = 1.0) -> Parts:
    """The same run with the times of either side multiplied."""
    factor = {"A": a, "B": b}
    slots: list[Slot] = [
        slot.model_copy(update=timed(ms * factor[slot.side] for ms in slot.windows_ms))
        for slot in run.slots
    ]
    return replace(run, slots=tuple(slots))


def noise(receipt: Receipt, which: int = 0, sd: float = 0.002, runs: int = 12) -> Calibration:
    """A calibration of one arm whose runs differ by about `sd`."""
    rng = np.random.default_rng(5)
    start = datetime(2026, 11, 1, tzinfo=UTC)
    made = [
        CalibrationRun(
            utc=(start + timedelta(days=i)).isoformat(), receipt_digest="d", blocks=6,
            word="equivalent", log_step_ms=math.log(40) + float(rng.normal(0, sd)),
            log_ratio=float(rng.normal(0, sd)), within_sd=sd,
        )
        for i in range(runs)
    ]  # fmt: skip
    return calibration_of(calibration_key(receipt.plan, receipt.environment, which), MARGIN, made)


BASE = parts(noise=0.002, blocks=6)


def words(new: Parts, sd: float | None = 0.002, base: Parts = BASE) -> dict[str, str]:
    one, two = sealed(base), sealed(new)
    known = [None if sd is None else noise(one, i, sd) for i in (0, 1)]
    return {c.of: c.word for c in compare_receipts(one, two, MARGIN, known).changes}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1.0, 1.0, ("equivalent", "equivalent", "equivalent")),
        (1.0, 1.05, ("equivalent", "regression", "regression")),
        (1.0, 0.9, ("equivalent", "improvement", "improvement")),
        (1.1, 1.1, ("regression", "regression", "equivalent")),
        (1.1, 1.0, ("regression", "equivalent", "improvement")),
        # A gained: that B lost against it is no fault of B's.
        (0.9, 1.0, ("improvement", "equivalent", "unsure")),
        (1.0, 1.02, ("equivalent", "unsure", "unsure")),
    ],
)
def test_words(a: float, b: float, expected: tuple[str, str, str]) -> None:
    assert tuple(words(scaled(BASE, a, b)).values()) == expected


def test_without_a_calibration_nothing_is_proved() -> None:
    one, two = sealed(BASE), sealed(scaled(BASE, 3.0, 1.0))
    found = compare_receipts(one, two, MARGIN, (None, None))
    assert {c.word for c in found.changes} == {"unsure"}
    assert not found.regressed
    for change in found.changes:
        assert change.reason and "driver calibrate" in change.reason
        assert change.low and change.between_run_sd is None


def test_noise_between_runs_widens_the_interval() -> None:
    assert words(scaled(BASE, 1.0, 1.05))["B"] == "regression"
    assert words(scaled(BASE, 1.0, 1.05), sd=0.05)["B"] == "unsure"


def test_blocks_alone_do_not_make_an_interval_narrow() -> None:
    """However many blocks: what a run as a whole is off by stays."""
    many = parts(noise=1e-6, blocks=40)
    one = sealed(many)
    (a, _, _) = changes_of(one, one, MARGIN, [noise(one, i, 0.03) for i in (0, 1)])
    assert a.change == 1.0
    assert a.low and a.high and a.high / a.low > 1.05


@pytest.mark.parametrize("blocks", [1])
def test_too_few_blocks(blocks: int) -> None:
    run = parts(blocks=blocks)
    assert set(words(scaled(run, 2.0), base=run).values()) == {"unsure"}


def test_the_false_alarm_rate() -> None:
    """Simulated pairs of runs that differ by between-run noise alone, and pairs with a real change.

    With an interval of 95% and a margin no false alarm is expected more often than 2.5%.
    """
    rng = np.random.default_rng(11)
    base = sealed(parts(noise=0.01, blocks=6))
    alarms = found = 0
    for _ in range(300):
        sd = 0.01
        runs = [
            CalibrationRun(
                utc="2026-11-01T00:00:00+00:00", receipt_digest="d", blocks=6, word="unsure",
                log_step_ms=float(rng.normal(0, sd)), log_ratio=0.0, within_sd=0.01,
            )
            for _ in range(10)
        ]  # fmt: skip
        key = calibration_key(base.plan, base.environment, 0)
        known = calibration_of(key, MARGIN, runs)
        shift = float(rng.normal(0, sd) - rng.normal(0, sd))
        for true in (0.0, math.log(1.15)):
            new = _shifted(base, shift + true)
            change = next(iter(changes_of(base, new, MARGIN, [known, known])))
            alarms += true == 0 and change.word == "regression"
            found += true > 0 and change.word == "regression"
    assert alarms <= 8
    assert found >= 285


def _shifted(receipt: Receipt, log: float) -> Receipt:
    slots = tuple(
        slot.model_copy(update=timed(ms * math.exp(log) for ms in slot.windows_ms))
        for slot in receipt.slots
    )
    return receipt.model_copy(update={"slots": slots})


# --------------------------------------------------------------------------- refused


def _machine(run: Parts) -> Parts:
    return run.with_environment(machine=run.environment.machine | {"cpu": "Another CPU"})


def _by_hand(run: Parts) -> Parts:
    return run.with_environment(browser=run.environment.browser | {"source": BY_HAND})


def _browser(run: Parts) -> Parts:
    return run.with_environment(browser=run.environment.browser | {"version": "144.0.0"})


def _corpus(run: Parts) -> Parts:
    return run.with_plan(corpus=run.plan.corpus.model_copy(update={"sha256": "ff" * 32}))


def _preset(run: Parts) -> Parts:
    return run.with_plan(preset=run.plan.preset | {"name": "other"})


def _config(run: Parts) -> Parts:
    return run.with_plan(config=run.plan.config.model_copy(update={"lr": 1e-3}))


def _threads(run: Parts) -> Parts:
    a, b = run.plan.arms
    other = a.model_copy(update={"options": a.options | {"threads": 1}})
    return run.with_plan(arms=(other, b))


def _adapter(run: Parts) -> Parts:
    assert run.environment.adapter
    return run.with_environment(adapter=run.environment.adapter | {"architecture": "ampere"})


def _failed(run: Parts) -> Parts:
    return run.with_slot(0, losses=[math.nan] * len(run.slots[0].losses))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_machine, "Another CPU"), (_browser, "chromium 144"), (_corpus, "corpora"),
        (_by_hand, "opened by hand"),
        (_preset, "presets 'mini' and 'other'"), (_config, "lr 0.0003 and 0.001"),
        (_threads, "arm A is"), (_adapter, "adapters: architecture 'turing' and 'ampere'"),
        (_failed, "NEW's verdict is failed"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(change: Callable[[Parts], Parts], said: str) -> None:
    with pytest.raises(UsageError) as error:
        compare_receipts(sealed(BASE), sealed(change(BASE)), MARGIN, (None, None))
    assert said in str(error.value)
    assert error.value.exit_code == 2


def test_tiles_tuned_otherwise_are_a_remark() -> None:
    a, b = BASE.plan.arms
    one = BASE.with_plan(
        arms=(a.model_copy(update={"options": a.options | {"tile_fwd": "4x8"}}), b)
    )
    two = BASE.with_plan(
        arms=(a.model_copy(update={"options": a.options | {"tile_fwd": "6x8"}}), b)
    )
    found = compare_receipts(sealed(one), sealed(two), MARGIN, (None, None))
    assert "arm A was tuned otherwise in NEW: tile_fwd" in found.remarks


def test_days_apart_with_a_calibration_of_an_hour() -> None:
    later = BASE.with_plan(frozen_utc="2026-12-05T07:00:00.000000+00:00")
    one = sealed(BASE)
    hour = noise(one).runs[0]
    known = calibration_of(noise(one).key, MARGIN, [hour] * 5)
    found = compare_receipts(one, sealed(later), MARGIN, (known, known))
    assert any("other days" in remark for remark in found.remarks)


# --------------------------------------------------------------------------- calibrations


def test_a_calibration_from_a_receipt() -> None:
    receipt = sealed(parts(names=("wasm", "wasm"), blocks=6, noise=0.01))
    run = calibration_run(receipt)
    assert run and run.blocks == 6
    assert run.log_ratio == math.log(receipt.comparison.estimate.ratio or 0)
    assert math.exp(run.log_step_ms) == pytest.approx(math.sqrt(MS["A"] * MS["B"]) / 4, rel=0.02)
    assert calibration_run(sealed(parts(blocks=1))) is None


def test_false_positives_are_counted() -> None:
    key = noise(sealed(BASE)).key
    runs = [
        run.model_copy(update={"word": "slower" if i < 2 else "equivalent"})
        for i, run in enumerate(noise(sealed(BASE), runs=40).runs)
    ]
    found = calibration_of(key, MARGIN, runs)
    assert found.false_positives == 2
    assert found.false_positive_rate == 0.05
    # R: binom.test(2, 40)$conf.int
    assert found.false_positive_low == pytest.approx(0.006113, abs=1e-6)
    assert found.false_positive_high == pytest.approx(0.1691969, abs=1e-6)


def test_a_spread_takes_three_runs() -> None:
    one = noise(sealed(BASE))
    two = calibration_of(one.key, MARGIN, one.runs[:2])
    assert two.between_step_sd is None
    assert two.within_sd is not None
    assert larger(two, None) is None
    assert larger(two, one, noise(sealed(BASE), sd=0.1)) == noise(sealed(BASE), sd=0.1)


def test_the_minimum_effect_is_found_by_80_percent() -> None:
    """By simulation: a difference of that size excludes 1 in four of five runs."""
    rng = np.random.default_rng(3)
    sd, n = 0.02, 6
    effect = math.log1p(minimum_effect(sd, n))
    blocks = rng.normal(effect, sd, (4000, 2, n // 2))
    means = blocks.mean(2)
    s = np.sqrt(((blocks - means[:, :, None]) ** 2).sum((1, 2)) / (n - 2))
    half = 2.7764451 * s / math.sqrt(n)  # t(0.975) on 4 degrees of freedom
    share = float((means.mean(1) - half > 0).mean())
    assert share == pytest.approx(0.8, abs=0.03)
    assert recommended_blocks(0.001, 0.02) == 4
    found = recommended_blocks(0.02, 0.02)
    assert found and minimum_effect(0.02, found) <= 0.02 < minimum_effect(0.02, found - 2)
    assert recommended_blocks(5.0, 0.02) is None


def test_a_calibration_in_the_plan_is_checked() -> None:
    a, b = BASE.plan.arms
    known = noise(sealed(BASE))
    quoted = BASE.with_plan(arms=(a.model_copy(update={"calibration": known}), b))
    evaluator = quoted.plan.evaluator
    assert examine(quoted.sealed(), evaluator).status == "valid"
    for lie in ({"between_step_sd": 1e-9}, {"key": known.key.model_copy(update={"cpu": "x"})}):
        changed = a.model_copy(update={"calibration": known.model_copy(update=lie)})
        found = examine(BASE.with_plan(arms=(changed, b)).sealed(), evaluator)
        assert any("plan/arms/0/calibration/" in fault for fault in found.faults)


def test_absurd_noise_does_not_overflow() -> None:
    one = sealed(BASE)
    known = [noise(one, i, 300.0) for i in (0, 1)]
    for change in changes_of(one, one, MARGIN, known):
        assert change.word == "unsure"
        assert change.high and math.isfinite(change.high)

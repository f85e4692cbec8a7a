"""What fits the budget: the reference counts as well as the slots, whatever the arms are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver import corpus, presets
from driver.arms import ArmSpec, parse_arm, resolve
from driver.errors import BudgetError
from driver.plan import FIXED_LIMITS_STEPS, Purpose, fit_budget
from driver.prepare import Prepared
from driver.records import ArmParity
from driver.replicas import REPLICAS
from driver.schedule import ArmCost
from driver.workload import Workload, reference_step_s

TINY = presets.load("tiny")
WORKLOAD = Workload.draw(TINY, corpus.load(None), 1)
NULL = resolve(parse_arm("null"), {})


def prepared(spec: ArmSpec, step_ms: float) -> Prepared:
    trains = spec.name != "null"
    parity = ArmParity(side="A", applicable=trains, reason=None if trains else "does not train")
    return Prepared("A", spec, NULL, {}, parity, ArmCost(step_ms, 0.0, 500.0))


@given(
    st.sampled_from(["null", "wasm"]), st.sampled_from(["null", "wasm"]),
    st.floats(1, 2000), st.floats(1, 2000), st.floats(1e-4, 5), st.floats(20, 3600), st.booleans(),
)  # fmt: skip
def test_slots_reference_and_replicas_fit_together(
    a: str, b: str, a_ms: float, b_ms: float, step_s: float, budget_s: float, auto: bool
) -> None:
    """One step of the reference is the least; whatever is beyond it has to fit."""
    sides = (prepared(parse_arm(a), a_ms), prepared(parse_arm(b), b_ms))
    purpose = Purpose(6, budget_s, auto=auto)
    try:
        shape, steps, band = fit_budget(purpose, WORKLOAD, sides, step_s, 10.0)
    except BudgetError:
        return
    assert 1 <= steps <= shape.longest
    assert band <= steps
    if (a, b) == ("null", "null"):
        assert band == 0  # nothing is compared with them
    if steps > 1:
        spent = shape.estimated_ms / 1000 + (steps + band * REPLICAS) * step_s
        assert 10.0 + spent <= budget_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("step_s", "budget_s", "least", "band_all"),
    [
        (1e-4, 600.0, FIXED_LIMITS_STEPS + 1, True),  # all of it, with replicas
        (4e-3, 60.0, FIXED_LIMITS_STEPS, False),  # as far as fixed limits hold
    ],
)
def test_a_long_curve_goes_as_far_as_its_replicas(
    step_s: float, budget_s: float, least: int, band_all: bool
) -> None:
    """Beyond some hundred steps a fixed limit says nothing of a small model's rounding."""
    long = replace(WORKLOAD, preset=TINY.model_copy(update={"windows": 20}))
    sides = (prepared(parse_arm("wasm"), 1.0), prepared(parse_arm("wasm"), 1.0))
    shape, steps, band = fit_budget(Purpose(2, budget_s), long, sides, step_s, 1.0)
    assert shape.longest > FIXED_LIMITS_STEPS
    assert steps >= least
    assert steps <= max(band, FIXED_LIMITS_STEPS)
    assert (band == steps == shape.longest) == band_all


def test_without_a_reference_the_slots_have_it_all() -> None:
    sides = (prepared(parse_arm("null"), 10.0), prepared(parse_arm("null"), 10.0))
    shape, steps, band = fit_budget(Purpose(6, 60), WORKLOAD, sides, None, 0.0)
    assert (steps, band) == (0, 0)
    assert shape.estimated_ms <= 60_000


def test_a_step_is_timed_where_nothing_has_trained() -> None:
    """And whoever ends the run does not wait for all of it."""
    done: list[None] = []
    assert reference_step_s(WORKLOAD, lambda: done.append(None)) > 0
    assert len(done) == 2

    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reference_step_s(WORKLOAD, end)

"""Float32 replicas of the reference: the same mathematics, other roundings."""

import math

import numpy as np
import pytest
import receipts
from scipy.special import ndtr

from driver.parity import gate_plans
from driver.parity.gates import band_limit
from driver.records import ParamsDeviation
from driver.reference import Reference, Tensors, loss_and_grads
from driver.replicas import (
    REPLICAS,
    arithmetic,
    band,
    fused_matmul,
    rational_cdf,
    relabelled,
)
from driver.tensors import initial_flat, unflatten

CONFIG = receipts.CONFIG
PARAMS = unflatten(CONFIG, 5 * initial_flat(CONFIG, 3))
TOKENS = np.random.default_rng(1).integers(0, CONFIG.vocab, (4, CONFIG.batch, CONFIG.ctx + 1))


END = len(TOKENS)


def curve() -> tuple[list[float], list[float], dict[int, Tensors]]:
    """Losses, norms, and parameters after the first step and the last, of the reference."""
    reference = Reference(CONFIG, PARAMS)
    losses, norms, kept = [], [], {}
    for index, batch in enumerate(TOKENS):
        step = reference.step(batch)
        losses.append(step.loss)
        norms.append(step.grad_norm)
        if index in (0, END - 1):
            kept[index + 1] = dict(reference.params)
    return losses, norms, kept


def test_another_order_is_the_same_function() -> None:
    double = {name: p.astype(np.float64) for name, p in PARAMS.items()}
    moved = relabelled(CONFIG, double, np.random.default_rng(7))
    assert moved.keys() == double.keys()
    loss, grads = loss_and_grads(CONFIG, double, TOKENS[0])
    other, moved_grads = loss_and_grads(CONFIG, moved, TOKENS[0])
    assert other == pytest.approx(loss, rel=1e-13)
    again = relabelled(CONFIG, grads, np.random.default_rng(7))
    for name, grad in again.items():
        assert not np.array_equal(moved[name], double[name]) or double[name].std() == 0
        np.testing.assert_allclose(moved_grads[name], grad, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("shapes", [((5, 70), (70, 3)), ((2, 3, 4, 33), (2, 3, 33, 5))])
def test_products_that_are_rounded_seldom(shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    got = fused_matmul(a, b)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, a.astype(float) @ b.astype(float), rtol=1e-5, atol=1e-6)


def test_another_error_function() -> None:
    x = np.linspace(-9, 9, 2001, dtype=np.float32)
    got = rational_cdf(x)
    assert got.dtype == np.float32
    assert 0 < np.max(np.abs(got - ndtr(x.astype(np.float64)))) < 3e-7


def test_replicas_differ_in_their_arithmetic() -> None:
    kinds = {(a.matmul, a.normal_cdf) for a in map(arithmetic, range(REPLICAS))}
    assert len(kinds) == 4


def test_the_band_is_what_float32_explains() -> None:
    found = band(CONFIG, PARAMS, TOKENS, *curve(), {})
    for deviations in (found.losses, found.grad_norms):
        assert len(deviations) == len(TOKENS)
        assert all(1e-10 < x < 1e-5 for x in deviations)
    assert set(found.params) == {1, END}
    assert all(1e-9 < worst.rel_l2 < 1e-3 for worst in found.params.values())


def test_parameters_are_compared_as_far_as_the_replicas_go() -> None:
    losses, norms, kept = curve()
    found = band(CONFIG, PARAMS, TOKENS[:2], losses, norms, kept, {})
    whole = band(CONFIG, PARAMS, TOKENS, losses, norms, kept, {})
    assert found.params == {1: whole.params[1]}


def test_parameters_of_another_model_are_far_outside_the_band() -> None:
    losses, norms, kept = curve()
    wrong = {END: kept[END] | {"wte": kept[END]["wte"] * 1.01}}
    found = band(CONFIG, PARAMS, TOKENS, losses, norms, wrong, {})
    assert found.params[END].tensor == "wte"
    assert found.params[END].rel_l2 == pytest.approx(0.01 / 1.01, rel=0.01)


def test_elements_that_are_left_out_do_not_count_in_any_order() -> None:
    """A replica has its elements elsewhere; the mask goes with them."""
    losses, norms, kept = curve()
    changed, masks = {}, {}
    for name, param in kept[END].items():
        masks[name] = np.random.default_rng(3).random(param.shape) < 0.1
        changed[name] = np.where(masks[name], param + 1, param)
    right = band(CONFIG, PARAMS, TOKENS, losses, norms, {END: kept[END]}, masks)
    assert band(CONFIG, PARAMS, TOKENS, losses, norms, {END: changed}, masks) == right
    assert band(CONFIG, PARAMS, TOKENS, losses, norms, {END: changed}, {}).params[END].rel_l2 > 0.1


def test_parameters_that_are_no_numbers_bound_nothing() -> None:
    losses, norms, kept = curve()
    broken = dict(PARAMS, wte=np.full_like(PARAMS["wte"], np.nan))
    with np.errstate(all="ignore"):
        found = band(CONFIG, broken, TOKENS, losses, norms, kept, {})
    assert found.params[END].rel_l2 == math.inf


def test_a_reference_of_other_numbers_is_far_outside_the_band() -> None:
    losses, norms, kept = curve()
    found = band(CONFIG, PARAMS, TOKENS, [loss * 1.001 for loss in losses], norms, kept, {})
    assert min(found.losses) == pytest.approx(1e-3, rel=0.01)


def test_limits_come_from_the_band() -> None:
    assert band_limit([1e-8, 3e-8]) == pytest.approx(2.2e-7)
    assert band_limit(None) is band_limit([]) is band_limit([math.inf]) is None
    assert band_limit([math.nan, 1e-8]) is None
    reference = receipts.parts().reference
    limits = {gate.name: gate.limit for gate in gate_plans(False, reference)}
    assert limits["band.loss.A"] == pytest.approx(4 * 5e-8 + 1e-7)
    assert {gate.name: gate.limit for gate in gate_plans(False)}["band.loss.A"] is None


@pytest.mark.parametrize(
    ("loss", "norm", "limits"),
    [
        (1e-9, 1e-9, (1e-5, 1e-4)),  # never less than the fixed ones
        (5e-6, 7.5e-4, (2.01e-5, 3.0001e-3)),
        (1.0, 1.0, (1e-4, 1e-2)),  # never more than what still tells something
        (math.inf, math.nan, (1e-5, 1e-4)),
    ],
)
def test_whole_curves_may_be_as_far_off_as_float32_explains(
    loss: float, norm: float, limits: tuple[float, float]
) -> None:
    known = receipts.parts().reference.model_copy(
        update={"band": [0.0, loss], "band_grad_norms": [0.0, norm]}
    )
    found = {gate.name: gate.limit for gate in gate_plans(False, known)}
    for side in "AB":
        assert (found[f"curve.loss.{side}"], found[f"curve.grad_norm.{side}"]) == pytest.approx(
            limits
        )
    assert found["drift.loss"] == pytest.approx(2 * limits[0])


def final_limits(end: int, rel_l2: float) -> tuple[float | None, float | None]:
    """The limits of both arms, a replica's parameters being this far off after `end` steps."""
    built = receipts.parts()
    a, b = built.plan.arms
    arms = (a, b.model_copy(update={"warmup_steps": b.warmup_steps + 1}))
    assert arms[0].total_steps != arms[1].total_steps
    known = built.reference.model_copy(
        update={
            "losses": [3.0] * arms[1].total_steps,
            "band_params": (ParamsDeviation(step=end, rel_l2=rel_l2, tensor="h.0.mlp.w1"),),
        }
    )
    limits = {gate.name: gate.limit for gate in gate_plans(False, known, arms)}
    return limits["final.params.A"], limits["final.params.B"]


def test_final_parameters_may_be_as_far_off_as_float32_explains() -> None:
    steps = receipts.parts().plan.arms[0].total_steps
    assert final_limits(steps, 4e-5) == pytest.approx((1.601e-4, 1.601e-4)), "it stays apart"
    assert final_limits(steps - 1, 4e-5) == pytest.approx((1.601e-4, 1.601e-4))
    assert final_limits(steps + 1, 4e-5) == pytest.approx((5e-5, 1.601e-4))
    assert final_limits(steps, 1e-6) == pytest.approx((5e-5, 5e-5)), "never less than the fixed one"
    assert final_limits(steps, math.inf) == pytest.approx((5e-5, 5e-5)), "nothing is explained"

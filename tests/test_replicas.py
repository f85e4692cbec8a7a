"""Float32 replicas of the reference: the same mathematics, other roundings."""

import math

import numpy as np
import pytest
import receipts
from scipy.special import ndtr

from driver.parity import gate_plans
from driver.parity.gates import band_limit
from driver.reference import Reference, loss_and_grads
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


def curve() -> tuple[list[float], list[float]]:
    reference = Reference(CONFIG, PARAMS)
    steps = [reference.step(batch) for batch in TOKENS]
    return [s.loss for s in steps], [s.grad_norm for s in steps]


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
    found = band(CONFIG, PARAMS, TOKENS, *curve())
    for deviations in (found.losses, found.grad_norms):
        assert len(deviations) == len(TOKENS)
        assert all(1e-10 < x < 1e-5 for x in deviations)


def test_a_reference_of_other_numbers_is_far_outside_the_band() -> None:
    losses, norms = curve()
    found = band(CONFIG, PARAMS, TOKENS, [loss * 1.001 for loss in losses], norms)
    assert min(found.losses) == pytest.approx(1e-3, rel=0.01)


def test_limits_come_from_the_band() -> None:
    assert band_limit([1e-8, 3e-8]) == pytest.approx(2.2e-7)
    assert band_limit(None) is band_limit([]) is band_limit([math.inf]) is None
    assert band_limit([math.nan, 1e-8]) is None
    reference = receipts.parts().reference
    limits = {gate.name: gate.limit for gate in gate_plans(False, reference)}
    assert limits["band.loss.A"] == pytest.approx(4 * 5e-8 + 1e-7)
    assert {gate.name: gate.limit for gate in gate_plans(False)}["band.loss.A"] is None

"""Error measures, and every gate seen to pass and to fail."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import receipts
from hypothesis import given
from hypothesis import strategies as st
from receipts import Parts

from driver import parity
from driver.parity import differences, gate_plans, key_bias_ratio, tensor_error, undetermined
from driver.parity.gates import FULL_REFERENCE
from driver.plan import SUSPECTS
from driver.receipt import derive
from driver.records import Gate, OthersCpu, Slot, SlotEvent, TensorError, Verdict

NAN = math.nan
BAD = (NAN, math.inf, -math.inf)


def judged(run: Parts) -> tuple[dict[str, Gate], Verdict]:
    _, gates, verdict = derive(run.plan, run.environment, run.reference, run.parity, run.slots)
    assert [gate.name for gate in gates] == [gate.name for gate in run.plan.gates]
    return {gate.name: gate for gate in gates}, verdict


# --------------------------------------------------------------------------- measures


def test_tensor_error_by_hand() -> None:
    error = tensor_error(np.array([3.0, 4.0]), np.array([3.0, 4.5]), "wte")
    assert error.rel_l2 == pytest.approx(0.5 / 5)
    assert error.worst_scaled == pytest.approx(0.5 / math.sqrt(12.5))
    assert error.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert tensor_error(np.ones(3), np.ones(3), "wte").rel_l2 == 0


def test_tensor_error_is_computed_in_float64() -> None:
    want = np.full(1000, 1.0)
    got = np.full(1000, 1 + 1e-7, np.float32)
    assert tensor_error(want, got, "wte").rel_l2 == pytest.approx(float(got[0]) - 1, rel=1e-6)


def test_an_exact_zero_has_an_error_too() -> None:
    error = tensor_error(np.zeros(4), np.full(4, 1e-3), "lnf.b")
    assert error.rel_l2 > 1
    assert error.cosine is None


def first_update(grads: np.ndarray, eps: float) -> np.ndarray:
    return grads / (np.abs(grads) + eps)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-2, 1e-5, 1e-7, 1e-9, 1e-12]),
    st.sampled_from([1e-8, 1e-6, 1e-15]),
    st.sampled_from([(2e-5, 5e-5), (2e-3, 1e-2)]),
)
def test_what_is_left_out_is_what_rounding_decides(
    seed: int, spread: float, eps: float, limits: tuple[float, float]
) -> None:
    """Whatever a gradient's error within the limit: without them the update is right."""
    rng = np.random.default_rng(seed)
    grads = rng.standard_normal(4000) * spread
    grads[:8] = rng.standard_normal(8) * eps * 0.1
    out = undetermined({"wte": grads}, 0.5, eps, *limits)["wte"]
    off = limits[0] * np.sqrt(np.mean(grads**2))
    for error in (off, -off):
        moved = np.abs(first_update((grads + error) / 2, eps) - first_update(grads / 2, eps))
        assert np.max(moved[~out]) <= 2 * limits[1]
    assert out.mean() < 0.25, "and they are few"


def test_nothing_is_left_out_of_ordinary_gradients() -> None:
    grads = {"wte": np.array([1e-3, -2e-3, 5e-4]), "lnf.b": np.zeros(3)}
    masks = undetermined(grads, 1.0, 1e-8)
    assert not masks["wte"].any()
    assert not masks["lnf.b"].any(), "an exact 0 stays where it is"
    assert undetermined({"wte": np.array([1e-3, 1e-9])}, 1.0, 1e-8)["wte"].tolist() == [False, True]


def test_an_element_that_is_left_out_does_not_count() -> None:
    want, got = np.array([3.0, 4.0, 0.1]), np.array([3.0, 4.5, 9.0])
    error = tensor_error(want, got, "wte", np.array([False, False, True]))
    assert error == tensor_error(want[:2], got[:2], "wte").model_copy(update={"left_out": 1})
    got[2] = NAN
    assert math.isnan(tensor_error(want, got, "wte", np.array([False, False, True])).rel_l2)


def test_the_key_bias_is_left_out_of_the_mask_as_well() -> None:
    mask = np.zeros(9, bool)
    mask[2] = mask[4] = True
    got = np.ones(9)
    got[2] = got[4] = 2
    error = tensor_error(np.ones(9), got, "h.2.attn.bqkv", mask)
    assert (error.rel_l2, error.left_out) == (0, 1)


def test_a_tensor_of_which_nothing_is_left() -> None:
    error = tensor_error(np.ones(2), np.full(2, 3.0), "lnf.b", np.ones(2, bool))
    assert (error.rel_l2, error.cosine, error.left_out) == (0, None, 2)


@given(st.integers(0, 5), st.sampled_from(["wte", "lnf.g", "h.0.mlp.b1"]))
def test_a_nan_anywhere_wins(at: int, name: str) -> None:
    got = np.ones(6)
    got[at] = NAN
    error = tensor_error(np.ones(6), got, name)
    assert math.isnan(error.rel_l2)
    assert math.isnan(error.worst_scaled)
    assert error.cosine is None


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_an_infinity_is_an_infinite_error(bad: float) -> None:
    error = tensor_error(np.ones(3), np.array([1, bad, 1]), "wte")
    assert not error.rel_l2 < math.inf
    assert not error.worst_scaled < math.inf


def test_the_key_bias_is_left_out() -> None:
    want, got = np.ones(9), np.ones(9)
    got[3:6] = NAN
    assert tensor_error(want, got, "h.2.attn.bqkv").rel_l2 == 0
    assert math.isnan(tensor_error(want, got, "h.2.attn.bo").rel_l2)
    got = np.ones(9)
    got[2] = 2
    assert tensor_error(want, got, "h.2.attn.bqkv").rel_l2 == pytest.approx(1 / math.sqrt(6))


def test_the_key_bias_is_bounded() -> None:
    small, large = np.array([3.0, 0, 0.01, 0, 0, 4]), np.array([3.0, 0, 0, 0.5, 0, 4])
    assert key_bias_ratio({"h.0.attn.bqkv": small}) == pytest.approx(0.002)
    both = {"h.0.attn.bqkv": large, "h.1.attn.bqkv": small, "wte": np.full(6, 1e9)}
    assert key_bias_ratio(both) == pytest.approx(0.1)
    assert key_bias_ratio({"h.0.attn.bqkv": np.array([0, 0, 1.0, 0, 0, 0])}) > 1


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("name", ["h.0.attn.bqkv", "h.1.attn.bqkv"])
def test_a_nan_in_any_third_reaches_the_bound(at: int, name: str) -> None:
    grads = {f"h.{layer}.attn.bqkv": np.ones(6) for layer in range(3)}
    grads[name][at] = NAN
    assert math.isnan(key_bias_ratio(grads))


@given(st.floats(allow_nan=True), st.floats(allow_nan=True))
def test_nan_max(a: float, b: float) -> None:
    got = parity.measures.nan_max(a, b)
    assert math.isnan(got) if math.isnan(a) or math.isnan(b) else got == max(a, b)


# --------------------------------------------------------------------------- curves


def slot(side: str, losses: list[float], norms: list[float] | None = None, block: int = 0) -> Slot:
    built = receipts.parts(blocks=1).slots[0]
    return built.model_copy(
        update={"side": side, "block": block, "losses": losses, "grad_norms": norms or losses}
    )


def test_the_worst_step_of_a_curve() -> None:
    reference = receipts.parts().reference.model_copy(
        update={"losses": [2.0, 2.0, 1.0], "grad_norms": [1.0, 1.0, 1.0]}
    )
    slots = [
        slot("A", [2.0, 2.0, 1.0], [1, 1, 1]),
        slot("A", [2.0, 2.2, 1.05], [1, 1, 0.5]),
        slot("B", [9.0, 9.0, 9.0]),
    ]
    error = parity.curve_error(reference, slots, "A")
    assert (error.steps, error.loss_step, error.grad_norm_step) == (3, 1, 2)
    assert error.loss == pytest.approx(0.1)
    assert error.grad_norm == pytest.approx(0.5)


def test_curves_are_compared_on_the_common_prefix() -> None:
    reference = receipts.parts().reference.model_copy(update={"losses": [2.0, 2.0]})
    error = parity.curve_error(reference, [slot("A", [2.0, 2.0, 99.0])], "A")
    assert (error.steps, error.loss) == (2, 0.0)


@pytest.mark.parametrize("bad", BAD)
def test_a_number_that_is_none_wins_a_curve(bad: float) -> None:
    reference = receipts.parts().reference
    losses = list(reference.losses)
    for at in (0, 5, len(losses) - 1):
        wrong = [*losses[:at], bad, *losses[at + 1 :]]
        for slots in (
            [slot("A", wrong), slot("A", losses)],
            [slot("A", losses), slot("A", wrong)],
            [slot("A", [x + 1 for x in losses]), slot("A", wrong)],
        ):
            error = parity.curve_error(reference, slots, "A")
            assert error.loss is not None
            assert not error.loss < math.inf
            drift = parity.paired_drift([*slots, slot("B", losses)])
            assert drift.loss is not None
            assert not drift.loss < math.inf


def test_nothing_measured_is_no_error() -> None:
    error = parity.curve_error(receipts.parts().reference, [], "A")
    assert (error.steps, error.loss, error.loss_step) == (0, None, None)


def test_drift_pairs_within_a_block() -> None:
    slots = [
        slot("A", [2.0, 1.0], block=0),
        slot("B", [2.0, 1.1], block=0),
        slot("A", [4.0, 3.0], block=1),
        slot("B", [4.0, 3.0], block=1),
    ]
    drift = parity.paired_drift(slots)
    assert (drift.steps, drift.loss_step) == (2, 1)
    assert drift.loss == pytest.approx(0.1 / 1.1)


def test_slots_repeat_bit_for_bit() -> None:
    run = receipts.parts(names=("wasm", "wasm"), blocks=1)
    assert parity.slots_repeat(run.slots, "A") is True
    a = [s.index for s in run.slots if s.side == "A"][1]
    last = run.slots[a].losses[-1]
    for changes in (
        {"losses": [*run.slots[a].losses[:-1], math.nextafter(last, 9)]},
        {"grad_norms": [0.0]},
        {"param_sha256": "00" * 32},
    ):
        assert parity.slots_repeat(run.with_slot(a, **changes).slots, "A") is False
        assert parity.slots_repeat(run.with_slot(a, **changes).slots, "B") is True
    assert parity.slots_repeat(run.with_slot(a, status="failed").slots, "A") is None


# --------------------------------------------------------------------------- identity


@pytest.mark.parametrize(
    ("expected", "ran"),
    [
        ({"lr": 3e-4}, {"lr": float(np.float32(3e-4))}),
        ({"grad_clip": 1.0}, {"grad_clip": 1}),
        ({"threads": 2}, {"threads": 2, "more": "is welcome"}),
        ({"hyper": {"d": 4}}, {"hyper": {"d": 4}}),
        ({"x": None}, {}),
        ({"weight_decay": 0.0}, {"weight_decay": 0}),
        ({"shape": [1, 2]}, {"shape": [1, 2]}),
        ({"wgsl_sha256": {"a": "1", "b": "2"}}, {"wgsl_sha256": {"a": "1"}}),
    ],
    ids=str,
)
def test_what_agrees(expected: dict[str, Any], ran: dict[str, Any]) -> None:
    assert differences(expected, ran) == []


@pytest.mark.parametrize(
    ("expected", "ran", "said"),
    [
        ({"lr": 3e-4}, {"lr": 3.001e-4}, "lr: ran 0.0003001, configured 0.0003"),
        ({"lr": 3e-4}, {}, "lr: ran None"),
        ({"lr": 3e-4}, {"lr": NAN}, "lr: ran nan"),
        ({"lr": 3e-4}, {"lr": "0.0003"}, "lr: ran '0.0003'"),
        ({"grad_clip": 1.0}, {"grad_clip": True}, "grad_clip: ran True"),
        ({"weight_decay": 0.0}, {"weight_decay": False}, "weight_decay: ran False"),
        ({"threads": 2}, {"threads": 3}, "threads: ran 3, configured 2"),
        ({"threads": 1}, {"threads": True}, "threads: ran True"),
        ({"shared": True}, {"shared": 1}, "shared: ran 1"),
        ({"threads": 2}, {"threads": "2"}, "threads: ran '2'"),
        ({"hyper": {"d": 4}}, {"hyper": {"d": 5}}, "hyper.d: ran 5"),
        ({"hyper": {"d": 4}}, {"hyper": 4}, "hyper: ran 4"),
        ({"hyper": {"d": {"e": 1}}}, {"hyper": {"d": {}}}, "hyper.d.e: ran None"),
        ({"hyper": {}}, {}, "hyper: ran None"),
        ({"simd": "relaxed"}, {"simd": "scalar"}, "simd: ran 'scalar'"),
        ({"wgsl_sha256": {"a": "1"}}, {"wgsl_sha256": {"a": "2"}}, "wgsl_sha256.a: ran '2'"),
        ({"wgsl_sha256": {"a": "1"}}, {"wgsl_sha256": {"z": "1"}}, "wgsl_sha256.z: ran '1'"),
        ({"wgsl_sha256": {"a": "1"}}, {"wgsl_sha256": {}}, "wgsl_sha256.a: ran None"),
        ({"wgsl_sha256": "1"}, {"wgsl_sha256": {"a": "1"}}, "wgsl_sha256: ran {"),
    ],
    ids=str,
)
def test_what_differs_is_named(expected: dict[str, Any], ran: dict[str, Any], said: str) -> None:
    found = differences(expected, ran)
    assert len(found) == 1
    assert found[0].startswith(said)


# --------------------------------------------------------------------------- gates

GOOD = receipts.parts()
WASM = receipts.parts(names=("wasm64", "wasm"))


def test_a_good_run_is_qualified() -> None:
    gates, verdict = judged(GOOD)
    assert {gate.status for gate in gates.values()} == {"pass", "not-applicable"}
    assert [n for n, g in gates.items() if g.status == "not-applicable"] == ["repeat.B"]
    assert (verdict.status, verdict.reasons) == ("qualified", ())
    gates, verdict = judged(WASM)
    assert [n for n, g in gates.items() if g.status == "not-applicable"] == ["adapter"]
    assert verdict.status == "qualified"


def with_error(which: int, kind: str, value: float) -> Parts:
    """One tensor of the second teacher point, or at the end of the curve, is off by `value`."""
    found = GOOD.parity[which]
    wrong = {"wpe": TensorError(rel_l2=value, cosine=None, worst_scaled=value)}
    if kind == "final_params":
        return GOOD.with_parity(which, final_params=found.final_params | wrong)
    point = found.points[1]
    point = point.model_copy(update={kind: getattr(point, kind) | wrong})
    return GOOD.with_parity(which, points=(found.points[0], point, *found.points[2:]))


def with_wide_error(which: int, value: float) -> Parts:
    """One gradient from the widened weights is off by `value`."""
    *points, wide = GOOD.parity[which].points
    assert wide.state == "wide"
    error = TensorError(rel_l2=value, cosine=None, worst_scaled=value)
    wide = wide.model_copy(update={"grads": wide.grads | {"wpe": error}})
    return GOOD.with_parity(which, points=(*points, wide))


def with_key_bias(which: int, value: float) -> Parts:
    points = tuple(
        p.model_copy(update={"key_bias_ratio": value}) if p.t == 4 else p
        for p in GOOD.parity[which].points
    )
    return GOOD.with_parity(which, points=points)


def with_curve(field: str, side: str, factor: float, base: Parts = GOOD, step: int = 6) -> Parts:
    """The last slot of a side is off by a factor at one step, in losses or norms."""
    index = max(s.index for s in base.slots if s.side == side)
    curve = list(getattr(base.slots[index], field))
    curve[step] *= factor
    return base.with_slot(index, **{field: curve})


def with_side(side: str, base: Parts = GOOD, **changes: Any) -> Parts:
    for s in base.slots:
        if s.side == side:
            base = base.with_slot(s.index, **changes)
    return base


def flat(side: str, fall: float) -> Parts:
    """Both curves and the reference fall by `fall` from first to last quarter."""
    n = receipts.STEPS
    quarter = n // 4
    curve = [2.0] * quarter + [2.0 - fall / 2] * (n - 2 * quarter) + [2.0 - fall] * quarter
    base = replace(GOOD, reference=GOOD.reference.model_copy(update={"losses": curve}))
    return with_side("A", with_side("B", base, losses=curve), losses=curve)


def ran_other(side: str, **changes: Any) -> Parts:
    index = max(s.index for s in GOOD.slots if s.side == side)
    return GOOD.with_slot(index, ran=GOOD.slots[index].ran | changes)


def short(index: int, field: str) -> Parts:
    return GOOD.with_slot(index, **{field: getattr(GOOD.slots[index], field)[:-1]})


def without_band(name: str) -> Parts:
    return replace(GOOD, reference=GOOD.reference.model_copy(update={name: None}))


def with_entropy(nats: float, side: str = "A", last: float | None = None) -> Parts:
    """Single bytes of that entropy; one side's losses end at `last`."""
    corpus = GOOD.plan.corpus.model_copy(update={"unigram_entropy_nats": nats})
    found = GOOD.with_plan(corpus=corpus)
    for slot in found.slots:
        if last is not None and slot.side == side:
            found = found.with_slot(slot.index, losses=[*slot.losses[:-4], *[last] * 4])
    return found


def quiet(*shares: float) -> Parts:
    return GOOD.with_environment(others_cpu=OthersCpu(shares=shares, reason=None))


def disturbed(shares: Sequence[float | None], before: Sequence[float] = (0.0,)) -> Parts:
    """Quiet before the run; what others used in its slots, these shares over and over."""
    run = quiet(*before)
    for index in range(len(run.slots)):
        run = run.with_slot(index, others_cpu=shares[index % len(shares)])
    return run


def marked(blocks: int) -> Parts:
    """So many of four blocks suspect, for what no share shows."""
    run = quiet(0.0).with_plan(suspects=SUSPECTS)
    assert len(run.plan.order) == 4
    for block in range(blocks):
        run = run.with_slot(4 * block, events=[SlotEvent(kind="hidden", message="")])
    return run


def quiet_by_load(load: Any, cores: Any = 8) -> Parts:
    """As receipts were before the others' share was measured, and their limit."""
    environment = GOOD.environment
    gates = tuple(
        gate.model_copy(update={"limit": 0.5}) if gate.name == "quiet" else gate
        for gate in GOOD.plan.gates
    )
    return GOOD.with_plan(gates=gates).with_environment(
        others_cpu=None,
        load_before=environment.load_before | {"load_1min": load},
        machine=environment.machine | {"cores_logical": cores},
    )


def clocked(arrivals: Sequence[float], tells: Sequence[float] = ()) -> Parts:
    """Windows of 100 ms by the page, when the driver heard of them, and what telling took."""
    run = GOOD
    for one in GOOD.slots:
        if one.side == "B":
            run = run.with_slot(
                one.index, windows_ms=[100.0] * 3, arrivals_ms=list(arrivals), tell_ms=list(tells)
            )
    return run


B = max(s.index for s in GOOD.slots if s.side == "B")
A = max(s.index for s in GOOD.slots if s.side == "A")
OTHER = receipts.HARDWARE | {"architecture": "ampere"}

Case = tuple[str, str, Callable[[], Parts]]


def forward_only(factor: float) -> Parts:
    """A run whose reference did no more than a forward pass, which A met to `factor`."""
    first = GOOD.reference.losses[0]
    run = GOOD.with_parity(
        0, points=(), points_reason="too large for the reference", first_loss=first * factor,
        reference_first_loss=first, final_params={},
    )  # fmt: skip
    facts = {"losses": [], "grad_norms": [], "first_loss": first, "reason": "too large"}
    return replace(run, reference=run.reference.model_copy(update=facts))


CASES: list[Case] = [
    ("parity.grads.A", "pass", lambda: with_error(0, "grads", 2e-5)),
    ("parity.grads.A", "fail", lambda: with_error(0, "grads", 2.01e-5)),
    ("parity.grads.B", "fail", lambda: with_error(1, "grads", math.inf)),
    ("parity.grads.B", "fail", lambda: with_error(1, "grads", NAN)),
    ("parity.grads.A", "unknown", lambda: GOOD.with_parity(0, points=())),
    ("parity.wide.A", "pass", lambda: with_wide_error(0, 2e-5)),
    ("parity.wide.A", "fail", lambda: with_wide_error(0, 2.01e-5)),
    ("parity.wide.B", "fail", lambda: with_wide_error(1, NAN)),
    ("parity.wide.B", "unknown", lambda: GOOD.with_parity(1, points=GOOD.parity[1].points[:3])),
    ("parity.grads.A", "pass", lambda: with_wide_error(0, 2.01e-5)),
    ("parity.params.A", "pass", lambda: with_error(0, "params", 5e-5)),
    ("parity.params.A", "fail", lambda: with_error(0, "params", 5.01e-5)),
    ("parity.params.B", "fail", lambda: with_error(1, "params", NAN)),
    ("parity.params.B", "unknown", lambda: GOOD.with_parity(1, points=())),
    ("parity.key_bias.A", "pass", lambda: with_key_bias(0, 2e-6)),
    ("parity.key_bias.A", "fail", lambda: with_key_bias(0, 2.1e-6)),
    ("parity.key_bias.B", "fail", lambda: with_key_bias(1, NAN)),
    ("parity.key_bias.B", "unknown", lambda: GOOD.with_parity(1, points=())),
    ("parity.first_loss.A", "pass", lambda: GOOD),
    ("parity.first_loss.A", "fail", lambda: with_curve("losses", "A", 1 + 1.1e-4, step=0)),
    ("parity.first_loss.B", "fail", lambda: with_curve("losses", "B", NAN, step=0)),
    ("parity.first_loss.A", "pass", lambda: forward_only(1 + 9e-5)),
    ("parity.first_loss.A", "fail", lambda: forward_only(1 + 1.1e-4)),
    ("parity.first_loss.A", "fail", lambda: forward_only(NAN)),
    ("parity.first_loss.A", "unknown", lambda: GOOD.with_parity(0, points=())),
    *((f"{name}.A", "unknown", lambda: forward_only(1.0)) for name in FULL_REFERENCE),
    ("parity.export.A", "pass", lambda: GOOD),
    ("parity.export.A", "fail", lambda: GOOD.with_parity(0, export_equal=False)),
    ("parity.export.B", "unknown", lambda: GOOD.with_parity(1, export_equal=None)),
    ("curve.loss.A", "pass", lambda: with_curve("losses", "A", 1 + 9e-6)),
    ("curve.loss.A", "fail", lambda: with_curve("losses", "A", 1 + 1.1e-5)),
    ("curve.loss.B", "fail", lambda: with_curve("losses", "B", NAN)),
    ("curve.loss.A", "unknown", lambda: replace(GOOD, slots=())),
    ("curve.grad_norm.B", "pass", lambda: with_curve("grad_norms", "B", 1 + 9e-5)),
    ("curve.grad_norm.B", "fail", lambda: with_curve("grad_norms", "B", 1 + 1.1e-4)),
    ("curve.grad_norm.A", "fail", lambda: with_curve("grad_norms", "A", NAN)),
    ("curve.grad_norm.A", "unknown", lambda: replace(GOOD, slots=())),
    ("band.loss.A", "pass", lambda: with_curve("losses", "A", 1 + 2.9e-7, step=3)),
    ("band.loss.A", "fail", lambda: with_curve("losses", "A", 1 + 4.1e-7, step=3)),
    ("band.loss.B", "fail", lambda: with_curve("losses", "B", NAN, step=3)),
    ("band.loss.A", "unknown", lambda: without_band("band")),
    ("band.grad_norm.B", "pass", lambda: with_curve("grad_norms", "B", 1 + 2.9e-7, step=3)),
    ("band.grad_norm.B", "fail", lambda: with_curve("grad_norms", "B", 1 + 5.1e-7, step=3)),
    ("band.grad_norm.A", "fail", lambda: with_curve("grad_norms", "A", NAN, step=3)),
    ("band.grad_norm.A", "unknown", lambda: replace(GOOD, slots=())),
    ("beyond_unigrams.A", "pass", lambda: with_entropy(1.45)),
    ("beyond_unigrams.B", "fail", lambda: with_entropy(1.45, "B", 1.5)),
    ("beyond_unigrams.B", "fail", lambda: with_entropy(1.45, "B", NAN)),
    ("beyond_unigrams.A", "unknown", lambda: with_entropy(1.38)),
    ("beyond_unigrams.B", "unknown", lambda: replace(GOOD, slots=())),
    ("finite.A", "fail", lambda: GOOD.with_slot(A, upload_ms=NAN)),
    ("finite.B", "fail", lambda: GOOD.with_slot(B, sentinel_ms=[NAN])),
    ("final.params.A", "pass", lambda: with_error(0, "final_params", 5e-5)),
    ("final.params.A", "fail", lambda: with_error(0, "final_params", 5.1e-5)),
    ("final.params.B", "fail", lambda: with_error(1, "final_params", NAN)),
    ("final.params.B", "unknown", lambda: GOOD.with_parity(1, final_params={})),
    ("finite.A", "pass", lambda: GOOD),
    ("finite.A", "fail", lambda: with_curve("losses", "A", NAN)),
    ("finite.B", "fail", lambda: with_curve("grad_norms", "B", math.inf)),
    ("finite.B", "fail", lambda: GOOD.with_slot(B, windows_ms=[1.0, NAN, 1.0])),
    ("finite.B", "unknown", lambda: with_side("B", losses=[])),
    ("identity.A", "pass", lambda: ran_other("A", more=1)),
    ("identity.A", "fail", lambda: ran_other("A", arm="wasm64")),
    ("identity.A", "fail", lambda: ran_other("A", plan_sha256="0" * 64)),
    ("identity.B", "fail", lambda: ran_other("B", hyper={"lr": 3e-4})),
    ("identity.B", "fail", lambda: GOOD.with_slot(B, ran={})),
    ("identity.B", "fail", lambda: GOOD.with_slot(B, adapter=receipts.SOFTWARE)),
    ("identity.B", "fail", lambda: GOOD.with_slot(B, adapter=OTHER)),
    ("identity.B", "fail", lambda: GOOD.with_slot(B, adapter=None)),
    ("identity.A", "unknown", lambda: with_side("A", status="failed")),
    ("repeat.A", "pass", lambda: GOOD),
    ("repeat.A", "fail", lambda: with_curve("losses", "A", 1 + 1e-12)),
    ("repeat.A", "fail", lambda: GOOD.with_slot(A, param_sha256="0" * 64)),
    ("repeat.B", "not-applicable", lambda: with_curve("losses", "B", 1 + 1e-12)),
    ("repeat.B", "fail", lambda: with_curve("losses", "B", 1 + 1e-12, WASM)),
    ("repeat.A", "unknown", lambda: replace(GOOD, slots=GOOD.slots[:1])),
    ("learned.A", "pass", lambda: flat("A", 0.021)),
    ("learned.A", "fail", lambda: flat("A", 0.019)),
    ("learned.B", "fail", lambda: flat("B", -0.5)),
    ("learned.B", "fail", lambda: with_curve("losses", "B", 1.0).with_slot(B, losses=[NAN] * 14)),
    ("learned.B", "unknown", lambda: with_side("B", losses=[2.0, 1.0])),
    ("learned.A", "unknown", lambda: replace(GOOD, slots=())),
    ("errors", "pass", lambda: GOOD),
    ("errors", "fail", lambda: receipts.failed_slot(GOOD)),
    ("errors", "fail", lambda: replace(GOOD, slots=())),
    ("errors", "fail", lambda: replace(GOOD, slots=GOOD.slots[:-1])),
    ("errors", "fail", lambda: replace(GOOD, slots=(*GOOD.slots, GOOD.slots[-1]))),
    ("errors", "fail", lambda: replace(GOOD, slots=GOOD.slots[::-1])),
    ("errors", "fail", lambda: GOOD.with_slot(0, side="B" if GOOD.slots[0].side == "A" else "A")),
    ("errors", "fail", lambda: GOOD.with_slot(3, block=1)),
    ("errors", "fail", lambda: GOOD.with_slot(3, position=0)),
    ("errors", "fail", lambda: short(4, "losses")),
    ("errors", "fail", lambda: short(4, "grad_norms")),
    ("errors", "fail", lambda: short(4, "windows_ms")),
    ("errors", "fail", lambda: GOOD.with_slot(4, steps_per_window=5)),
    ("drift.loss", "pass", lambda: with_curve("losses", "B", 1 + 1.9e-5)),
    ("drift.loss", "fail", lambda: with_curve("losses", "B", 1 + 2.1e-5)),
    ("drift.loss", "fail", lambda: with_curve("losses", "A", NAN)),
    ("drift.loss", "unknown", lambda: replace(GOOD, slots=())),
    ("adapter", "pass", lambda: GOOD),
    ("adapter", "fail", lambda: receipts.parts(adapter="software")),
    ("adapter", "unknown", lambda: GOOD.with_environment(adapter_verdict="unknown")),
    ("adapter", "unknown", lambda: GOOD.with_environment(adapter_verdict="not-applicable")),
    ("adapter", "not-applicable", lambda: WASM),
    ("blocks", "pass", lambda: GOOD),
    ("clock.B", "pass", lambda: GOOD),
    ("clock.B", "pass", lambda: clocked([0, 131, 261, 391])),  # 30 ms each for the way
    ("clock.B", "pass", lambda: clocked([0, 9e3, 18e3, 18111])),  # a machine held up now and then
    ("clock.B", "fail", lambda: clocked([0, 150, 300, 450])),
    ("clock.B", "fail", lambda: clocked([0, 60, 120, 180])),  # the page says more than there was
    ("clock.B", "fail", lambda: clocked([0, 0, 0, 0])),
    ("clock.B", "fail", lambda: clocked([3, 2, 1, 0])),
    ("clock.B", "fail", lambda: clocked([0, NAN, 200, 300])),
    ("clock.B", "unknown", lambda: clocked([])),
    ("clock.B", "unknown", lambda: clocked([100])),
    ("clock.B", "pass", lambda: clocked([0, 250, 500, 750], [70.0, 9.0])),  # a slow way
    ("clock.B", "fail", lambda: clocked([0, 250, 500, 750], [50.0, 9.0])),
    ("clock.B", "fail", lambda: clocked([0, 150, 300, 450], [NAN])),
    ("clock.B", "not-applicable", lambda: receipts.parts(names=("wasm", "null"))),
    ("blocks", "fail", lambda: receipts.parts(blocks=2)),
    ("blocks", "fail", lambda: receipts.parts(blocks=5)),
    ("blocks", "fail", lambda: GOOD.with_slot(B, windows_ms=[0.0, 1.0, 1.0])),
    ("blocks", "fail", lambda: replace(GOOD, slots=())),
    ("quiet", "pass", lambda: quiet(0.1)),
    ("quiet", "pass", lambda: quiet(0.1, 0.0, 0.9)),
    ("quiet", "fail", lambda: quiet(0.11, 0.0, 0.9)),
    ("quiet", "fail", lambda: quiet(NAN)),
    ("quiet", "fail", lambda: quiet(-1.0)),
    ("quiet", "unknown", quiet),
    ("quiet", "pass", lambda: disturbed([0.1])),
    ("quiet", "fail", lambda: disturbed([0.11])),
    ("quiet", "pass", lambda: disturbed([0.0, 0.0, 0.9])),
    ("quiet", "fail", lambda: disturbed([0.0, 0.9, 0.9])),
    ("quiet", "pass", lambda: disturbed([None, None, 0.1])),
    ("quiet", "fail", lambda: disturbed([None, NAN, 0.0])),
    ("quiet", "fail", lambda: disturbed([-1.0])),
    ("quiet", "unknown", lambda: disturbed([0.0], before=())),  # a browser on another machine
    ("quiet", "pass", lambda: marked(2)),
    ("quiet", "fail", lambda: marked(3)),
    ("quiet", "pass", lambda: quiet_by_load(4.0)),
    ("quiet", "fail", lambda: quiet_by_load(4.1)),
    ("quiet", "unknown", lambda: quiet_by_load(None)),
    ("quiet", "unknown", lambda: quiet_by_load("0.1")),
    ("quiet", "unknown", lambda: quiet_by_load(0.1, cores=None)),
    ("quiet", "unknown", lambda: quiet_by_load(0.1, cores=0)),
    ("quiet", "fail", lambda: quiet_by_load(NAN)),
    ("arms", "pass", lambda: GOOD),
    ("arms", "fail", lambda: receipts.parts(names=("null", "null"))),
    ("arms", "fail", lambda: receipts.parts(names=("wasm", "null"))),
]


@pytest.mark.parametrize(
    ("name", "status", "run"), CASES, ids=[f"{i}-{n}-{s}" for i, (n, s, _) in enumerate(CASES)]
)
def test_gate(name: str, status: str, run: Callable[[], Parts]) -> None:
    gates, verdict = judged(run())
    gate = gates[name]
    assert gate.status == status, gate.reason
    assert gate.reason
    if status == "fail":
        expected = "failed" if gate.gate_class == "blocking" else "unqualified"
        assert verdict.status in (expected, "failed")
        hidden = gate.gate_class == "qualifying" and verdict.status == "failed"
        named = any(reason.startswith(name) for reason in verdict.reasons)
        assert named or hidden or name == "adapter"
    if status == "unknown":
        assert verdict.status != "qualified" or name.startswith("beyond_unigrams")
    if gate.gate_class == "blocking" and status == "fail":
        assert verdict.headline.startswith("No claim")


def test_a_run_too_short_for_unigrams_is_qualified_by_what_it_shows() -> None:
    """Whether it learned beyond single bytes stays open; whether it learned at all does not."""
    gates, verdict = judged(with_entropy(1.38))
    assert gates["beyond_unigrams.A"].status == "unknown"
    assert (verdict.status, verdict.reasons) == ("qualified", ())
    older = tuple(g.model_copy(update={"may_be_unknown": False}) for g in GOOD.plan.gates)
    gates, verdict = judged(with_entropy(1.38).with_plan(gates=older))
    assert gates["beyond_unigrams.A"].status == "not-applicable"
    assert verdict.status == "qualified"


def test_every_gate_is_seen_to_pass_and_to_fail() -> None:
    seen = {(name.rsplit(".", 1)[0] if name[-2:] in (".A", ".B") else name, status)
            for name, status, _ in CASES}  # fmt: skip
    names = {
        gate.name.rsplit(".", 1)[0] if gate.name[-2:] in (".A", ".B") else gate.name
        for gate in gate_plans(False)
    }
    assert {(name, status) for name in names for status in ("pass", "fail")} <= seen


@pytest.mark.parametrize("bad", [*BAD, -1e-9])
@pytest.mark.parametrize("limit", [None, 2e-5, math.inf, NAN])
def test_no_number_that_is_none_ever_passes(bad: float, limit: float | None) -> None:
    assert parity.gates._below(bad, limit, "x")[1] in ("fail", "unknown")
    assert parity.gates._below(None, limit, "x")[1] == "unknown"


def test_what_a_forward_pass_cannot_tell_is_unknown_with_the_reason() -> None:
    gates, verdict = judged(forward_only(1.0))
    for name in FULL_REFERENCE:
        assert gates[f"{name}.A"].reason == "too large for the reference"
    assert verdict.status == "unqualified"
    names = ", ".join(f"{name}.A" for name in FULL_REFERENCE)
    assert f"{names} unknown: too large for the reference" in verdict.reasons


def test_the_worst_tensor_is_named() -> None:
    gates, _ = judged(with_error(0, "grads", 1e-3))
    assert gates["parity.grads.A"].measured == 1e-3
    assert "wpe at t=1 1.00e-03, limit 2e-05" in gates["parity.grads.A"].reason
    gates, _ = judged(with_error(0, "grads", NAN))
    assert "wpe at t=1 nan" in gates["parity.grads.A"].reason


def test_a_limit_is_the_plans_own() -> None:
    strict = tuple(
        g.model_copy(update={"limit": 1e-9}) if g.name == "curve.loss.B" else g
        for g in GOOD.plan.gates
    )
    gates, _ = judged(GOOD.with_plan(gates=strict))
    assert gates["curve.loss.B"].status == "fail"
    assert gates["curve.loss.B"].limit == 1e-9


def test_a_gate_that_nobody_knows_never_passes() -> None:
    foreign = GOOD.plan.gates[0].model_copy(update={"name": "beauty"})
    gates, verdict = judged(GOOD.with_plan(gates=(*GOOD.plan.gates, foreign)))
    assert gates["beauty"].status == "unknown"
    assert verdict.status == "unqualified"


# --------------------------------------------------------------------------- adapter


def test_a_software_adapter_is_unqualified() -> None:
    _, verdict = judged(receipts.parts(adapter="software"))
    assert verdict.status == "unqualified"
    assert verdict.reasons[0] == "software adapter"


def test_a_software_adapter_comes_first_of_the_reasons() -> None:
    run = receipts.parts(adapter="software", blocks=1)
    run = run.with_environment(others_cpu=OthersCpu(shares=(0.8,)))
    _, verdict = judged(run)
    assert verdict.reasons[0].startswith("software adapter")
    assert len(verdict.reasons) == 3


def test_a_software_adapter_comes_before_blocking_gates_that_are_unknown() -> None:
    run = receipts.parts(adapter="software").with_parity(0, points=())
    gates, verdict = judged(run)
    assert gates["parity.grads.A"].status == "unknown"
    assert verdict.status == "unqualified"
    assert verdict.reasons[0] == "software adapter"
    assert verdict.reasons[1].startswith("parity.grads.A unknown: ")


def test_required_hardware_makes_the_gate_blocking() -> None:
    assert {g.name: g.gate_class for g in gate_plans(False)}["adapter"] == "qualifying"
    assert {g.name: g.gate_class for g in gate_plans(True)}["adapter"] == "blocking"
    _, verdict = judged(receipts.parts(adapter="software", require_hardware=True))
    assert (verdict.status, verdict.reasons) == ("failed", ("software adapter",))
    _, verdict = judged(receipts.parts(require_hardware=True))
    assert verdict.status == "qualified"


def test_required_hardware_that_is_unknown_fails() -> None:
    run = receipts.parts(require_hardware=True).with_environment(adapter_verdict="unknown")
    gates, verdict = judged(run)
    assert gates["adapter"].status == "fail"
    assert verdict.status != "qualified"


@pytest.mark.parametrize("names", [("null", "null"), ("null", "wasm"), ("webgpu", "null")])
def test_a_fake_arm_is_never_qualified(names: tuple[str, str]) -> None:
    gates, verdict = judged(receipts.parts(names=names))
    assert verdict.status == "unqualified"
    assert gates["drift.loss"].status == "not-applicable"
    fake = "AB"[names.index("null")]
    assert gates[f"curve.loss.{fake}"].status == "not-applicable"
    assert gates[f"finite.{fake}"].status == "pass"


@pytest.mark.parametrize("names", [("wasm", "webgpu"), ("null", "wasm")])
def test_a_run_without_slots_has_readable_reasons(names: tuple[str, str]) -> None:
    gates, verdict = judged(replace(receipts.parts(names=names), slots=()))
    for gate in gates.values():
        assert "None" not in gate.reason and "::" not in gate.reason, gate
    assert "errors failed: no slot ran, not the 16 of the plan in order" in verdict.reasons


@pytest.mark.parametrize("t", [0, 1, 4])
def test_parameters_after_every_single_step_are_judged(t: int) -> None:
    run = receipts.parts()
    error = TensorError(rel_l2=1e-3, cosine=1.0, worst_scaled=1e-2)
    points = tuple(
        point.model_copy(update={"params": {"wte": error}}) if point.t == t else point
        for point in run.parity[0].points
    )
    gates, _ = judged(run.with_parity(0, points=points))
    assert gates["parity.params.A"].status == "fail"
    assert gates["parity.grads.A"].status == "pass"

"""Raw data that no run writes are refused, although everything derived from them agrees."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import receipts
from receipts import CONFIG, Parts

from driver.parity import gate_plans
from driver.parity.gates import MOST_LIMITS
from driver.receipt import examine
from driver.records import ParamsDeviation, TensorError
from driver.tensors import table

GOOD = receipts.parts(names=("wasm64", "wasm"))
END = GOOD.plan.reference_steps
ERROR = TensorError(rel_l2=3e-7, cosine=1.0, worst_scaled=2e-6)


def faults(run: Parts) -> tuple[str, ...]:
    return examine(run.sealed(), receipts.EVALUATOR).faults


def refrozen(run: Parts) -> Parts:
    """With the limits that its reference gives."""
    plan = run.plan
    limits = gate_plans(plan.require_hardware, run.reference, plan.arms, plan.config.n_layer)
    return run.with_plan(gates=limits)


def reference(**changes: Any) -> Parts:
    return refrozen(replace(GOOD, reference=GOOD.reference.model_copy(update=changes)))


def band(*found: tuple[int, float, str]) -> Parts:
    entries = tuple(ParamsDeviation(step=s, rel_l2=r, tensor=n) for s, r, n in found)
    return reference(band_params=entries)


def error(kind: str, name: str, **changes: Any) -> Parts:
    """One tensor's error in the final parameters, or in the gradients or parameters of a step."""
    wrong = ERROR.model_copy(update=changes)
    parity = GOOD.parity[0]
    if kind == "final":
        return GOOD.with_parity(0, final_params=parity.final_params | {name: wrong})
    first, *others = parity.points
    changed = first.model_copy(update={kind: getattr(first, kind) | {name: wrong}})
    return GOOD.with_parity(0, points=(changed, *others))


def without(kind: str, name: str) -> Parts:
    parity = GOOD.parity[0]
    if kind == "final":
        left = {n: e for n, e in parity.final_params.items() if n != name}
        return GOOD.with_parity(0, final_params=left)
    first, *others = parity.points
    left = {n: e for n, e in getattr(first, kind).items() if n != name}
    return GOOD.with_parity(0, points=(first.model_copy(update={kind: left}), *others))


def slot_of(side: str) -> int:
    return next(slot.index for slot in GOOD.slots if slot.side == side)


@pytest.mark.parametrize("run", receipts.everything().values(), ids=receipts.everything())
def test_what_a_run_writes_is_accepted(run: Parts) -> None:
    assert faults(run) == ()


@pytest.mark.parametrize("name", [tensor.name for tensor in table(CONFIG)])
def test_elements_may_be_left_out_of_parameters(name: str) -> None:
    assert faults(error("final", name, left_out=2)) == ()
    assert faults(error("params", name, left_out=1)) == ()


def test_a_band_at_the_curves_end_is_accepted() -> None:
    assert faults(band((END, 4e-5, "h.0.mlp.w1"))) == ()


IMPOSSIBLE: list[tuple[str, Callable[[], Parts]]] = [
    ("band_params", lambda: band((END, 1e-7, "wte"), (END, 2e-7, "wte"))),
    ("band_params", lambda: band((END - 1, 1e-7, "wte"))),
    ("band_params", lambda: band((10**9, 1e-7, "wte"))),
    ("band_params", lambda: band((END, 1e-7, "bogus"))),
    ("band_params", lambda: band((END, -1.0, "wte"))),
    ("band_params", lambda: band(*[(END, 1e-7, "wte")] * 500)),
    ("band_replicas", lambda: reference(band_replicas=None)),
    ("reference/band has", lambda: reference(band=[1e-8] * (END + 1))),
    ("reference/band has", lambda: reference(band=[-1e-8] * 5)),
    ("first_step_grad_norms", lambda: reference(
        first_step_grad_norms=dict.fromkeys(GOOD.reference.first_step_grad_norms, 77.0))),
    ("first_step_grad_norms", lambda: reference(first_step_grad_norms={"wte": 2.0})),
    ("no tensor of this model", lambda: error("final", "zzz")),
    ("no tensor of this model", lambda: error("grads", "zzz")),
    ("is missing", lambda: without("final", "wte")),
    ("is missing", lambda: without("params", "lnf.g")),
    ("is missing", lambda: without("grads", "h.0.attn.bqkv")),
    ("left_out", lambda: error("final", "lnf.g", left_out=1000)),
    ("left_out", lambda: error("params", "wte", left_out=10**9)),
    ("left_out", lambda: error("grads", "wte", left_out=1)),
    ("negative error", lambda: error("final", "wte", rel_l2=-5.0)),
    ("negative error", lambda: error("grads", "wte", worst_scaled=-1.0)),
    ("final_step", lambda: GOOD.with_parity(0, final_step=3)),
    ("final_slot", lambda: GOOD.with_parity(0, final_slot=999)),
    ("final_slot", lambda: GOOD.with_parity(0, final_slot=slot_of("B"))),
    ("reference_first_loss", lambda: GOOD.with_parity(0, first_loss=9.0, reference_first_loss=9.0)),
    ("reference_loss", lambda: GOOD.with_parity(0, points=tuple(
        p.model_copy(update={"reference_loss": 9.0, "loss": 9.0}) if p.t == 0 else p
        for p in GOOD.parity[0].points))),
    ("arrivals_ms", lambda: GOOD.with_slot(
        0, arrivals_ms=(GOOD.slots[0].arrivals_ms or [])[::-1])),
]  # fmt: skip


@pytest.mark.parametrize(("words", "run"), IMPOSSIBLE)
def test_what_no_run_writes_is_refused(words: str, run: Callable[[], Parts]) -> None:
    found = faults(run())
    assert any(words in fault for fault in found), found
    assert all(len(fault) < 400 for fault in found)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("windows_ms", [-5.0]),
        ("windows_ms", [0.0]),
        ("grad_norms", [-1.0]),
        ("tell_ms", [-1.0]),
        ("sentinel_ms", [-3.0]),
        ("compile_ms", -100.0),
        ("upload_ms", -1.0),
        ("first_step_ms", -1.0),
        ("wall_ms", -1.0),
    ],
)
def test_negative_times_are_not_finite_ones(what: str, value: Any) -> None:
    """They fail the run; blocks do not just vanish."""
    slot = GOOD.slots[slot_of("A")]
    if isinstance(value, list):
        value = value + getattr(slot, what)[1:]
    data = GOOD.with_slot(slot.index, **{what: value}).sealed()
    gate = next(gate for gate in data["gates"] if gate["name"] == "finite.A")
    assert gate["status"] == "fail"
    assert f"slot {slot.index}: {what}" in gate["reason"]
    assert data["verdict"]["status"] == "failed"


def test_replicas_never_excuse_everything() -> None:
    found = band((END, 0.25, "wte"))
    limits = {gate.name: gate.limit for gate in found.plan.gates}
    assert limits["final.params.A"] == limits["final.params.B"] == MOST_LIMITS["final.params"]

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
from driver.records import ParamsDeviation, TensorError, VariantTrial
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


# --------------------------------------------------------------------------- told twice

PAGE = {"user_agent": "Chrome/143", "cross_origin_isolated": True, "hardware_concurrency": 8,
        "visibility": "visible", "hidden_events": 0, "frozen_events": 0,
        "stalled_ms": 0.0}  # fmt: skip
WASM = {"simd128": True, "relaxed_simd": True, "threads": True, "memory64": True}
MEMORY = {"address_type": "i32", "shared": True, "initial_pages": 2, "initial_bytes": 131072,
          "final_pages": 3, "final_bytes": 196608, "growths": 1, "growths_pages": [1]}  # fmt: skip
RAN = {"address_type": "i32", "shared": "on"}


def told(at: str = "", **changes: Any) -> Parts:
    """A run in which everything that is told twice is told alike, then one witness changed."""
    facts: dict[str, dict[str, Any]] = {
        "page": PAGE, "memory": MEMORY, "ran": RAN, "adapter": receipts.HARDWARE, "wasm": WASM,
        "machine": {"remote": False}, "browser": {"remote": False}, "load_before": {},
    }  # fmt: skip
    facts = {name: fact | changes if name == at else fact for name, fact in facts.items()}
    run = receipts.parts(names=("webgpu", "wasm"))
    was = run.environment
    features = was.features | {"wasm": facts["wasm"], "webgpu": receipts.HARDWARE} | PAGE
    run = run.with_environment(
        page=was.page | PAGE, adapter=facts["adapter"], features=features,
        machine=was.machine | facts["machine"], browser=was.browser | facts["browser"],
        load_before=was.load_before | facts["load_before"],
    )  # fmt: skip
    for index, slot in enumerate(run.slots):
        if slot.side == "B":
            ran = slot.ran | facts["ran"]
            run = run.with_slot(index, page=facts["page"], memory=facts["memory"], ran=ran)
    return run


def one_slot(**changes: Any) -> Parts:
    """One slot of B that tells of its step otherwise than the others."""
    run = told("ran", dispatches_per_step=75, submits_per_step=1)
    index = next(slot.index for slot in run.slots if slot.side == "B")
    return run.with_slot(index, ran=run.slots[index].ran | changes)


def chosen(*trials: tuple[int, str]) -> Parts:
    """Variants that were chosen, each for a product of that many rows, with its status."""
    run = told()
    kernel = {"product": "mm_fwd", "kernel": "blocked", "tile": "8x8", "workgroup": "16x4",
              "N": 8, "K": 8}  # fmt: skip
    variants = tuple(
        VariantTrial.model_validate(
            {"option": "mm_fwd", "kernel": kernel | {"M": rows}, "status": status, "chosen": True}
        )
        for rows, status in trials
    )
    a, b = run.plan.arms
    return run.with_plan(arms=(a.model_copy(update={"variants": variants}), b))


def of_plan(**changes: Any) -> Parts:
    run = told()
    return run.with_plan(preset=run.plan.preset | changes)


def test_what_is_told_twice_alike() -> None:
    assert faults(told()) == ()
    assert faults(one_slot()) == ()
    assert faults(chosen((8, "ok"), (16, "ok"))) == ()
    assert faults(told("page", hidden_events=0, visibility="visible")) == ()


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (told("memory", address_type="i64"), "memory/address_type is 'i64'"),
        (told("memory", shared=False), "memory/shared is False, ran with shared=on"),
        (told("ran", shared="off"), "memory/shared is True, ran with shared=off"),
        (told("memory", final_pages=4), "memory/final_bytes is 196608, of 4 pages"),
        (told("memory", growths=77), "memory/growths is 77, told of are 1"),
        (told("page", visibility="hidden"), "events have no 'hidden'"),
        (told("page", hidden_events=9), "events have no 'hidden'"),
        (told("page", frozen_events=9), "events have no 'frozen'"),
        (told("page", stalled_ms=800.0), "events have no 'frozen'"),
        (told("page", user_agent="Firefox/1"), "page/user_agent is 'Firefox/1'"),
        (told("page", cross_origin_isolated=False), "page/cross_origin_isolated is False"),
        (told("page", hardware_concurrency=2), "page/hardware_concurrency is 2"),
        (one_slot(dispatches_per_step=1), "ran/dispatches_per_step is"),
        (one_slot(submits_per_step=500), "ran/submits_per_step is"),
        (one_slot(kernels={"h.attn": {}}), None),  # only one of them tells of it
        (told("adapter", available=False), "environment/adapter/available is False"),
        (told("wasm", relaxed_simd=False), "needs relaxed_simd"),
        (told("wasm", threads=False), "needs threads"),
        (told("browser", remote=True), "environment/browser/remote is True"),
        (told("load_before", utc="yesterday"), "load_before/utc is 'yesterday'"),
        (told("load_before", utc="2026-11-30T06:59:00"), "not a time in UTC"),
        (chosen((8, "ok"), (8, "ok")), "variants/1 was chosen, as was 0 of the same product"),
        (chosen((8, "wrong")), "variants/0 was chosen, and is wrong"),
        (of_plan(init="philoxx"), "plan/preset/init is 'philoxx'"),
        (of_plan(offsets=7), "plan/preset/offsets is 7"),
        (reference(dtype="float8"), "reference/dtype is 'float8'"),
        (error("grads", "wte", cosine=-1.0), "cannot have the cosine -1.0"),
        (error("params", "wte", cosine=1.03), "cannot have the cosine 1.03"),
        (error("grads", "wte", cosine=0.99), "cannot have the cosine 0.99"),
        (error("grads", "wte", cosine=None), None),
    ],
)  # fmt: skip
def test_what_is_told_twice(run: Parts, words: str | None) -> None:
    """Consistent digests and derived values do not make up for it."""
    found = faults(run)
    assert found == () if words is None else any(words in fault for fault in found), found

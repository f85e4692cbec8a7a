"""Complete, consistent receipts made from nothing, for the tests of what reads and judges them."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from driver import adapter as adapters
from driver.parity import gate_plans
from driver.profile import profile_of
from driver.receipt import assemble, frozen
from driver.records import (
    ArmParity,
    ArmPlan,
    Artifact,
    CorpusFacts,
    Environment,
    Evaluator,
    ModelConfig,
    OthersCpu,
    PageFailure,
    Plan,
    ProfileSamples,
    Receipt,
    ReferenceFacts,
    Roofline,
    Side,
    Slot,
    SlotEvent,
    Subject,
    TeacherPoint,
    TensorError,
)
from driver.schedule import BUDGET_RULE, block_orders
from driver.tensors import table

EVALUATOR = Evaluator(version="0.1.0", sha256="e5" * 32)
CONFIG = ModelConfig(
    n_layer=1, n_head=2, d_model=4, d_ff=8, ctx=3, batch=2, vocab=5, lr=3e-4, beta1=0.9,
    beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip=1.0,
)  # fmt: skip
WARMUP, WINDOWS, STEPS_PER_WINDOW = 2, 3, 4
STEPS = WARMUP + WINDOWS * STEPS_PER_WINDOW
MS: dict[Side, float] = {"A": 40.0, "B": 20.0}

ROOFLINE = Roofline(
    flavour="relaxed multiply-add", threads=2, chains=12, bandwidth_buffer_bytes=3 << 26,
    core_gflops=[40.0, 41.0, 39.0], all_gflops=[2e-4, 1e-3, 1e-4],  # others were at work
    bandwidth_core_gbs=[10.0, 11.0, 9.0], bandwidth_all_gbs=[15.0, 16.0, 14.0],
)  # fmt: skip

PROFILE = ProfileSamples.model_validate({
    "steps": 5, "plain_ms": [50.0, 51.0, 49.0, 50.5], "profiled_ms": [50.5, 51.5, 50.0, 50.0],
    "ops": [
        {"op": "matmul_forward", "calls": 3, "windows_ms": [30.0, 31.0, 30.5, 29.5]},
        {"op": "gelu_forward", "calls": 1, "windows_ms": [5.0, 5.1, 4.9, 5.2]},
        {"op": "adamw", "calls": 1, "windows_ms": [10.0, 10.5, 11.0, 9.5]},
    ],
})  # fmt: skip

CPU_ROOFLINE = ROOFLINE.model_copy(update={"all_gflops": [78.0, 80.0]})
GPU_ROOFLINES = {
    kind: Roofline(
        flavour="fma of vec4f in WGSL", threads=1, chains=32, bandwidth_buffer_bytes=3 << 26,
        core_gflops=[], all_gflops=[gflops, 0.9 * gflops], bandwidth_core_gbs=[],
        bandwidth_all_gbs=[gbs, 0.9 * gbs],
    )
    for kind, gflops, gbs in (("hardware", 9e3, 400.0), ("software", 9.4, 2.1))
}  # fmt: skip

HARDWARE = {
    "available": True, "vendor": "nvidia", "architecture": "turing", "device": "",
    "description": "", "is_fallback": False, "features": ["timestamp-query"],
    "limits": {"maxBufferSize": 1073741824},
}  # fmt: skip
SOFTWARE = HARDWARE | {"vendor": "google", "architecture": "swiftshader", "is_fallback": True}
_GPU_DEVICES = {
    "hardware": [{"vendorId": 0x10DE, "deviceId": 1, "deviceString": "NVIDIA GeForce"}],
    "software": [{"vendorId": 0xFFFF, "deviceId": 0xC0DE, "deviceString": "SwiftShader"}],
}


@dataclass(frozen=True)
class Parts:
    """What `assemble` takes."""

    plan: Plan
    subject: Subject
    environment: Environment
    reference: ReferenceFacts
    parity: tuple[ArmParity, ArmParity]
    slots: tuple[Slot, ...]

    def sealed(self) -> dict[str, Any]:
        """The receipt as read back from its file."""
        data = assemble(
            self.plan, self.subject, self.environment, self.reference, self.parity, self.slots
        )
        return json.loads(json.dumps(data, allow_nan=False))

    def with_slot(self, index: int, **changes: Any) -> "Parts":
        """With some fields of one slot replaced."""
        slots = list(self.slots)
        slots[index] = slots[index].model_copy(update=changes)
        return replace(self, slots=tuple(slots))

    def with_parity(self, which: int, **changes: Any) -> "Parts":
        """With some fields of one side's parity replaced."""
        parity = list(self.parity)
        parity[which] = parity[which].model_copy(update=changes)
        return replace(self, parity=(parity[0], parity[1]))

    def with_environment(self, **changes: Any) -> "Parts":
        """With some fields of the environment replaced."""
        return replace(self, environment=self.environment.model_copy(update=changes))

    def with_plan(self, **changes: Any) -> "Parts":
        """With some fields of the plan replaced, frozen again, its digest echoed by all slots."""
        plan = frozen(self.plan.model_copy(update=changes))
        slots = tuple(
            slot.model_copy(update={"ran": slot.ran | {"plan_sha256": plan.sha256}})
            for slot in self.slots
        )
        return replace(self, plan=plan, slots=slots)


def parts(
    *,
    names: tuple[str, str] = ("wasm", "webgpu"),
    blocks: int = 4,
    adapter: str = "hardware",
    require_hardware: bool = False,
    noise: float = 0.01,
) -> Parts:
    """A run in which everything went well: A takes twice as long as B."""
    arms = (_arm("A", names[0]), _arm("B", names[1]))
    uses_adapter = "webgpu" in names
    plan = frozen(_plan(arms, blocks, require_hardware))
    reference = _reference()
    rng = np.random.Generator(np.random.Philox(key=[7, blocks]))
    slots = []
    for block, order in enumerate(plan.order):
        for position, side in enumerate(order):
            index = 4 * block + position
            slots.append(_slot(plan, index, side, rng, noise, HARDWARE if uses_adapter else None))
    built = Parts(
        plan=plan,
        subject=_subject(),
        environment=_environment("hardware" if uses_adapter else "not-applicable"),
        reference=reference,
        parity=(_parity(arms[0], slots), _parity(arms[1], slots)),
        slots=tuple(slots),
    )
    if uses_adapter:
        return on_software(built) if adapter == "software" else judged(built)
    return built


def on_software(built: Parts) -> Parts:
    """The same run on a software adapter."""
    built = at_speed(built, GPU_ROOFLINES["software"])
    slots = tuple(
        slot.model_copy(update={"adapter": SOFTWARE}) if slot.adapter else slot
        for slot in built.slots
    )
    return judged(replace(built, environment=_environment("software"), slots=slots))


def at_speed(built: Parts, roofline: Roofline | None) -> Parts:
    """The same run on an adapter that is as fast as that."""
    arms = tuple(
        arm.model_copy(update={"roofline": roofline}) if arm.name == "webgpu" else arm
        for arm in built.plan.arms
    )
    return built.with_plan(arms=arms)


def judged(built: Parts) -> Parts:
    """With the adapter's verdict that the raw data give."""
    found = adapters.judge_run(built.plan, built.environment)
    return built.with_environment(adapter_verdict=found.kind, adapter_reasons=found.reasons)


def failed_slot(built: Parts, index: int = 2) -> Parts:
    """The run ended at slot `index`, whose page lost its device after half of its steps."""
    slot = built.slots[index]
    half = STEPS // 2
    broken = slot.model_copy(
        update={
            "status": "failed",
            "failure": PageFailure(kind="device-lost", message="the device was lost", op="train"),
            "windows_ms": slot.windows_ms[:1],
            "losses": slot.losses[:half],
            "grad_norms": slot.grad_norms[:half],
            "param_sha256": None,
            "events": [SlotEvent(kind="console-error", message="GPU process gone")],
        }
    )
    ended = replace(built, slots=(*built.slots[:index], broken))
    for which in (0, 1):
        ended = ended.with_parity(
            which, final_slot=None, final_step=None, final_params={}, final_reason=None
        )
    return ended


def nonfinite(built: Parts) -> Parts:
    """B's losses turn into NaN, infinities and, for its last window's time, NaN."""
    for index, slot in enumerate(built.slots):
        if slot.side == "B":
            losses = [*slot.losses[:5], math.nan, math.inf, -math.inf, *slot.losses[8:]]
            windows = [*slot.windows_ms[:-1], math.nan]
            built = built.with_slot(index, losses=losses, windows_ms=windows)
    return built


def everything() -> dict[str, Parts]:
    """One run of every kind that a receipt has to tell of."""
    good = parts()
    return {
        "good": good,
        "software": parts(adapter="software"),
        "required": parts(adapter="software", require_hardware=True),
        "failed": failed_slot(good),
        "no slots": replace(failed_slot(good), slots=()),
        "one block": parts(blocks=1),
        "odd": parts(blocks=5),
        "six": parts(blocks=6),
        "not finite": nonfinite(good),
        "failed, not finite": nonfinite(failed_slot(parts(blocks=1), 3)),
        "null": parts(names=("null", "null"), blocks=4),
        "wasm": parts(names=("wasm64", "wasm"), blocks=2),
    }


# --------------------------------------------------------------------------- strangers' receipts


def poisoned(data: Any, poison: str, keep: tuple[str, ...] = ()) -> Any:
    """Every string that the schema leaves free is followed by `poison`."""
    if isinstance(data, dict):
        return {k: v if k in keep else poisoned(v, poison, keep) for k, v in data.items()}
    if isinstance(data, list):
        return [poisoned(item, poison, keep) for item in data]
    return data + poison if isinstance(data, str) else data


# Words of the schema; anything else may hold what a stranger likes.
WORDS = (
    "format", "side", "state", "order", "gate_class", "status", "word", "kind",
    "adapter_verdict", "nonfinite", "order", "op", "clock",
)  # fmt: skip


# Numbers that no run gives.
ODD = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324)


def with_numbers(run: Receipt, value: float, parts: Sequence[str]) -> Receipt:
    """The receipt with every float of these parts replaced."""

    def everywhere(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: everywhere(item) for key, item in data.items()}
        if isinstance(data, list | tuple):
            return [everywhere(item) for item in data]
        return value if isinstance(data, float) else data

    changed = everywhere(json.loads(run.model_dump_json(include=set(parts))))
    return Receipt.model_validate(run.model_dump() | changed)


# --------------------------------------------------------------------------- the parts


def _arm(side: Side, name: str) -> ArmPlan:
    options: dict[str, str | int | float | bool] = {
        "wasm": {"simd": "relaxed", "threads": 2},
        "wasm64": {"simd": "relaxed", "threads": 2},
        "webgpu": {"mm_fwd": "blocked", "mm_da": "blocked", "mm_db": "blocked", "f16": "off"},
        "null": {"ms": MS[side]},
    }[name]  # type: ignore[assignment]
    expected: dict[str, Any] = {"arm": name, "state_sha256": "5a" * 32}
    if name != "null":
        expected |= {"hyper": CONFIG.model_dump(), "tokens_sha256": "70" * 32}
    is_wasm = name.startswith("wasm")
    return ArmPlan(
        side=side, name=name,
        canonical=f"{name}:" + "+".join(f"{key}={options[key]}" for key in sorted(options)),
        options=options, expected=expected, warmup_steps=WARMUP, windows=WINDOWS,
        steps_per_window=STEPS_PER_WINDOW, estimated_step_ms=MS[side] / STEPS_PER_WINDOW,
        readback_ms=0.05,
        roofline=ROOFLINE if is_wasm else GPU_ROOFLINES["hardware"] if name == "webgpu" else None,
        profile=profile_of(PROFILE, CONFIG) if is_wasm else None,
        profile_reason=None if is_wasm else "not measured on this arm yet",
    )  # fmt: skip


def _plan(arms: tuple[ArmPlan, ArmPlan], blocks: int, require_hardware: bool) -> Plan:
    return Plan(
        question="How much faster?", tracking_url="https://example.org/1",
        frozen_utc="2026-11-30T07:00:00.000000+00:00", preset={"name": "mini", "blocks": blocks},
        config=CONFIG, seed=11,
        corpus=CorpusFacts(
            name="generated", sha256="c0" * 32, size_bytes=1_100_000, entropy_nats_per_byte=1.31,
            unigram_entropy_nats=2.9,
        ),
        state_sha256="5a" * 32, tokens_sha256="70" * 32, arms=arms,
        order=block_orders(blocks, 11), gates=gate_plans(require_hardware, _reference()),
        adapter_rule=adapters.RULE, reference_steps=STEPS, budget_s=600.0, estimated_s=12.5,
        reductions=("blocks 6 → 4",), budget_rule=BUDGET_RULE, stop_rule="all planned blocks run",
        allowed_decisions=("faster", "slower", "equivalent", "unsure", "failed"), margin=0.02,
        require_hardware=require_hardware, evaluator=EVALUATOR,
    )  # fmt: skip


def _subject() -> Subject:
    return Subject(
        driver_version="0.1.0", revision="0f" * 20, dirty=False,
        artifacts=(
            Artifact(name="relaxed-wasm32.wasm", sha256="aa" * 32, size_bytes=20_000,
                     flags=("-O3", "-ffp-contract=off"), compiler="ziglang 0.17.1"),
            Artifact(name="matmul_forward.wgsl", sha256="bb" * 32, size_bytes=2_000),
        ),
    )  # fmt: skip


def _environment(adapter: str) -> Environment:
    facts = {"hardware": HARDWARE, "software": SOFTWARE}.get(adapter)
    return Environment(
        machine={"cpu": "Model CPU @ 3 GHz", "cores_logical": 8, "system": "Linux"},
        load_before={"utc": "2026-11-30T06:59:00+00:00", "load_1min": 0.5, "governor": None},
        load_after={"utc": "2026-11-30T07:09:00+00:00", "load_1min": 2.5, "governor": None},
        others_cpu=OthersCpu(shares=(0.02, 0.01, 0.03)),
        browser={"name": "chromium", "version": "143.0.1", "argv": ["--headless=new"],
                 "gpu_devices": _GPU_DEVICES.get(adapter, [])},
        page={"cross_origin_isolated": True, "timer_step_ms": 0.005},
        adapter=facts,
        cpu_roofline=CPU_ROOFLINE if facts else None,
        adapter_verdict=adapter,  # type: ignore[arg-type]
        adapter_reasons=("no arm uses an adapter",),
        features={"wasm": {"simd128": True}, "webgl_renderer": None},
    )  # fmt: skip


def _reference() -> ReferenceFacts:
    return ReferenceFacts(
        dtype="float64", losses=[1.61 - 0.02 * i for i in range(STEPS)],
        grad_norms=[2.0 - 0.05 * i for i in range(STEPS)],
        first_step_grad_norms={
            slot.name: 2.0 / math.sqrt(len(table(CONFIG))) for slot in table(CONFIG)
        },
        band_grad_norms=[1e-7] * 5, band=[2e-8, 3e-8, 5e-8, 4e-8, 4e-8], band_reason=None,
        band_replicas=8,
    )  # fmt: skip


def _parity(arm: ArmPlan, slots: Sequence[Slot]) -> ArmParity:
    if arm.name == "null":
        return ArmParity(side=arm.side, applicable=False, reason="the null arm does not train")
    error = TensorError(rel_l2=3e-7, cosine=1.0, worst_scaled=2e-6)
    errors = {slot.name: error for slot in table(CONFIG)}
    losses = _reference().losses
    points = tuple(
        TeacherPoint(
            t=t, state=state, loss=losses[t], reference_loss=losses[t], grad_norm=2.0,
            reference_grad_norm=2.0, grads=errors, params=errors, key_bias_ratio=2e-8,
        )
        for t, state in ((0, "curve"), (1, "curve"), (4, "curve"), (0, "wide"))
    )  # fmt: skip
    return ArmParity(
        side=arm.side, applicable=True, points=points, export_equal=True,
        final_slot=next(slot.index for slot in slots if slot.side == arm.side), final_step=STEPS,
        final_params=errors,
    )  # fmt: skip


def timed(windows_ms: Iterable[float]) -> dict[str, list[float]]:
    """What a slot says of windows, by the page's clock and by the driver's."""
    windows = [float(ms) for ms in windows_ms]
    arrivals = np.cumsum([700.0, *(ms + 4.0 for ms in windows)])
    return {"windows_ms": windows, "arrivals_ms": [float(at) for at in arrivals]}


def _slot(
    plan: Plan,
    index: int,
    side: Side,
    rng: np.random.Generator,
    noise: float,
    adapter: Mapping[str, Any] | None,
) -> Slot:
    arm = plan.arms[0 if side == "A" else 1]
    reference = _reference()
    off = 1.0 if arm.name == "null" else 1 + (2e-7 if arm.name == "webgpu" else -1e-7)
    windows: Sequence[float] = MS[side] * np.exp(noise * rng.standard_normal(WINDOWS))
    return Slot(
        index=index, block=index // 4, position=index % 4, side=side, arm=arm.canonical,
        status="ok", started_utc=f"2026-11-30T07:01:{index:02d}.000000+00:00", compile_ms=12.5,
        upload_ms=1.5, first_step_ms=15.0, steps_per_window=STEPS_PER_WINDOW,
        **timed(windows), tell_ms=[3.0, 4.0, 3.5], losses=[x * off for x in reference.losses],
        grad_norms=[x * off for x in reference.grad_norms], sentinel_ms=[3.1, 3.0],
        gpu_sentinel_ms=[9.2, 9.1] if adapter else [],
        param_sha256="9d" * 32, memory={"address": "i32", "final_bytes": 131072, "growths": 0},
        ran=dict(arm.expected) | {"plan_sha256": plan.sha256},
        adapter=dict(adapter) if adapter and arm.name == "webgpu" else None,
        page={"user_agent": "Chrome/143", "hidden_events": 0},
        events=[SlotEvent(kind="console-warning", message="a warning")], wall_ms=900.0,
    )  # fmt: skip

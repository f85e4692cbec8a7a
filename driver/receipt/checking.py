"""Receipts checked offline: whatever is derived is computed again from the raw data.

Three answers. *invalid*: a digest, an order in time, data that contradict each other, or a number
that the format itself fixes does not hold. *unconfirmed*: all of that holds, but the receipt was
judged by another evaluator, and this one comes to something else. *valid*: everything was computed
again and is the same.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from driver import adapter
from driver.calibration import calibration_key, calibration_of
from driver.errors import ReceiptError
from driver.parity import SIDES, gate_plans
from driver.profile import profile_of
from driver.receipt.deriving import derive
from driver.receipt.raw import raw_faults
from driver.receipt.sealing import digest, parse, sha256
from driver.receipt.twice import twice_faults
from driver.records import ArmPlan, Comparison, Evaluator, Gate, Plan, Receipt, Verdict

# The most blocks that a run takes. What has more would only cost whoever checks it time.
MOST_BLOCKS = 10_000
# Medians, quartiles and block values are plain arithmetic on the windows, the same in all versions.
FIXED_BY_FORMAT = ("comparison/arms/", "comparison/blocks/")


Derived = tuple[Comparison, tuple[Gate, ...], Verdict]


@dataclass(frozen=True)
class Examination:
    """What a check found. `unconfirmed` has entries only where the evaluator is another one."""

    faults: tuple[str, ...]
    unconfirmed: tuple[str, ...]
    remarks: tuple[str, ...]
    content_digest: str = ""  # where it could be evaluated, as are the next two
    receipt: Receipt | None = None
    derived: Derived | None = None  # from its raw data, by this evaluator

    @property
    def status(self) -> Literal["valid", "unconfirmed", "invalid"]:
        """One word for it all."""
        return "invalid" if self.faults else "unconfirmed" if self.unconfirmed else "valid"


def verify(data: Any, evaluator: Evaluator) -> tuple[list[str], list[str]]:
    """Everything that keeps a receipt from being valid, and remarks."""
    found = examine(data, evaluator)
    return [*found.faults, *found.unconfirmed], list(found.remarks)


def examine(data: Any, evaluator: Evaluator) -> Examination:
    """Checks digests, order and raw data, and computes everything derived again.

    Never raises: what cannot be read or evaluated is a fault.
    """
    try:
        receipt = parse(data)
        faults = _size_faults(receipt)
        if faults:
            return Examination(tuple(faults), (), ())
        actual = digest(data)
        faults = [*_digest_faults(actual, receipt), *_time_faults(receipt)]
        faults += _contradictions(receipt)
        derived = derive(
            receipt.plan, receipt.environment, receipt.reference, receipt.parity, receipt.slots
        )
        different = _differences(receipt, derived, receipt.plan.evaluator != evaluator)
    except ReceiptError as error:
        return Examination((str(error),), (), ())
    except (ValueError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {str(error)!r:.200}"
        return Examination((f"its raw data cannot be evaluated ({why})",), (), ())

    if receipt.plan.evaluator == evaluator:
        plan = receipt.plan
        gates = gate_plans(plan.require_hardware, receipt.reference, plan.arms, plan.config.n_layer)
        wanted = [gate.model_dump() for gate in gates]
        planned = [gate.model_dump() for gate in receipt.plan.gates]
        faults += different + _unlike(wanted, planned, "plan/gates") + _adapter_unlike(receipt)
        return Examination(tuple(faults), (), (), actual, receipt, derived)
    fixed = [line for line in different if line.startswith(FIXED_BY_FORMAT)]
    others = tuple(line for line in different if line not in fixed)
    remark = _evaluator_remark(receipt.plan.evaluator, evaluator, len(others))
    return Examination((*faults, *fixed), others, (remark,), actual, receipt, derived)


def _evaluator_remark(judged: Evaluator, here: Evaluator, different: int) -> str:
    """What another evaluator means for the answer."""
    outcome = (
        f"{different} of them differ, which may come from that; the version that wrote it can tell"
        if different
        else "it comes to the same"
    )
    return (
        f"evaluator changed: the receipt was judged by version {judged.version[:40]!r} "
        f"({judged.sha256[:12]!r}), this is {here.version} ({here.sha256[:12]}). Digests, times, "
        "raw data, medians and block values are checked as ever; estimate, drift, gates and "
        f"verdict were computed again by this evaluator: {outcome}"
    )


def _differences(receipt: Receipt, derived: Derived, other: bool) -> list[str]:
    """Comparison, gates, verdict and profiles that are not what the raw data give."""
    comparison, gates, verdict = derived
    found = []
    for name, computed in (("comparison", comparison), ("verdict", verdict)):
        # Another evaluator's receipt may lack what was derived only later.
        have = getattr(receipt, name).model_dump(mode="python", exclude_unset=other)
        want = computed.model_dump(mode="python")
        found += _unlike(_as_far_as(want, have) if other else want, have, name)
    for index, arm in enumerate(receipt.plan.arms):
        if arm.profile:
            want = profile_of(arm.profile.samples, receipt.plan.config).model_dump()
            have = arm.profile.model_dump()
            found += _unlike(want, have, f"plan/arms/{index}/profile")
    wanted, judged = ([gate.model_dump() for gate in some] for some in (gates, receipt.gates))
    return found + _unlike(wanted, judged, "gates")


def _size_faults(receipt: Receipt) -> list[str]:
    """A bound on the work of all later checks."""
    blocks, slots = len(receipt.plan.order), len(receipt.slots)
    if blocks > MOST_BLOCKS:
        return [f"plan/order has {blocks} blocks, at most {MOST_BLOCKS} can be planned"]
    if slots > 4 * blocks:
        return [f"slots has {slots} entries, planned were {4 * blocks}"]
    return []


def _digest_faults(actual: str, receipt: Receipt) -> Iterator[str]:
    if receipt.digest != actual:
        yield f"digest is {receipt.digest!r:.80}, its content gives {actual}"
    # As written: a field that a later version has added was not there to be hashed.
    plan = receipt.plan.model_dump(mode="json", exclude={"sha256"}, exclude_unset=True)
    if receipt.plan.sha256 != sha256(plan):
        yield "plan/sha256 does not match the plan: it was changed after it was frozen"


def _time_faults(receipt: Receipt) -> Iterator[str]:
    """The plan is frozen before the first slot, slots start one after another under that plan."""
    times = [("plan/frozen_utc", receipt.plan.frozen_utc)]
    times += [(f"slots/{i}/started_utc", slot.started_utc) for i, slot in enumerate(receipt.slots)]
    moments = []
    for place, text in times:
        moment = _moment(text)
        if moment is None:
            yield f"{place} is {text!r:.60}, not a time in UTC"
            return
        moments.append(moment)
    late = next((i for i in range(1, len(moments)) if moments[i] < moments[i - 1]), None)
    if late is not None:
        before = "the plan was frozen" if late == 1 else f"slot {late - 2} started"
        yield f"slots/{late - 1} started before {before}"
    for i, slot in enumerate(receipt.slots):
        echoed = slot.ran.get("plan_sha256")
        if (slot.ran or slot.status == "ok") and echoed != receipt.plan.sha256:
            yield f"slots/{i} ran under the plan {echoed!r:.80}, not under this receipt's"


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.utcoffset() is None else moment


def _contradictions(receipt: Receipt) -> Iterator[str]:
    """Raw data that tell the same thing twice must tell it alike."""
    plan = receipt.plan
    for i, side in enumerate(SIDES):
        if plan.arms[i].side != side:
            yield f"plan/arms/{i}/side is {plan.arms[i].side}, expected {side}"
        if receipt.parity[i].side != side:
            yield f"parity/{i}/side is {receipt.parity[i].side}, expected {side}"
        yield from _arm_faults(receipt, plan.arms[i], f"plan/arms/{i}")
    for i, slot in enumerate(receipt.slots):
        planned = plan.arms[SIDES.index(slot.side)].canonical
        if slot.arm != planned:
            yield f"slots/{i}/arm is {slot.arm!r:.100}, planned was {planned!r:.100}"
    for name in ("losses", "grad_norms"):
        steps = len(getattr(receipt.reference, name))
        if steps != plan.reference_steps:
            yield f"reference/{name} has {steps} steps, planned {plan.reference_steps}"
    for key, value in plan.config.model_dump().items():
        if plan.preset.get(key, value) != value:
            yield f"plan/preset/{key} is {plan.preset[key]!r:.60}, plan/config has {value!r}"
    yield from _adapter_faults(receipt)
    yield from raw_faults(receipt)
    yield from twice_faults(receipt)


def _arm_faults(receipt: Receipt, arm: ArmPlan, path: str) -> Iterator[str]:
    """An arm that was to run something else than the plan's data and the subject's files."""
    if arm.calibration:
        known = arm.calibration
        derived_noise = calibration_of(known.key, known.margin, known.runs)
        yield from _unlike(derived_noise.model_dump(), known.model_dump(), f"{path}/calibration")
        wanted = calibration_key(receipt.plan, receipt.environment, SIDES.index(arm.side))
        yield from _unlike(wanted.model_dump(), known.key.model_dump(), f"{path}/calibration/key")
    for key, value in _planned_echo(receipt.plan).items():
        if arm.expected.get(key, value) != value:
            yield f"{path}/expected/{key} is {arm.expected[key]!r:.80}, the plan has {value!r:.80}"
    files = {artifact.sha256 for artifact in receipt.subject.artifacts}
    kernels = arm.expected.get("wgsl_sha256")
    needed = [("module_sha256", arm.expected.get("module_sha256"))]
    if isinstance(kernels, Mapping):
        needed += [(f"wgsl_sha256/{name!r:.80}", sha) for name, sha in kernels.items()]
    for key, sha in needed:
        if sha is not None and (not isinstance(sha, str) or sha not in files):
            yield f"{path}/expected/{key} is {sha!r:.80}, of which subject/artifacts has no file"


def _planned_echo(plan: Plan) -> dict[str, Any]:
    return {
        "hyper": plan.config.model_dump(),
        "state_sha256": plan.state_sha256,
        "tokens_sha256": plan.tokens_sha256,
    }


def _adapter_faults(receipt: Receipt) -> Iterator[str]:
    environment = receipt.environment
    uses_adapter = any(arm.name == "webgpu" for arm in receipt.plan.arms)
    found = adapter.judge_run(receipt.plan, environment).kind if uses_adapter else "not-applicable"
    if environment.adapter_verdict != found:
        said = environment.adapter_verdict
        yield f"environment/adapter_verdict is {said}, its signals give {found}"


def _adapter_unlike(receipt: Receipt) -> list[str]:
    """What this evaluator would have planned and said of the adapter, where it differs."""
    have = receipt.plan.adapter_rule.model_dump() if receipt.plan.adapter_rule else None
    faults = _unlike(adapter.RULE.model_dump(), have, "plan/adapter_rule")
    if any(arm.name == "webgpu" for arm in receipt.plan.arms):
        environment = receipt.environment
        reasons = adapter.judge_run(receipt.plan, environment).reasons
        faults += _unlike(reasons, environment.adapter_reasons, "environment/adapter_reasons")
    return faults


def _as_far_as(want: Any, have: Any) -> Any:
    """`want` without the keys that `have` lacks."""
    if isinstance(want, dict) and isinstance(have, dict):
        return {key: _as_far_as(item, have[key]) for key, item in want.items() if key in have}
    if isinstance(want, list | tuple) and isinstance(have, list | tuple) and len(want) == len(have):
        return [_as_far_as(w, h) for w, h in zip(want, have, strict=True)]
    return want


def _unlike(want: Any, have: Any, path: str) -> list[str]:
    """Differences between recomputed and recorded values; floats agree to 1e-9 relative."""
    if isinstance(want, dict) and isinstance(have, dict):
        keys = sorted(want.keys() | have.keys(), key=str)
        return [d for k in keys for d in _unlike(want.get(k), have.get(k), f"{path}/{k}")]
    if isinstance(want, list | tuple) and isinstance(have, list | tuple):
        if len(want) != len(have):
            return [f"{path} has {len(have)} entries, recomputed {len(want)}"]
        pairs = zip(want, have, strict=True)
        return [d for i, (w, h) in enumerate(pairs) for d in _unlike(w, h, f"{path}/{i}")]
    if isinstance(want, float) and isinstance(have, float):
        same = (math.isnan(want) and math.isnan(have)) or math.isclose(
            want, have, rel_tol=1e-9, abs_tol=1e-15
        )
        return [] if same else [f"{path} is {have!r}, recomputed {want!r}"]
    return [] if want == have else [f"{path} is {have!r:.200}, recomputed {want!r:.200}"]

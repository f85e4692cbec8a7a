"""Receipts: assembled from raw data, digested, and checked by computing everything again.

`derive` is the one function that turns raw data into comparison, gates and verdict; `driver run`
writes what it gives and `driver verify` compares with what it gives. The digest is SHA-256 over the
RFC 8785 form. It proves that nothing changed since, not who wrote it: whoever recomputes everything
consistently can forge a receipt, and only reproducing it tells.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import rfc8785
from pydantic import ValidationError

from driver import adapter
from driver.errors import ReceiptError
from driver.parity import SIDES, gate_plans, judge
from driver.profile import profile_of
from driver.records import (
    ArmParity,
    Comparison,
    Environment,
    Evaluator,
    Gate,
    Plan,
    Receipt,
    Record,
    ReferenceFacts,
    Slot,
    Subject,
    Verdict,
)
from driver.stats import compare

FORMAT = "driver-receipt/1"
R = TypeVar("R", bound=Record)
_KINDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# --------------------------------------------------------------------------- assemble


def assemble(
    plan: Plan,
    subject: Subject,
    environment: Environment,
    reference: ReferenceFacts,
    parity: tuple[ArmParity, ArmParity],
    slots: Sequence[Slot],
) -> dict[str, Any]:
    """The receipt as JSON data, digest included."""
    # Derived from what will be read back: a reason that quotes a value must quote that one.
    environment, reference = _portable(environment), _portable(reference)
    a, b = (_portable(side) for side in parity)
    slots = tuple(_portable(slot) for slot in slots)
    comparison, gates, verdict = derive(plan, environment, reference, (a, b), slots)
    receipt = Receipt(
        plan=plan,
        subject=_portable(subject),
        environment=environment,
        reference=reference,
        parity=(a, b),
        slots=slots,
        comparison=comparison,
        gates=gates,
        verdict=verdict,
    )
    return seal(receipt.model_dump(mode="python"))


def derive(
    plan: Plan,
    environment: Environment,
    reference: ReferenceFacts,
    parity: Sequence[ArmParity],
    slots: Sequence[Slot],
) -> tuple[Comparison, tuple[Gate, ...], Verdict]:
    """Comparison, gates and verdict from raw data alone."""
    comparison = compare(plan, reference, slots)
    gates = judge(plan, environment, parity, slots, comparison)
    return comparison, gates, decide(plan, environment, comparison, gates)


def decide(
    plan: Plan, environment: Environment, comparison: Comparison, gates: Sequence[Gate]
) -> Verdict:
    """failed by a blocking gate, unqualified by any other that did not pass, else qualified."""
    failed = [g for g in gates if g.gate_class == "blocking" and g.status == "fail"]
    short = [
        g
        for g in gates
        if g.status == "unknown" or (g.gate_class == "qualifying" and g.status == "fail")
    ]
    # The adapter first: it is what most readers need to know.
    short.sort(key=lambda gate: gate.name != "adapter")
    open_gates = failed or short
    status = "failed" if failed else "unqualified" if short else "qualified"
    return Verdict(
        status=status,
        reasons=_reasons(open_gates),
        headline=_headline(plan, environment, comparison, status),
    )


def _reasons(gates: Sequence[Gate]) -> tuple[str, ...]:
    """One sentence per gate; those that are unknown for the same reason share one."""
    groups: dict[tuple[str, str], list[Gate]] = {}
    for gate in gates:
        key = ("unknown", gate.reason) if gate.status == "unknown" else ("", gate.name)
        groups.setdefault(key, []).append(gate)
    return tuple(
        _short_reason(group[0].model_copy(update={"name": ", ".join(g.name for g in group)}))
        for group in groups.values()
    )


def _short_reason(gate: Gate) -> str:
    if gate.name == "adapter" and gate.status == "fail":
        return gate.reason.split(" (", 1)[0]
    return f"{gate.name} {'failed' if gate.status == 'fail' else gate.status}: {gate.reason}"


def _headline(plan: Plan, environment: Environment, comparison: Comparison, status: str) -> str:
    """One sentence that claims exactly its shape, machine, browser and precision."""
    a, b = plan.arms
    c, estimate = plan.config, comparison.estimate
    shape = (
        f"{plan.preset.get('name')} GPT (L{c.n_layer} H{c.n_head} C{c.d_model} T{c.ctx} "
        f"B{c.batch}, float32)"
    )
    browser = f"{environment.browser.get('name')} {environment.browser.get('version')}"
    where = f"{environment.machine.get('cpu') or 'this machine'}, {browser}"
    if environment.adapter_verdict != "not-applicable":
        where += f", {environment.adapter_verdict} adapter"
    where += "; steady state, cold costs apart"
    if status == "failed" or estimate.ratio is None:
        return f"No claim: the comparison of {a.name} and {b.name} on the {shape} failed ({where})."
    times = " against ".join(
        f"{arm.median_step_ms:.4g} ms/step" for arm in comparison.arms if arm.median_step_ms
    )
    # Said from the faster side, so that the figure is above 1.
    low, high, ratio = estimate.low, estimate.high, estimate.ratio
    fast, slow = (b, a) if ratio >= 1 else (a, b)
    if ratio < 1:
        ratio, low, high = 1 / ratio, high and 1 / high, low and 1 / low
    interval = f"95% interval {low:.3g} to {high:.3g}" if low and high else "no interval"
    return (
        f"{fast.side} {fast.canonical} trained {ratio:.3g} times as fast as {slow.side} "
        f"{slow.canonical} ({times}; {interval}; {estimate.word}) on the {shape}; {where}."
    )


# --------------------------------------------------------------------------- digests, JSON


def seal(data: dict[str, Any]) -> dict[str, Any]:
    """JSON data with numbers that are not finite moved to `nonfinite`, and the digest set."""
    found: list[dict[str, str]] = []
    whole = _plain({**data, "nonfinite": [], "digest": ""})
    clean: dict[str, Any] = _without_nonfinite(whole, "", found)
    clean["nonfinite"] = found
    clean["digest"] = digest(clean)
    return clean


def digest(data: Mapping[str, Any]) -> str:
    """SHA-256 over the RFC 8785 form of everything but `digest`; raises ReceiptError."""
    return _sha256({key: value for key, value in data.items() if key != "digest"})


def plan_digest(plan: Plan) -> str:
    """SHA-256 over the RFC 8785 form of the plan without its own `sha256`."""
    return _sha256(plan.model_dump(mode="json", exclude={"sha256"}))


def frozen(plan: Plan) -> Plan:
    """The plan with its digest."""
    return plan.model_copy(update={"sha256": plan_digest(plan)})


def _sha256(data: Any) -> str:
    try:
        return hashlib.sha256(rfc8785.dumps(data)).hexdigest()
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeEncodeError) as error:
        raise ReceiptError(f"the receipt has no canonical form ({error})") from error


def _without_nonfinite(value: Any, path: str, found: list[dict[str, str]]) -> Any:
    if isinstance(value, Mapping):
        return {
            str(key): _without_nonfinite(item, f"{path}/{_pointer(str(key))}", found)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_nonfinite(item, f"{path}/{i}", found) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        kind = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        found.append({"path": path, "kind": kind})
        return None
    return value


def _portable(record: R) -> R:
    """The record without what RFC 8785 refuses: integers from 2^53 and lone surrogates."""
    return type(record).model_validate(_plain(record.model_dump(mode="python")))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return str(value)
    if isinstance(value, str):  # a page may log half of a pair
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def restored(data: dict[str, Any]) -> dict[str, Any]:
    """A copy with the numbers of `nonfinite` put back; raises ReceiptError for a wrong path."""
    copy: dict[str, Any] = _copied(data)
    entries = copy.get("nonfinite", [])
    if not isinstance(entries, list):
        raise ReceiptError("nonfinite is not a list")
    for entry in entries:
        path, kind = (entry.get("path"), entry.get("kind")) if isinstance(entry, dict) else (0, 0)
        if not isinstance(path, str) or not path.startswith("/") or str(kind) not in _KINDS:
            raise ReceiptError(f"nonfinite: {entry!r:.100} is no pair of JSON pointer and kind")
        keys = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
        target: Any = copy
        try:
            for key in keys[:-1]:
                target = target[_key(target, key)]
            last = _key(target, keys[-1])
            held = target[last]
            if held is None:
                target[last] = _KINDS[str(kind)]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ReceiptError(f"nonfinite: {path!r:.100} leads nowhere") from error
        if held is not None:
            raise ReceiptError(f"nonfinite: {path!r:.100} holds {held!r:.50}, expected null")
    return copy


def _key(target: Any, key: str) -> Any:
    """The index or name of a JSON pointer's part; an array's index is digits alone (RFC 6901)."""
    if not isinstance(target, list):
        return key
    if not (key.isascii() and key.isdigit()):
        raise ValueError(key)
    return int(key)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


# --------------------------------------------------------------------------- verify


def parse(data: Any) -> Receipt:
    """Checks format and schema; raises ReceiptError naming the first few faults."""
    if not isinstance(data, dict):
        raise ReceiptError(f"a receipt is a JSON object, this is {type(data).__name__}")
    try:
        found = data.get("format")
        if found != FORMAT:
            raise ReceiptError(f"format is {found!r:.100}; this version reads {FORMAT!r}")
        return Receipt.model_validate(restored(data))
    except RecursionError as error:
        raise ReceiptError("nested too deeply for a receipt") from error
    except ValidationError as error:
        faults = [f"{_place(fault['loc'])}: {fault['msg']}" for fault in error.errors()[:5]]
        more = error.error_count() - len(faults)
        raise ReceiptError("; ".join(faults) + (f"; and {more} more" if more else "")) from error


def _place(loc: Sequence[int | str]) -> str:
    """Where a fault lies; a key of a stranger's choosing is quoted, so that no escape gets out."""
    parts = (str(part) for part in loc)
    return "/".join(part if part.isidentifier() or part.isdigit() else repr(part) for part in parts)


def verify(data: Any, evaluator: Evaluator) -> tuple[list[str], list[str]]:
    """Faults and remarks of a receipt, everything derived computed again.

    Faults make it invalid. Remarks do not: an evaluator other than the installed one is a remark,
    since its numbers may differ for a good reason.
    """
    try:
        receipt = parse(data)
        faults = _digest_faults(data, receipt) + _order_faults(receipt) + _contradictions(receipt)
        comparison, gates, verdict = derive(
            receipt.plan, receipt.environment, receipt.reference, receipt.parity, receipt.slots
        )
    except ReceiptError as error:
        return [str(error)], []
    except (ValueError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {str(error)!r:.200}"
        return [f"its raw data cannot be evaluated ({why})"], []

    for name, derived in (("comparison", comparison), ("verdict", verdict)):
        want = derived.model_dump(mode="python")
        have = getattr(receipt, name).model_dump(mode="python")
        faults += _unlike(want, have, name)
    faults += _unlike(
        [gate.model_dump() for gate in gates], [g.model_dump() for g in receipt.gates], "gates"
    )
    if receipt.plan.evaluator == evaluator:
        wanted = gate_plans(receipt.plan.require_hardware)
        faults += _unlike(
            [gate.model_dump() for gate in wanted],
            [gate.model_dump() for gate in receipt.plan.gates],
            "plan/gates",
        )
    remarks = []
    if receipt.plan.evaluator != evaluator:
        judged = receipt.plan.evaluator
        remarks.append(
            f"evaluator changed: the receipt was judged by version {judged.version[:40]!r} "
            f"({judged.sha256[:12]!r}), this is {evaluator.version} ({evaluator.sha256[:12]}); "
            "a difference above may come from that"
        )
    return faults, remarks


def _digest_faults(data: dict[str, Any], receipt: Receipt) -> list[str]:
    faults = []
    actual = digest(data)
    if receipt.digest != actual:
        faults.append(f"digest is {receipt.digest!r:.80}, its content gives {actual}")
    # As written: a field that a later version has added was not there to be hashed.
    plan = receipt.plan.model_dump(mode="json", exclude={"sha256"}, exclude_unset=True)
    if receipt.plan.sha256 != _sha256(plan):
        faults.append("plan/sha256 does not match the plan: it was changed after it was frozen")
    return faults


def _order_faults(receipt: Receipt) -> list[str]:
    """The plan is frozen before the first slot, and slots start one after another."""
    times = [receipt.plan.frozen_utc, *(slot.started_utc for slot in receipt.slots)]
    late = next((i for i in range(1, len(times)) if times[i] < times[i - 1]), None)
    if late is None:
        return []
    before = "the plan was frozen" if late == 1 else f"slot {late - 2} started"
    return [f"slots/{late - 1} started before {before}"]


def _contradictions(receipt: Receipt) -> list[str]:
    """Raw data that tell the same thing twice must tell it alike."""
    plan, environment, faults = receipt.plan, receipt.environment, []
    for i, side in enumerate(SIDES):
        if plan.arms[i].side != side:
            faults.append(f"plan/arms/{i}/side is {plan.arms[i].side}, expected {side}")
        profile = plan.arms[i].profile
        if profile:
            derived = profile_of(profile.samples, plan.config)
            faults += _unlike(derived.model_dump(), profile.model_dump(), f"plan/arms/{i}/profile")
        if receipt.parity[i].side != side:
            faults.append(f"parity/{i}/side is {receipt.parity[i].side}, expected {side}")
    for i, slot in enumerate(receipt.slots):
        planned = plan.arms[SIDES.index(slot.side)].canonical
        if slot.arm != planned:
            faults.append(f"slots/{i}/arm is {slot.arm!r:.100}, planned was {planned!r:.100}")
    for name in ("losses", "grad_norms"):
        steps = len(getattr(receipt.reference, name))
        if steps != plan.reference_steps:
            faults.append(f"reference/{name} has {steps} steps, planned {plan.reference_steps}")
    uses_adapter = any(arm.name == "webgpu" for arm in plan.arms)
    signals = {
        "webgpu": environment.adapter,
        "gpu_devices": environment.browser.get("gpu_devices") or (),
        "webgl_renderer": environment.features.get("webgl_renderer"),
    }
    kind = adapter.judge(adapter.AdapterSignals.model_validate(signals)).kind
    wanted = kind if uses_adapter else "not-applicable"
    if environment.adapter_verdict != wanted:
        said = environment.adapter_verdict
        faults.append(f"environment/adapter_verdict is {said}, its signals give {wanted}")
    return faults


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

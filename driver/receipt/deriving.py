"""Raw data → comparison, gates, verdict and the whole receipt."""

from collections.abc import Sequence
from typing import Any

from driver.arms import in_few_words
from driver.parity import NAMES, SIDES, judge, precision_of
from driver.receipt.sealing import portable, seal
from driver.records import (
    ArmParity,
    Comparison,
    Environment,
    Estimate,
    Gate,
    Plan,
    Receipt,
    ReferenceFacts,
    Slot,
    Subject,
    Verdict,
)
from driver.stats import compare
from driver.wording import counted, interval_text, told_apart_from


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
    environment, reference = portable(environment), portable(reference)
    a, b = (portable(side) for side in parity)
    slots = tuple(portable(slot) for slot in slots)
    comparison, gates, verdict = derive(plan, environment, reference, (a, b), slots)
    receipt = Receipt(
        plan=plan,
        subject=portable(subject),
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
    gates = judge(plan, environment, parity, slots, comparison, reference)
    return comparison, gates, decide(plan, environment, comparison, gates)


def decide(
    plan: Plan, environment: Environment, comparison: Comparison, gates: Sequence[Gate]
) -> Verdict:
    """failed by a blocking gate, unqualified by any other that did not pass, else qualified."""
    failed = [g for g in gates if g.gate_class == "blocking" and g.status == "fail"]
    needed = {gate.name for gate in plan.gates if not gate.may_be_unknown}
    short = [
        g
        for g in gates
        if (g.status == "unknown" and g.name in needed)
        or (g.gate_class == "qualifying" and g.status == "fail")
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


def _precision(plan: Plan) -> str:
    """`float32`, or what each arm computes in where they differ."""
    a, b = (NAMES[precision_of(arm.options)] for arm in plan.arms)
    return a if a == b else f"A {a}, B {b}"


def from_the_faster_side(estimate: Estimate) -> tuple[float, float | None, float | None]:
    """Ratio and interval as the faster side sees them: its time below, so the ratio is above 1.

    The estimate needs a ratio; it is B's view from 1 on, else A's.
    """
    ratio, low, high = estimate.ratio or 0.0, estimate.low, estimate.high
    if ratio >= 1 or not ratio:
        return ratio, low, high
    return 1 / ratio, high and 1 / high, low and 1 / low


def _headline(plan: Plan, environment: Environment, comparison: Comparison, status: str) -> str:
    """One sentence that claims exactly its shape, machine, browser and precision."""
    a, b = plan.arms
    c, estimate = plan.config, comparison.estimate
    shape = (
        f"{plan.preset.get('name')} GPT (L{c.n_layer} H{c.n_head} C{c.d_model} T{c.ctx} "
        f"B{c.batch}, {_precision(plan)})"
    )
    browser = f"{environment.browser.get('name')} {environment.browser.get('version')}"
    where = f"{environment.machine.get('cpu') or 'this machine'}, {browser}"
    if environment.browser.get("process") == "kept":
        where += " (one process for all blocks)"
    if environment.adapter_verdict != "not-applicable":
        where += f", {environment.adapter_verdict} adapter"
    where += "; steady state, cold costs apart"
    if status == "failed" or estimate.ratio is None:
        return f"No claim: the comparison of {a.name} and {b.name} on the {shape} failed ({where})."
    # The ratio is a mean over blocks, the times are medians of all windows: not the same quotient.
    times = " and ".join(
        f"{arm.median_step_ms:.4g}" for arm in comparison.arms if arm.median_step_ms
    )
    scope = f"on the {shape}; {where}."
    # Said from the faster side, so that the figure is above 1.
    ratio, low, high = from_the_faster_side(estimate)
    fast, slow = (b, a) if estimate.ratio >= 1 else (a, b)
    limits = (1.0, 1 + plan.margin)
    ends = interval_text(low, high, limits, 3) if low and high else ""
    interval = f"95% interval {ends}" if ends else "no interval"
    as_fast = told_apart_from(ratio, digits=3)
    figures = (
        f"{as_fast} times in the mean over {counted(estimate.blocks, 'block')}, {interval}; median "
        f"windows of A and B {times} ms/step"
    )
    words = dict(zip(SIDES, in_few_words(a, b), strict=True))
    one, other = (f"{arm.side} ({words[arm.side]})" for arm in (fast, slow))
    if estimate.word == "unsure":
        return f"Unsure whether {one} is faster than {other} ({figures}) {scope}"
    if estimate.word == "equivalent":
        return f"{one} and {other} take the same time within {plan.margin:.0%} ({figures}) {scope}"
    return f"{one} trained {as_fast} times as fast as {other} ({figures}) {scope}"

"""A receipt's findings in plain words, the same for every kind of report."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from driver.adapter import best_sample
from driver.arms import short_names
from driver.receipt import Examination, from_the_faster_side
from driver.records import BY_HAND, ArmPlan, ArmSummary, Estimate, Receipt, Side, Slot
from driver.report.terminal import number_text, range_text, ratio_text, small_text
from driver.tensors import executed_flops
from driver.wording import counted, interval_text, told_apart_from

MARK = {"pass": "pass", "fail": "FAIL", "unknown": "unknown", "not-applicable": "n/a"}


@dataclass(frozen=True)
class Doubt:
    """What `driver verify` holds against a receipt."""

    title: str
    meaning: str
    lines: tuple[str, ...]


def doubts(check: Examination | None) -> Doubt | None:
    """None for a receipt that is valid, or that was not checked."""
    if check is None or check.status == "valid":
        return None
    if check.faults:
        return Doubt("INVALID receipt", "it contradicts itself; nothing in it can be relied on",
                     check.faults)  # fmt: skip
    return Doubt(
        "unconfirmed receipt",
        "another version of the driver judged it, and this one comes to something else",
        check.unconfirmed,
    )


def verdict_line(receipt: Receipt) -> str:
    """`unqualified: software adapter; …`."""
    reasons = "; ".join(receipt.verdict.reasons)
    return f"{receipt.verdict.status}: {reasons}" if reasons else receipt.verdict.status


def estimate_lines(receipt: Receipt) -> list[str]:
    """The estimate, what it could have found, how many blocks were asked for, the doubtful ones."""
    found, lines = receipt.comparison, [estimate_line(receipt.comparison.estimate, receipt)]
    estimate = found.estimate
    if estimate.detectable_80 is not None and estimate.detectable_95 is not None:
        lines.append(
            f"such a run finds a difference of {estimate.detectable_80:.1%} in 80% of cases, of "
            f"{estimate.detectable_95:.1%} in 95%"
        )
    if found.auto:
        lines.append(f"blocks auto: {found.auto.reason}")
    suspect = [block for block in found.blocks if block.suspect]
    if found.sensitivity:
        names = ", ".join(str(block.block) for block in suspect)
        blocks = "block" if len(suspect) == 1 else "blocks"
        left = (
            estimate_line(found.sensitivity, receipt)
            if found.sensitivity.blocks
            else ("none is left")
        )
        lines.append(f"without suspect {blocks} {names} ({suspect[0].suspect[0]}): {left}")
    return lines


def estimate_line(estimate: Estimate, receipt: Receipt) -> str:
    if estimate.ratio is None:
        return f"no ratio: {estimate.reason}"
    interval = range_text(estimate.low, estimate.high, receipt.plan.margin) or "no interval"
    words = {
        "faster": "B is faster than A",
        "slower": "B is slower than A",
        "equivalent": f"A and B are equivalent within {receipt.plan.margin:.0%}",
        "unsure": "unsure which is faster",
    }[estimate.word]
    why = f" ({estimate.reason})" if estimate.reason else ""
    return (
        f"time of A / time of B = {ratio_text(estimate.ratio)}  [{interval}]  "
        f"{counted(estimate.blocks, 'block')}: {words}{why}"
    )


def curve_lines(receipt: Receipt) -> list[str]:
    comparison, lines = receipt.comparison, []
    for arm in receipt.plan.arms:
        error = comparison.curve_errors.get(arm.side)
        if error and error.loss is not None:
            trained = max(arm.total_steps, error.steps)
            steps = counted(trained, "step")
            if error.steps < trained:
                steps = f"{error.steps} of {steps}"
            lines.append(
                f"{arm.side} against the float64 reference over {steps}: loss "
                f"{error.loss:.1e}, gradient norm {small_text(error.grad_norm)} relative"
            )
    drift = comparison.drift
    if drift.loss is not None:
        steps = counted(drift.steps, "common step")
        lines.append(f"A against B over {steps}: loss {drift.loss:.1e} relative")
    return lines


def what_ran(receipt: Receipt, side: Side) -> Iterator[str]:
    """Module and memory in plain words, as the arm's last slot with any told them."""
    slot = next((s for s in reversed(receipt.slots) if s.side == side and s.memory), None)
    if slot is None:
        return
    ran, memory = slot.ran, slot.memory
    if "simd" in ran:
        simd = {"scalar": "without SIMD", "simd128": "SIMD", "relaxed": "relaxed SIMD"}
        level = simd.get(str(ran["simd"]), str(ran["simd"]))
        threads = counted(ran.get("threads"), "thread")
        bits = {"i32": "32-bit", "i64": "64-bit"}.get(str(memory.get("address_type")), "unknown")
        kind = "shared " if memory.get("shared") is True else "unshared "
        yield f"ran {level}, {threads}, {bits} {kind}memory"
    sizes = [
        f"{_mebibytes(memory[key])} {words}"
        for key, words in (
            ("initial_bytes", "at first"),
            ("maximum_bytes", "at most"),
            ("final_bytes", "at the end"),
            ("panels_bytes", "beside it for packed operands"),
        )
        if memory.get(key)
    ]
    growths = f", {counted(memory['growths'], 'growth')}" if "growths" in memory else ""
    if sizes:
        yield f"memory {', '.join(sizes)}{growths}"


def variants_tried(receipt: Receipt, arm: ArmPlan) -> Iterator[str]:
    """Of the webgpu arm: the fastest product tried, beside the step; and what was dropped."""
    timed = [trial for trial in arm.variants if trial.gflops]
    summary = next(a for a in receipt.comparison.arms if a.side == arm.side)
    reached = reached_gflops(receipt, summary)
    if timed and reached:
        best = max(timed, key=lambda trial: trial.gflops or 0.0)
        rate = best.gflops or 0.0
        k = best.kernel
        yield (
            f"fastest product tried: {k.kernel} {k.product} {k.M}×{k.N}×{k.K}, "
            f"{number_text(rate)} GFLOP/s; the step reaches {reached / rate:.0%} of it"
        )
    for trial in arm.variants:
        if trial.status != "ok":
            k = trial.kernel
            yield f"dropped: {k.kernel} {k.product} {k.manner}: {trial.reason}"


def reached_gflops(receipt: Receipt, summary: ArmSummary) -> float | None:
    """Executed FLOPs per second of a median step, in 1e9/s."""
    step_ms = summary.median_step_ms
    return executed_flops(receipt.plan.config) / step_ms / 1e6 if step_ms else None


def peak_gflops(arm: ArmPlan) -> float | None:
    """The roofline of an arm on all of its threads, in 1e9/s; None where it has none.

    Its highest sample: it is a limit, and whatever disturbs a sample only lowers it. A median of
    samples that a busy core had halved would let a step reach more than 100%.
    """
    return (best_sample(arm.roofline.all_gflops) or None) if arm.roofline else None


def others_text(slot: Slot) -> str:
    """Share of the machine's CPU time that others used in a slot; empty where it is not known."""
    share = slot.others_cpu
    return "" if share is None else "?" if math.isnan(share) else f"{share:.0%}"


def roofline_share(receipt: Receipt, summary: ArmSummary) -> str:
    """Executed FLOPs per second over the all-thread roofline of the arm."""
    peak = peak_gflops(next(arm for arm in receipt.plan.arms if arm.side == summary.side))
    reached = reached_gflops(receipt, summary)
    return f"{reached / peak:.0%}" if reached and peak else ""


def faster_arm(receipt: Receipt) -> tuple[ArmPlan, ArmPlan, str] | None:
    """The faster arm, the other one, and how many times as fast; None without a ratio."""
    estimate, (a, b) = receipt.comparison.estimate, receipt.plan.arms
    if not estimate.ratio:
        return None
    times, _, _ = from_the_faster_side(estimate)
    fast, slow = (b, a) if estimate.ratio >= 1 else (a, b)
    return fast, slow, told_apart_from(times, digits=3)


@dataclass(frozen=True)
class Hero:
    """The answer in one figure and one line; the headline beside it has the exact claim."""

    figure: str
    line: str
    detail: str


def hero(receipt: Receipt) -> Hero:
    """What the run found, for the first screen."""
    estimate, found = receipt.comparison.estimate, faster_arm(receipt)
    if receipt.verdict.status == "failed" or found is None:
        return Hero("no claim", "This run shows nothing about speed.", estimate.reason or "")
    fast, slow, times = found
    one, other = _named(receipt, fast), _named(receipt, slow)
    _, low, high = from_the_faster_side(estimate)
    limits = (1.0, 1 + receipt.plan.margin)
    ends = interval_text(low, high, limits, 3) if low and high else ""
    interval = f"95% interval {ends}" if ends else "no interval"
    basis = f"{interval}, {counted(estimate.blocks, 'block')}"
    if estimate.word == "unsure":
        detail = f"{times} times as fast in the mean, {basis}"
        return Hero("unsure", f"whether {one} is faster than {other}", detail)
    if estimate.word == "equivalent":
        line = f"{one} and {other} take the same time within {receipt.plan.margin:.0%}"
        return Hero("the same", line, f"{times} times as fast in the mean, {basis}")
    return Hero(f"{times}×", f"{one} trained {times} times as fast as {other}", basis)


def _named(receipt: Receipt, arm: ArmPlan) -> str:
    """`B wasm`, with what sets it apart where the other arm has that name too."""
    return f"{arm.side} {arm_name(receipt, arm.side)}"


def arm_name(receipt: Receipt, side: Side) -> str:
    """The side's arm as every heading and table names it."""
    return short_names(*receipt.plan.arms)["AB".index(side)]


def longest_curve(slots: Iterable[Slot], side: Side) -> list[float]:
    """The losses of the slot of that side that trained longest."""
    return max((slot.losses for slot in slots if slot.side == side), key=len, default=[])


def quartiles_text(summary: ArmSummary) -> str:
    if summary.quartile1_step_ms is None or summary.quartile3_step_ms is None:
        return ""
    return f"{number_text(summary.quartile1_step_ms)}–{number_text(summary.quartile3_step_ms)}"


def _mebibytes(value: object) -> str:
    """A size from a page, which may have said anything."""
    return f"{value / 2**20:.1f} MiB" if isinstance(value, int | float) else repr(value)


def how_opened(browser: Mapping[str, Any]) -> list[str]:
    """How a run in a browser that a person opened differs from others, and what nobody could tell
    of it; nothing of other browsers. `browser` is a receipt's `environment.browser`."""
    if browser.get("source") != BY_HAND:
        return []
    reasons: dict[str, list[str]] = {}
    unknown = browser.get("unknown")
    for name, reason in (unknown if isinstance(unknown, Mapping) else {}).items():
        reasons.setdefault(str(reason), []).append(str(name).replace("_", " "))
    return [
        "every job runs in a fresh frame with a fresh worker of one tab; blocks start no fresh "
        "browser process, so compile times may be those of a warm cache, and slots share the tab's "
        "memory",
        *(f"not known: {', '.join(names)} ({reason})" for reason, names in reasons.items()),
    ]


def first_known(values: Iterable[float | None]) -> float | None:
    return next((v for v in values if v is not None), None)

"""A receipt as a page of text."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driver.records import (
    ArmPlan,
    ArmSummary,
    Estimate,
    Gate,
    Receipt,
    Side,
    Slot,
)
from driver.report.historical import write_comparison
from driver.report.profile import profile_of
from driver.report.terminal import (
    add_row,
    new_console,
    new_table,
    number_text,
    small_text,
    text_of,
    write_line,
)
from driver.tensors import executed_flops

_MARK = {"pass": "pass", "fail": "FAIL", "unknown": "unknown", "not-applicable": "n/a"}
_STYLE = {"pass": "green", "fail": "bold red", "unknown": "yellow", "not-applicable": "dim"}
_VERDICT_STYLE = {"qualified": "bold green", "unqualified": "bold yellow", "failed": "bold red"}


def text(receipt: Receipt, width: int = 100, colour: bool = False) -> str:
    """The receipt as a readable page of text."""
    console = new_console(width, colour)
    _page(console, receipt)
    return text_of(console)


def svg(receipt: Receipt, width: int = 120) -> str:
    """The same page as a picture of a terminal, SVG."""
    console = Console(
        file=io.StringIO(), width=width, record=True, force_terminal=True, highlight=False,
        markup=False,
    )  # fmt: skip
    _page(console, receipt)
    # Without the web fonts that rich would fetch: the picture is one file.
    picture = console.export_svg(title="driver report")
    return re.sub(r"@font-face \{[^}]*\}\s*", "", picture)


def _page(console: Console, receipt: Receipt) -> None:
    plan = receipt.plan
    write_line(console, f"{plan.preset.get('name')}: {plan.question}", "bold")
    write_line(console, verdict_line(receipt), _VERDICT_STYLE[receipt.verdict.status])
    console.print()
    for arm in plan.arms:
        # With spaces, so that it wraps between options.
        name, _, options = arm.canonical.partition(":")
        write_line(console, f"{arm.side}  {name}  {options.replace('+', ' ')}".rstrip())
        if arm.pinned:
            p = arm.pinned
            source = f"receipt {p.receipt_digest[:12]} ({p.side})"
            write_line(console, f"   pinned from {source}: {', '.join(p.options)}")
        for line in (*_what_ran(receipt, arm.side), *_variants(receipt, arm)):
            write_line(console, f"   {line}")
    if receipt.environment.threads:
        write_line(console, f"threads: {receipt.environment.threads.reason}")
    console.print()
    console.print(_arms_table(receipt))
    console.print()
    for line in _estimate_lines(receipt):
        write_line(console, line)
    for line in _curve_lines(receipt):
        write_line(console, line)
    console.print()
    console.print(_slots_table(receipt.slots))
    console.print()
    for arm in plan.arms:
        profile_of(console, arm)
    write_comparison(console, receipt)
    console.print(_gates_table(receipt.gates))
    console.print()
    write_line(console, verdict_line(receipt), _VERDICT_STYLE[receipt.verdict.status])
    write_line(console, receipt.verdict.headline)


def verdict_line(receipt: Receipt) -> str:
    """`unqualified: software adapter; …`."""
    reasons = "; ".join(receipt.verdict.reasons)
    return f"{receipt.verdict.status}: {reasons}" if reasons else receipt.verdict.status


def curve_over_presets(rows: Sequence[tuple[str, int, Receipt | None]]) -> str:
    """One line per preset, small to large; a point that was not measured stays blank."""
    console = new_console(100, False)
    table = Table(title="over presets", box=None, pad_edge=False)
    for heading in (
        "preset",
        "parameters",
        "A ms/step",
        "B ms/step",
        "A/B",
        "95% interval",
        "verdict",
    ):
        table.add_column(heading, justify="left" if heading in ("preset", "verdict") else "right")
    for name, parameters, receipt in rows:
        if receipt is None:
            add_row(table, name, f"{parameters:,}", "", "", "", "", "")
            continue
        a, b = receipt.comparison.arms
        estimate = receipt.comparison.estimate
        add_row(
            table, name, f"{parameters:,}", number_text(a.median_step_ms),
            number_text(b.median_step_ms),
            number_text(estimate.ratio), interval_text(estimate), receipt.verdict.status,
        )  # fmt: skip
    console.print(table)
    return text_of(console)


def _arms_table(receipt: Receipt) -> Table:
    headings = ("", "arm", "ms/step", "quartiles", "GFLOP/s", "of roofline", "windows",
                "first step ms", "compile ms")  # fmt: skip
    table = new_table(headings, headings[:2])
    for summary in receipt.comparison.arms:
        mine = [slot for slot in receipt.slots if slot.side == summary.side]
        add_row(
            table, summary.side, summary.arm.partition(":")[0], number_text(summary.median_step_ms),
            _quartiles(summary),
            number_text(summary.gflops), _share(receipt, summary), str(summary.windows),
            number_text(_first(slot.first_step_ms for slot in mine)),
            number_text(_first(slot.compile_ms for slot in mine)),
        )  # fmt: skip
    return table


def _what_ran(receipt: Receipt, side: Side) -> Iterator[str]:
    """Module and memory in plain words, as the arm's last slot with any told them."""
    slot = next((s for s in reversed(receipt.slots) if s.side == side and s.memory), None)
    if slot is None:
        return
    ran, memory = slot.ran, slot.memory
    if "simd" in ran:
        simd = {"scalar": "without SIMD", "simd128": "SIMD", "relaxed": "relaxed SIMD"}
        level = simd.get(str(ran["simd"]), str(ran["simd"]))
        threads = "1 thread" if ran.get("threads") == 1 else f"{ran.get('threads')} threads"
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
    growths = f", {memory['growths']} growths" if "growths" in memory else ""
    if sizes:
        yield f"memory {', '.join(sizes)}{growths}"


def _variants(receipt: Receipt, arm: ArmPlan) -> Iterator[str]:
    """Of the webgpu arm: the fastest product tried, beside the step; and what was dropped."""
    timed = [trial for trial in arm.variants if trial.gflops]
    step_ms = next(a.median_step_ms for a in receipt.comparison.arms if a.side == arm.side)
    if timed and step_ms:
        best = max(timed, key=lambda trial: trial.gflops or 0.0)
        rate = best.gflops or 0.0
        reached = executed_flops(receipt.plan.config) / step_ms / 1e6
        k = best.kernel
        yield (
            f"fastest product tried: {k.kernel} {k.product} {k.M}×{k.N}×{k.K}, "
            f"{number_text(rate)} GFLOP/s; the step reaches {reached / rate:.0%} of it"
        )
    for trial in arm.variants:
        if trial.status != "ok":
            k = trial.kernel
            yield f"dropped: {k.kernel} {k.product} {k.tile} in {k.workgroup}: {trial.reason}"


def _mebibytes(value: object) -> str:
    """A size from a page, which may have said anything."""
    return f"{value / 2**20:.1f} MiB" if isinstance(value, int | float) else repr(value)


def _share(receipt: Receipt, summary: ArmSummary) -> str:
    """Executed FLOPs per second over the all-thread roofline of the arm."""
    roofline = next(arm.roofline for arm in receipt.plan.arms if arm.side == summary.side)
    peak = median(roofline.all_gflops) if roofline and roofline.all_gflops else 0.0
    if not peak > 0 or not summary.median_step_ms:
        return ""
    reached = executed_flops(receipt.plan.config) / summary.median_step_ms / 1e6
    return f"{reached / peak:.0%}"


def _estimate_lines(receipt: Receipt) -> list[str]:
    """The estimate, what it could have found, how many blocks were asked for, the doubtful ones."""
    found, lines = receipt.comparison, [_estimate_line(receipt.comparison.estimate, receipt)]
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
        lines.append(
            f"without suspect block(s) {names} ({suspect[0].suspect[0]}): "
            f"{_estimate_line(found.sensitivity, receipt)}"
        )
    return lines


def _estimate_line(estimate: Estimate, receipt: Receipt) -> str:
    if estimate.ratio is None:
        return f"no ratio: {estimate.reason}"
    interval = interval_text(estimate) or "no interval"
    words = {
        "faster": "B is faster than A",
        "slower": "B is slower than A",
        "equivalent": f"A and B are equivalent within {receipt.plan.margin:.0%}",
        "unsure": "unsure which is faster",
    }[estimate.word]
    why = f" ({estimate.reason})" if estimate.reason else ""
    return (
        f"time of A / time of B = {estimate.ratio:.4g}  [{interval}]  {estimate.blocks} block(s): "
        f"{words}{why}"
    )


def _curve_lines(receipt: Receipt) -> list[str]:
    comparison, lines = receipt.comparison, []
    for arm in receipt.plan.arms:
        error = comparison.curve_errors.get(arm.side)
        if error and error.loss is not None:
            trained = max(arm.total_steps, error.steps)
            steps = f"{error.steps} of {trained}" if error.steps < trained else str(error.steps)
            lines.append(
                f"{arm.side} against the float64 reference over {steps} steps: loss "
                f"{error.loss:.1e}, gradient norm {small_text(error.grad_norm)} relative"
            )
    drift = comparison.drift
    if drift.loss is not None:
        lines.append(f"A against B over {drift.steps} common steps: loss {drift.loss:.1e} relative")
    return lines


def _slots_table(slots: Sequence[Slot]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in (
        "slot",
        "block",
        "side",
        "status",
        "ms/step by window",
        "last loss",
        "sentinel ms",
    ):
        left = heading in ("side", "status", "ms/step by window")
        table.add_column(heading, justify="left" if left else "right")
    for slot in slots:
        windows = " ".join(
            number_text(ms / max(1, slot.steps_per_window)) for ms in slot.windows_ms
        )
        status: str = slot.status
        if slot.failure:
            status += f" ({slot.failure.kind}: {slot.failure.message})"
        add_row(
            table, str(slot.index), str(slot.block), slot.side, status, windows,
            f"{slot.losses[-1]:.4f}" if slot.losses else "",
            " / ".join(
                number_text(min(found))
                for found in (slot.sentinel_ms, slot.gpu_sentinel_ms)
                if found
            ),
        )  # fmt: skip
    return table


def _gates_table(gates: Sequence[Gate]) -> Table:
    headings = ("gate", "class", "status", "reason")
    table = new_table(headings, headings)
    for gate in gates:
        add_row(
            table, gate.name, gate.gate_class, Text(_MARK[gate.status], style=_STYLE[gate.status]),
            gate.reason,
        )  # fmt: skip
    return table


def _quartiles(summary: ArmSummary) -> str:
    if summary.quartile1_step_ms is None or summary.quartile3_step_ms is None:
        return ""
    return f"{number_text(summary.quartile1_step_ms)}–{number_text(summary.quartile3_step_ms)}"


def interval_text(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:.4g} to {estimate.high:.4g}"


def _first(values: Iterable[float | None]) -> float | None:
    return next((v for v in values if v is not None), None)

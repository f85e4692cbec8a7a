"""A receipt as a page of text."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from driver.records import (
    Gate,
    Receipt,
    Slot,
)
from driver.report.historical import write_comparison
from driver.report.profile import profile_of
from driver.report.terminal import (
    TextTable,
    new_console,
    number_text,
    picture_of,
    range_text,
    ratio_text,
    text_of,
    write_line,
)
from driver.report.words import (
    MARK,
    arm_name,
    curve_lines,
    estimate_lines,
    first_known,
    how_opened,
    others_text,
    quartiles_text,
    roofline_share,
    variants_tried,
    verdict_line,
    what_ran,
)

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
    return picture_of(console, "driver report")


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
        for line in (*what_ran(receipt, arm.side), *variants_tried(receipt, arm)):
            write_line(console, f"   {line}")
    if receipt.environment.threads:
        write_line(console, f"threads: {receipt.environment.threads.reason}")
    opened = how_opened(receipt.environment.browser)
    if opened:
        write_line(console, f"browser: {receipt.environment.browser['source']}")
    for line in opened:
        write_line(console, f"   {line}")
    console.print()
    console.print(_arms_table(receipt))
    console.print()
    for line in estimate_lines(receipt):
        write_line(console, line)
    for line in curve_lines(receipt):
        write_line(console, line)
    console.print()
    console.print(_slots_table(receipt.slots))
    console.print()
    for arm in plan.arms:
        profile_of(console, arm, arm_name(receipt, arm.side))
    write_comparison(console, receipt)
    console.print(_gates_table(receipt.gates))
    console.print()
    write_line(console, verdict_line(receipt), _VERDICT_STYLE[receipt.verdict.status])
    write_line(console, receipt.verdict.headline)


def curve_over_presets(rows: Sequence[tuple[str, int, Receipt | None]], width: int = 100) -> str:
    """One line per preset, small to large; a point that was not measured stays blank."""
    console = new_console(width, False)
    write_line(console, "over presets", "bold")
    headings = ("preset", "parameters", "A ms/step", "B ms/step", "A/B", "95% interval", "verdict")
    table = TextTable(headings, ("preset", "verdict"))
    for name, parameters, receipt in rows:
        if receipt is None:
            table.add(name, f"{parameters:,}", "", "", "", "", "")
            continue
        a, b = receipt.comparison.arms
        estimate = receipt.comparison.estimate
        table.add(
            name, f"{parameters:,}", number_text(a.median_step_ms),
            number_text(b.median_step_ms),
            ratio_text(estimate.ratio),
            range_text(estimate.low, estimate.high, receipt.plan.margin), receipt.verdict.status,
        )  # fmt: skip
    console.print(table)
    return text_of(console)


def _arms_table(receipt: Receipt) -> TextTable:
    headings = ("", "arm", "ms/step", "quartiles", "GFLOP/s", "of roofline", "windows",
                "first step ms", "compile ms")  # fmt: skip
    table = TextTable(headings, headings[:2], head=2)
    for summary in receipt.comparison.arms:
        mine = [slot for slot in receipt.slots if slot.side == summary.side]
        table.add(
            summary.side, arm_name(receipt, summary.side), number_text(summary.median_step_ms),
            quartiles_text(summary),
            number_text(summary.gflops), roofline_share(receipt, summary), str(summary.windows),
            number_text(first_known(slot.first_step_ms for slot in mine)),
            number_text(first_known(slot.compile_ms for slot in mine)),
        )  # fmt: skip
    return table


def _slots_table(slots: Sequence[Slot]) -> TextTable:
    watched = any(slot.others_cpu is not None for slot in slots)
    headings = ("slot", "block", "side", "status", "ms/step by window", "last loss", "sentinel ms",
                *(("others",) if watched else ()))  # fmt: skip
    table = TextTable(headings, ("side", "status", "ms/step by window"), head=0)
    for slot in slots:
        windows = " ".join(
            number_text(ms / max(1, slot.steps_per_window)) for ms in slot.windows_ms
        )
        status: str = slot.status
        if slot.failure:
            status += f" ({slot.failure.kind}: {slot.failure.message})"
        table.add(
            str(slot.index), str(slot.block), slot.side, status, windows,
            f"{slot.losses[-1]:.4f}" if slot.losses else "",
            " / ".join(
                number_text(min(found))
                for found in (slot.sentinel_ms, slot.gpu_sentinel_ms)
                if found
            ),
            *((others_text(slot),) if watched else ()),
        )  # fmt: skip
    return table


def _gates_table(gates: Sequence[Gate]) -> TextTable:
    headings = ("gate", "class", "status", "reason")
    table = TextTable(headings, headings, head=3)
    for gate in gates:
        table.add(
            gate.name, gate.gate_class, Text(MARK[gate.status], style=_STYLE[gate.status]),
            gate.reason,
        )  # fmt: skip
    return table

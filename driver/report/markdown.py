"""A receipt as a few lines of Markdown, for the page of a CI job.

What a receipt says is escaped twice: for HTML, since Markdown lets it through, and for Markdown.
An empty comment inside a word keeps GitHub from making a link, a mention or an issue's number of
it; it is not shown.
"""

import re
from collections.abc import Iterator

from driver.receipt import Examination
from driver.records import Receipt
from driver.report.terminal import number_text, range_text, ratio_text, visible
from driver.report.words import (
    MARK,
    arm_name,
    curve_lines,
    doubts,
    estimate_lines,
    quartiles_text,
    roofline_share,
    verdict_line,
)
from driver.wording import counted

_BADGE = {"qualified": "✅", "unqualified": "⚠️", "failed": "❌"}
_LONGEST = 600  # characters of one value: this is a summary
_MOST_GATES = 100
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# Anywhere, and where a block could begin: lists, rules and underlined headings.
_SYNTAX = re.compile(r"[\\`*_{}\[\]<>&|~#!$^]|^[-+=]|(?<=^\d)[.)]|(?<=^\d\d)[.)]")
# What makes a link of plain text on GitHub: https:, www., a@b, #1, and a revision's digits.
_LINKS = re.compile(r"(:(?=//)|(?<=www)\.|@|#(?=\d)|(?<=\b[0-9a-f]{6})(?=[0-9a-f]))")


def markdown(receipt: Receipt, check: Examination | None = None) -> str:
    """Verdict, headline, ratio table and the gates that did not pass; without links.

    `check` is what `driver verify` found of the receipt, where it was asked.
    """
    return "\n".join(_lines(receipt, check)) + "\n"


def _lines(receipt: Receipt, check: Examination | None) -> Iterator[str]:
    status, preset = receipt.verdict.status, receipt.plan.preset.get("name")
    yield f"### {_BADGE[status]} {plain(str(preset))}: {plain(verdict_line(receipt))}"
    yield ""
    if doubt := doubts(check):
        yield f"**{doubt.title}** {plain(doubt.meaning)}: {plain(doubt.lines[0])}"
        yield ""
    yield plain(receipt.verdict.headline)
    yield ""
    yield "| | arm | ms/step | quartiles | GFLOP/s | of roofline | windows |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for arm, summary in zip(receipt.plan.arms, receipt.comparison.arms, strict=True):
        yield table_row(
            arm.side, arm_name(receipt, arm.side), number_text(summary.median_step_ms),
            quartiles_text(summary), number_text(summary.gflops), roofline_share(receipt, summary),
            str(summary.windows),
        )  # fmt: skip
    yield ""
    estimate = receipt.comparison.estimate
    yield "| time of A / time of B | 95% interval | blocks | B against A | margin |"
    yield "|--:|---|--:|---|--:|"
    yield table_row(
        ratio_text(estimate.ratio) or "none",
        range_text(estimate.low, estimate.high, receipt.plan.margin) or "none",
        str(estimate.blocks), estimate.word, f"{receipt.plan.margin:.3g}",
    )  # fmt: skip
    yield ""
    # The first of the estimate's lines is the table.
    for line in (*estimate_lines(receipt)[1:], *curve_lines(receipt)):
        yield f"- {plain(line)}"
    yield ""
    short = [gate for gate in receipt.gates if gate.status in ("fail", "unknown")]
    if not short:
        passed = sum(gate.status == "pass" for gate in receipt.gates)
        others = len(receipt.gates) - passed
        yield f"{counted(passed, 'gate')} passed, {counted(others, 'does', 'do')} not apply."
        return
    yield f"{len(short)} of {len(receipt.gates)} gates did not pass:"
    yield ""
    yield "| gate | status | class | reason |"
    yield "|---|---|---|---|"
    for gate in short[:_MOST_GATES]:
        yield table_row(gate.name, MARK[gate.status], gate.gate_class, gate.reason)
    if len(short) > _MOST_GATES:
        yield table_row("…", "", "", f"and {len(short) - _MOST_GATES} more")


def table_row(*cells: str) -> str:
    return f"| {' | '.join(map(plain, cells))} |"


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    more = len(text) - _LONGEST
    shown = visible(text[:_LONGEST]) + (f"… (and {more} more characters)" if more > 0 else "")
    shown = shown.strip()  # an indented line would be code
    parts = _LINKS.split(shown)
    # Every second part is what a link would begin or go on with.
    return "".join(
        _escaped(part) + ("<!-- -->" if number % 2 else "") for number, part in enumerate(parts)
    )


def _escaped(text: str) -> str:
    return _SYNTAX.sub(lambda found: _HTML.get(found[0], f"\\{found[0]}"), text)

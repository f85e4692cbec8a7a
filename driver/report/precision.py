"""The precision report of a ladder, as text."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from driver.records import PrecisionReport, PrecisionRung
from driver.report.terminal import TextTable, number_text, write_line

_STYLE = {"ok": "green", "failed": "bold red", "unsupported": "yellow", "not run": "yellow"}
# Checks with a number, as a person would call them.
_ERRORS = {
    "parity.grads": "gradients, one step",
    "parity.params": "parameters, one step",
    "parity.first_loss": "first loss",
    "curve.loss": "losses of the curve",
    "curve.grad_norm": "gradient norms of the curve",
    "final.params": "parameters at its end",
}


def precision_lines(console: Console, found: PrecisionReport) -> None:
    """Errors beside their limits, learning, text, memory, speed, and what is adopted."""
    write_line(console, "precision", "bold")
    warning = ": times say nothing about hardware" if found.hardware_fallback else ""
    why = "; ".join(found.adapter_reasons[:1]) or "no signal"
    write_line(console, f"{found.adapter} adapter{warning} ({why})")
    words = f"limits {found.limits_sha256[:12]} frozen {found.frozen_utc[:19]}Z, before any run"
    write_line(console, words)
    console.print(_facts_table(found.rungs))
    console.print()
    if any(rung.checks for rung in found.rungs):
        console.print(_errors_table(found.rungs))
        console.print()
    for rung in found.rungs:
        if rung.text is not None:
            write_line(console, f"{rung.label} goes on from {found.prompt!r}: {rung.text!r}")
        elif rung.text_reason:
            write_line(console, f"{rung.label}: no text: {rung.text_reason}")
    console.print()
    write_line(console, f"adopted: {found.adopted}", "bold")
    for reason in found.reasons:
        write_line(console, f"  {reason}")
    write_line(console, found.decision_rule, "dim")
    write_line(console, found.limits_rule, "dim")


def _facts_table(rungs: Sequence[PrecisionRung]) -> TextTable:
    headings = ("", "computes in", "status", "ms/step", "GPU MiB", "final loss", "reference's",
                "drift", "no numbers")  # fmt: skip
    table = TextTable(headings, headings[:3])
    for rung in rungs:
        quality = rung.quality
        mib = sum(rung.memory_bytes.values()) / 2**20
        table.add(
            rung.label, rung.precision, Text(rung.status, style=_STYLE[rung.status]),
            number_text(rung.step_ms), f"{mib:.2f}" if mib else "",
            f"{quality.loss:.4f}" if quality else "",
            f"{quality.reference_loss:.4f}" if quality else "",
            "" if rung.drift is None else f"{rung.drift:.1e}",
            "" if rung.nonfinite is None else str(rung.nonfinite),
        )  # fmt: skip
    return table


def _errors_table(rungs: Sequence[PrecisionRung]) -> TextTable:
    shown = [rung for rung in rungs if rung.checks]
    what = "largest error against float64"
    table = TextTable((what, *(f"{rung.label} (limit)" for rung in shown)), (what,))
    for name, words in _ERRORS.items():
        cells = []
        for rung in shown:
            check = next((c for c in rung.checks if c.name == name), None)
            cells.append(
                "not measured"
                if check is None or check.measured is None
                else f"{check.measured:.1e} ({check.limit:.0e})"
            )
        table.add(words, *cells)
    return table

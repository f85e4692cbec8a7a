"""What `driver doctor` found, as text."""

from rich.text import Text

from driver.doctor import DoctorReport
from driver.report.terminal import (
    TextTable,
    new_console,
    text_of,
    visible,
)

_STYLE = {"ok": "green", "missing": "bold red", "warning": "yellow", "unknown": "yellow"}
_SIGN = {"ok": "✓", "missing": "✗", "warning": "!", "unknown": "?"}


def machine_checks(found: DoctorReport, width: int = 100, colour: bool = False) -> str:
    """A row per check, below it what to do where something is missing; at last whether all is
    there that the driver needs."""
    console = new_console(width, colour)
    headings = ("", "check", "state", "found")
    table = TextTable(headings, headings, head=3)
    for check in found.checks:
        style = _STYLE[check.status]
        table.add(
            Text(_SIGN[check.status], style=style), check.name,
            Text(check.status, style=style), check.value,
        )  # fmt: skip
        if check.remedy and check.status != "ok":
            table.add("", "", "", Text(f"→ {check.remedy}", style="bold"))
    console.print(table)
    console.print()
    console.print(Text.assemble(*_summary(found)))
    return text_of(console)


def _summary(found: DoctorReport) -> tuple[tuple[str, str], str]:
    """One sentence, with a style for its first word."""
    if found.lacking:
        return ("Not ready", _STYLE["missing"]), visible(
            f": without {', '.join(found.lacking)} no arm runs. The arrows say what to do."
        )
    gaps = sum(check.status != "ok" for check in found.checks)
    rest = f"; {gaps} of {len(found.checks)} checks ask for a look" if gaps else ""
    return ("Ready", _STYLE["ok"]), f": everything that every run needs is here{rest}."

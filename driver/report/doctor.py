"""What `driver doctor` found, as text."""

from rich.text import Text

from driver.doctor import DoctorReport
from driver.report.terminal import (
    add_row,
    new_console,
    new_table,
    text_of,
    visible,
    write_line,
)

_STYLE = {"ok": "green", "missing": "bold red", "warning": "yellow", "unknown": "yellow"}
_SIGN = {"ok": "✓", "missing": "✗", "warning": "!", "unknown": "?"}
_NARROW = 70  # below, what was found stands under its name


def machine_checks(found: DoctorReport, width: int = 100, colour: bool = False) -> str:
    """A row per check, below it what to do where something is missing; at last whether all is
    there that the driver needs."""
    console = new_console(width, colour)
    if width < _NARROW:
        for check in found.checks:
            style = _STYLE[check.status]
            write_line(console, f"{_SIGN[check.status]} {check.name}: {check.status}", style)
            write_line(console, check.value)
            if check.remedy and check.status != "ok":
                write_line(console, f"→ {check.remedy}", "bold")
    else:
        headings = ("", "check", "state", "found")
        table = new_table(headings, headings)
        for check in found.checks:
            style = _STYLE[check.status]
            add_row(
                table, Text(_SIGN[check.status], style=style), check.name,
                Text(check.status, style=style), check.value,
            )  # fmt: skip
            if check.remedy and check.status != "ok":
                add_row(table, "", "", "", Text(f"→ {check.remedy}", style="bold"))
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

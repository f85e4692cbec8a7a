"""What `driver doctor` found, as text."""

from rich.text import Text

from driver.doctor import DoctorReport
from driver.report.terminal import add_row, new_console, new_table, text_of

_CHECK_STYLE = {"ok": "green", "missing": "bold red", "warning": "yellow", "unknown": "yellow"}


def machine_checks(found: DoctorReport, width: int = 100, colour: bool = False) -> str:
    """What `driver doctor` found: a line per check, and what to do where something is missing."""
    console = new_console(width, colour)
    headings = ("check", "status", "found")
    table = new_table(headings, headings)
    for check in found.checks:
        add_row(
            table, check.name, Text(check.status, style=_CHECK_STYLE[check.status]), check.value
        )
        if check.remedy and check.status != "ok":
            add_row(table, "", "", Text(f"→ {check.remedy}", style="bold"))
    console.print(table)
    return text_of(console)

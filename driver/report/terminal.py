"""Text for a terminal or a log: consoles, lines, tables and numbers."""

import io
import unicodedata
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Unicode's control, format, surrogate, private and unassigned characters and line separators.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def new_console(width: int, colour: bool) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=colour, highlight=False, markup=False,
        no_color=not colour,
    )  # fmt: skip


def visible(text: str) -> str:
    """Without what steers a terminal or hides: receipts and pages are written by strangers."""
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _UNSEEN else c
        for c in text
    )


def write_line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style=style))


def new_table(headings: Sequence[str], left: Sequence[str]) -> Table:
    """A table without rules; the columns headed by one of `left` hold words, the others numbers."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        side: Literal["left", "right"] = "left" if heading in left else "right"
        table.add_column(Text(visible(heading)), justify=side, overflow="fold")
    return table


def add_row(table: Table, *cells: str | Text) -> None:
    # In a cell a message may keep its line breaks: they cannot look like a line of the report.
    table.add_row(
        *(
            "\n".join(map(visible, cell.split("\n")))
            if isinstance(cell, str)
            else Text(visible(cell.plain), style=cell.style)
            for cell in cells
        )
    )


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())


def percent_text(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def number_text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def small_text(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1e}"

"""Text for a terminal or a log: consoles, lines, tables and numbers."""

import io
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from driver.wording import interval_text, told_apart_from

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
    """A line; where it is wrapped, all of it keeps the indent that it begins with."""
    shown = visible(text)
    body = shown.lstrip(" ")
    indent = min(len(shown) - len(body), console.width // 2)
    for line in Text(body, style=style).wrap(console, console.width - indent):
        console.print(Text.assemble(" " * indent, line))


class TextTable:
    """Rows under headings, without rules.

    A word that fits into the terminal is never broken. Where the terminal is too narrow for that,
    or a number would be, the rows stand under each other instead: first the cells that name a row,
    then every other cell behind its heading.
    """

    def __init__(self, headings: Sequence[str], left: Collection[str], head: int = 1) -> None:
        """Columns headed by one of `left` hold words, the others numbers; the first `head` cells
        name a row."""
        self.headings = [Text(visible(heading)) for heading in headings]
        self.left = [heading in left for heading in headings]
        self.head = head
        self.rows: list[list[Text]] = []

    def add(self, *cells: str | Text) -> None:
        """A row, a cell for every heading."""
        if len(cells) != len(self.headings):
            raise ValueError(f"{len(cells)} cells under {len(self.headings)} headings")
        self.rows.append([_cell(cell) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        if widths is None:
            yield from self._stacked(console, options.max_width)
            return
        table = Table(box=None, pad_edge=False)
        for heading, left, width in zip(self.headings, self.left, widths, strict=True):
            side: Literal["left", "right"] = "left" if left else "right"
            table.add_column(heading, justify=side, overflow="fold", width=width)
        for row in self.rows:
            table.add_row(*row)
        yield table

    def _widths(self, columns: int) -> list[int] | None:
        """Of every column, so that all fit side by side and nothing breaks that need not."""
        room = columns - _GAP * (len(self.headings) - 1)
        natural, least = [], []
        for heading, left, cells in zip(self.headings, self.left, self._columns(), strict=True):
            widest = max(map(_width, (heading, *cells)))
            words = [word for text in (heading, *cells) for word in text.plain.split()]
            lengths = [n for n in map(cell_len, words) if n <= columns - _INDENT]
            whole = min(widest, _PROSE) if left else max(map(_width, cells), default=0)
            natural.append(max(1, widest))
            least.append(max(1, whole, *lengths))
        if sum(least) > room:
            return None
        # The widest columns give way first.
        widths = least
        for level in range(1, room + 1):
            wider = [max(low, min(all_, level)) for low, all_ in zip(least, natural, strict=True)]
            if sum(wider) > room:
                break
            widths = wider
        return widths

    def _columns(self) -> list[list[Text]]:
        return [[row[i] for row in self.rows] for i in range(len(self.headings))]

    def _stacked(self, console: Console, columns: int) -> Iterator[Text]:
        deep = min(_INDENT, columns // 8)
        for row in self.rows:
            indent = deep if self.head else 0
            named = Text("  ").join(cell for cell in row[: self.head] if cell.plain.strip())
            if named.plain:
                yield from named.wrap(console, columns)
            for item in self._items(row, columns - deep):
                for line in item.wrap(console, columns - indent):
                    yield Text.assemble(" " * indent, line)
                    indent = deep

    def _items(self, row: Sequence[Text], columns: int) -> Iterator[Text]:
        """What a row has besides its name: as many cells on a line as have room there."""
        headings = self.headings[self.head :]
        line = Text()
        for heading, cell in zip(headings, row[self.head :], strict=True):
            if not cell.plain.strip():
                continue
            item = cell
            if heading.plain and len(headings) > 1:
                item = Text.assemble((f"{heading.plain}: ", "dim"), cell)
            one = "\n" not in line.plain + item.plain
            if line.plain and one and _width(line) + _GAP + 1 + _width(item) <= columns:
                line = Text.assemble(line, " " * (_GAP + 1), item)
                continue
            if line.plain:
                yield line
            line = item
        if line.plain:
            yield line


_GAP = 2  # between columns
_INDENT = 2  # of what belongs to a row that stands above it
_PROSE = 20  # columns that words get where they would take more


def _cell(cell: str | Text) -> Text:
    if isinstance(cell, Text):
        return Text(visible(cell.plain), style=cell.style)
    # In a cell a message may keep its line breaks: they cannot look like a line of the report.
    return Text("\n".join(map(visible, cell.split("\n"))))


def _width(text: Text) -> int:
    """Of its widest line."""
    return max(map(cell_len, text.plain.split("\n")))


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())


def picture_of(console: Console, title: str) -> str:
    """What a recording console has printed, as a picture of a terminal: SVG."""
    # Without the web fonts that rich would fetch: the picture is one file.
    return re.sub(r"@font-face \{[^}]*\}\s*", "", console.export_svg(title=title))


def percent_text(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def number_text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def ratio_text(value: float | None) -> str:
    """A ratio as `number_text` has it, but never 1 where it is not."""
    return "" if value is None else told_apart_from(value)


def range_text(low: float | None, high: float | None, margin: float) -> str:
    """An interval of a ratio, told from 1 and from the margin; empty without one."""
    return "" if low is None or high is None else interval_text(low, high, (1.0, 1 + margin))


def small_text(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1e}"

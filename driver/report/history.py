"""What the history has → tables of text."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from driver.arms import read_canonical, told_apart
from driver.records import HistoryAdded, HistoryReceipt, HistoryReport
from driver.report.markdown import plain, table_row
from driver.report.terminal import (
    TextTable,
    new_console,
    number_text,
    range_text,
    ratio_text,
    text_of,
    visible,
    write_line,
)
from driver.wording import counted

_STYLE = {"qualified": "green", "unqualified": "yellow", "failed": "bold red"}
_MOST_REFUSED = 20


def added(found: HistoryAdded) -> str:
    """What `driver history add` did."""
    lines = []
    for kind, refused in (("INVALID, kept", found.invalid), ("not added", found.unreadable)):
        lines += [f"{kind}: {one.file}: {one.reason}" for one in refused[:_MOST_REFUSED]]
        if len(refused) > _MOST_REFUSED:
            lines.append(f"{kind}: and {len(refused) - _MOST_REFUSED} more")
    lines.append(
        f"{found.added} added, {found.renewed} renewed, {found.unchanged} there already, "
        f"{len(found.unreadable)} not added; "
        f"{counted(found.total, 'receipt')} in {found.database}"
    )
    return "\n".join(map(visible, lines))


def listing(rows: Sequence[HistoryReceipt], width: int = 110, colour: bool = False) -> str:
    """A line per receipt, in the order given."""
    console = new_console(width, colour)
    machines = len({row.machine for row in rows}) > 1
    headings = ["date", "preset", "arms", *(["machine"] if machines else []), "browser", "A/B"]
    headings += ["95% interval", "verdict", "digest"]
    table = TextTable(headings, [h for h in headings if h != "A/B"], head=3)
    for row in rows:
        style = _STYLE[row.verdict] if colour else ""
        word: str = row.verdict
        if row.verdict_stated != row.verdict:
            word += f" (says {row.verdict_stated})"
        if row.checked != "valid":
            word += f", {row.checked.upper() if row.checked == 'invalid' else row.checked}"
        table.add(
            date_text(row), row.preset[:40], _arms(row),
            *([row.machine[:60]] if machines else []), row.browser[:40], ratio_text(row.ratio),
            range_text(row.ratio_low, row.ratio_high, row.margin),
            Text(word, style=style), row.digest[:8],
        )  # fmt: skip
    console.print(table)
    write_line(console, counted(len(rows), "receipt"))
    return text_of(console)


def _arms(row: HistoryReceipt) -> str:
    """Both arms as `--arms` has them, with the options in which two of one name differ."""
    pair = read_canonical(row.canonical_a), read_canonical(row.canonical_b)
    names = zip((row.arm_a, row.arm_b), told_apart(*pair), strict=True)
    return ",".join(f"{name}:{own.replace(' ', '+')}" if own else name for name, own in names)


def date_text(row: HistoryReceipt) -> str:
    return f"{row.frozen_utc:%Y-%m-%d %H:%M}" if row.frozen_utc else "no date"


def against(found: HistoryReport, width: int = 110) -> str:
    """What `driver history compare` found: a line per quantity and question."""
    console = new_console(width, False)
    headings = ("", "against", "runs", "earlier", "new", "new/earlier", "95% interval", "answer")
    table = TextTable(headings, ("", "against", "answer"), head=2)
    for change in found.changes:
        table.add(
            change.of, change.against, str(change.runs), number_text(change.earlier),
            number_text(change.new), ratio_text(change.change),
            range_text(change.low, change.high, found.margin) or "none", change.word,
        )  # fmt: skip
    console.print(table)
    for change in found.changes:
        if change.reason:
            write_line(console, f"{change.of} against {change.against}: {change.reason}")
    for arm, of in dict.fromkeys((c.arm, c.of[0]) for c in found.changes):
        write_line(console, f"{of}: {arm}")
    for remark in found.remarks:
        write_line(console, f"note: {remark}")
    write_line(console, f"margin {found.margin:.3g}; above 1 is slower; figures are ms/step")
    return text_of(console)


def against_markdown(found: HistoryReport) -> str:
    """The same for a CI job's page."""
    word = "**regression**" if found.regressed else "no regression proved"
    lines = [
        f"### Against earlier runs: {word}",
        "",
        "| | against | runs | earlier ms/step | new | new/earlier | 95% interval | answer |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for c in found.changes:
        cells = (
            c.of, c.against, str(c.runs), number_text(c.earlier), number_text(c.new),
            ratio_text(c.change), range_text(c.low, c.high, found.margin) or "none", c.word,
        )  # fmt: skip
        lines.append(table_row(*cells))
    lines.append("")
    notes = [f"{c.of} against {c.against}: {c.reason}" for c in found.changes if c.reason]
    lines += [f"- {plain(note)}" for note in (*notes, *found.remarks)]
    lines.append(f"- margin {found.margin:.3g}; above 1 is slower")
    return "\n".join(lines)


def answer(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int = 110) -> str:
    """A query's answer as a table."""
    console = new_console(width, False)
    numbers = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    words = [c for c, right in zip(columns, numbers, strict=True) if not right]
    table = TextTable(columns, words, head=0)
    for row in rows:
        table.add(*map(value_text, row))
    console.print(table)
    write_line(console, counted(len(rows), "row"))
    return text_of(console)


def value_text(value: Any) -> str:
    """A value of a query as text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return str(value)

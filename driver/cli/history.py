"""`driver history`: receipts kept in a database, and what they tell over time."""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import duckdb
import typer
from rich.console import Console
from rich.progress import Progress

from driver import history, report, store
from driver.cli.frame import App, JsonOption, gathers, known_noise, parse_margin, terminal
from driver.errors import UsageError
from driver.records import HistoryAdded, HistoryReceipt, Refused

app = App(help="Keep receipts in a database: add, list, plot, query, export, compare.")
DatabaseOption = Annotated[
    Path | None,
    typer.Option("--db", metavar="FILE", help="The history's file; default in the data folder."),
]
VERDICTS = ("qualified", "unqualified", "failed", "invalid")
_LONGEST_SPAN_DAYS = 36_500


def _filter(
    machine: str | None,
    browser: str | None,
    preset: str | None,
    arm: str | None,
    verdict: str | None,
    since: str | None,
    last: int | None,
) -> history.Filter:
    if verdict is not None and verdict not in VERDICTS:
        raise UsageError(f"--verdict {verdict!r:.40}: expected one of {', '.join(VERDICTS)}")
    return history.Filter(machine, browser, preset, arm, verdict, _since(since), last)


def _since(text: str | None) -> datetime | None:
    """A day or time in UTC, or that many days ago."""
    if text is None:
        return None
    days = text.removesuffix("d")
    if text.endswith("d") and days.isascii() and days.isdigit() and len(days) < 6:
        span = timedelta(days=min(int(days), _LONGEST_SPAN_DAYS))
        return datetime.now(UTC).replace(tzinfo=None) - span
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since {text!r:.40}: expected 2026-11-01, or 30d") from None
    return found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found


_ALL = history.Filter()
_filters = gathers(
    "chosen",
    {
        "machine": (
            Annotated[
                str | None, typer.Option(metavar="TEXT", help="Part of the machine's description.")
            ],
            None,
        ),
        "browser": (
            Annotated[
                str | None,
                typer.Option(metavar="TEXT", help="Part of the browser, as `chromium 143`."),
            ],
            None,
        ),
        "preset": (
            Annotated[str | None, typer.Option(metavar="NAME", help="The preset's name.")],
            None,
        ),
        "arm": (
            Annotated[
                str | None,
                typer.Option(
                    metavar="TEXT", help="An arm's name, or part of it with `:` or `=`: threads=1."
                ),
            ],
            None,
        ),
        "verdict": (
            Annotated[
                str | None,
                typer.Option(metavar="WORD", help="qualified, unqualified, failed, or invalid."),
            ],
            None,
        ),
        "since": (
            Annotated[
                str | None,
                typer.Option(metavar="DATE|DAYS", help="2026-11-01, or 30d: of the last 30 days."),
            ],
            None,
        ),
        "last": (
            Annotated[int | None, typer.Option(metavar="N", help="The newest N of them.", min=1)],
            None,
        ),
    },
    _filter,
)


@app.command("add")
def add_command(
    receipts: Annotated[
        list[str], typer.Argument(metavar="RECEIPT|FOLDER|GLOB...", help="Where receipts are.")
    ],
    again: Annotated[
        bool,
        typer.Option("--again", help="Compute again what this very program has added before, too."),
    ] = False,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add receipts; folders are searched for *.receipt.json.

    Everything is computed again from the raw data. What is no receipt is
    named and left out (code 2), what contradicts itself is named, marked and
    kept (code 1), the others are added. The same receipt twice is one entry;
    a file that was added before, byte for byte and by this very program, is
    not computed once more.

    Example: driver history add receipts/
    """
    path = db or history.default_path()
    files, empty = history.find(receipts)
    with _reading(as_json) as told:
        read = history.read_all(files, {} if again else history.seen(path), told)
    rows = [one for one in read if isinstance(one, history.Rows)]
    fresh, total = history.add(path, rows) if rows or path.exists() else (0, 0)
    found = HistoryAdded(
        database=str(path),
        read=len(files),
        added=fresh,
        renewed=len({row.receipt.digest for row in rows}) - fresh,
        unchanged=sum(isinstance(one, history.Seen) for one in read),
        total=total,
        invalid=tuple(
            Refused(file=str(file), reason=fault)
            for file, one in zip(files, read, strict=True)
            if (fault := _fault(one)) is not None
        ),
        unreadable=(*empty, *(one for one in read if isinstance(one, Refused))),
    )
    print(found.model_dump_json(indent=1) if as_json else report.added(found))
    raise typer.Exit(2 if found.unreadable else 1 if found.invalid else 0)


@contextmanager
def _reading(as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """How far reading many receipts is, on a terminal."""
    console = Console(stderr=True)
    still = as_json or not console.is_terminal or console.is_dumb_terminal
    with Progress(console=console, transient=True, disable=still) as progress:
        task = progress.add_task("receipts", total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def _fault(read: history.Rows | history.Seen | Refused) -> str | None:
    """What contradicts itself in a receipt that is kept; None where nothing does."""
    if isinstance(read, history.Rows):
        return (read.receipt.fault or "") if read.receipt.checked == "invalid" else None
    return (read.fault or "") if isinstance(read, history.Seen) and read.invalid else None


@app.command("list")
@_filters
def list_command(
    chosen: history.Filter = _ALL,
    db: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List receipts, newest first.

    Example: driver history list --preset small --arm webgpu --last 20
    """
    rows = _receipts(db, chosen)
    if as_json:
        print(json.dumps([row.model_dump(mode="json") for row in rows], indent=1))
    else:
        print(report.listing(rows, *terminal()))


@app.command("plot")
@_filters
def plot_command(
    out: Annotated[Path, typer.Argument(metavar="FILE.svg|FILE.png", help="The picture.")],
    chosen: history.Filter = _ALL,
    db: DatabaseOption = None,
) -> None:
    """Draw ms/step of every arm and the ratio over time, with changes of level marked.

    Example: driver history plot trend.svg --preset small --since 90d
    """
    kind = out.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise UsageError(f"{out}: expected a name that ends in .svg or .png")
    store.check_target(out.resolve())
    rows = _receipts(db, chosen)
    try:
        drawn = report.trend.picture(rows, "svg" if kind == "svg" else "png")
    except ValueError as error:
        raise UsageError(
            f"history plot: {error} fits; `driver history list` shows what there is"
        ) from error
    store.write_bytes(out, drawn.data)
    print(f"{len(rows)} receipts in {out}")
    if drawn.notes:
        print("not drawn: " + "; ".join(drawn.notes[:20]) + "; --preset, --machine, … narrow it")


@app.command("query")
def query_command(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One statement that reads.")],
    db: DatabaseOption = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
) -> None:
    """Ask the tables `receipts` and `slots` in DuckDB's SQL; nothing can be written or read else.

    Example: driver history query "SELECT preset, median(ratio) FROM receipts GROUP BY preset"
    """
    found = history.query(db or history.default_path(), sql)
    if as_json:
        rows = [dict(zip(found.columns, map(_json_value, row), strict=True)) for row in found.rows]
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(found.columns)
        writer.writerows(
            ["" if value is None else _json_value(value) for value in row] for row in found.rows
        )
    else:
        print(report.answer(found.columns, found.rows, terminal()[0]))


@app.command("export")
@_filters
def export_command(
    out: Annotated[Path, typer.Argument(metavar="FILE.parquet", help="Where it goes.")],
    table: Annotated[str, typer.Option(metavar="NAME", help="receipts or slots.")] = "receipts",
    chosen: history.Filter = _ALL,
    db: DatabaseOption = None,
) -> None:
    """Write a table as Parquet.

    Example: driver history export slots.parquet --table slots --preset small
    """
    if out.suffix.lower() != ".parquet":
        raise UsageError(
            f"{out}: expected a name that ends in .parquet; `driver history query --csv` makes CSV"
        )
    rows = history.export(db or history.default_path(), table, chosen, out)
    print(f"{rows} row{'s' * (rows != 1)} in {out}")


@app.command("compare")
def compare_command(
    receipt: Annotated[
        Path, typer.Argument(metavar="RECEIPT", help="The new receipt; it need not be added.")
    ],
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="RECEIPT|DIGEST",
            help="One that stays, so that nothing creeps: a file, or a digest's first digits.",
        ),
    ] = None,
    last: Annotated[
        int,
        typer.Option(
            metavar="N", help="Earlier runs of the same arm, machine and browser.", min=3, max=1000
        ),
    ] = history.DEFAULT_LAST,
    margin: Annotated[
        str, typer.Option(metavar="PART", help="A change within it is none: 2% or 0.02.")
    ] = "2%",
    db: DatabaseOption = None,
    as_json: JsonOption = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a table for a CI job's page.")
    ] = False,
) -> None:
    """Set a new receipt beside the last runs, a baseline, and its arms beside each other.

    regression (code 1): the whole 95% interval of a change lies beyond the
    margin. Against the last runs it is a prediction interval from how much
    those differ; against a baseline as in `driver compare`; and where B is
    A's arm from another source, the receipt's own estimate. What cannot be
    compared is `unsure`, with the reason.

    Example: driver history compare new.receipt.json --last 20 --baseline base.receipt.json
    """
    limit, path = parse_margin(margin), db or history.default_path()
    new, rows = history.read_one(receipt)
    with _maybe_opened(path) as connection:
        base = _baseline(connection, path, baseline)
        found = history.judge(connection, rows.receipt, base, last, limit, known_noise(new))
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        text = report.against_markdown(found) if markdown else report.against(found, terminal()[0])
        print(text)
    raise typer.Exit(1 if found.regressed else 0)


@contextmanager
def _maybe_opened(path: Path) -> Iterator[duckdb.DuckDBPyConnection | None]:
    """The history where there is one: the first night has none."""
    if not path.exists():
        yield None
        return
    with history.opened(path) as connection:
        yield connection


def _baseline(
    connection: duckdb.DuckDBPyConnection | None, path: Path, text: str | None
) -> HistoryReceipt | None:
    if text is None:
        return None
    if Path(text).is_file():
        return history.read_one(Path(text))[1].receipt
    if connection is None:
        raise UsageError(f"--baseline {text!r:.80}: no such file, and no history at {path}")
    return history.by_digest(connection, text)


def _receipts(db: Path | None, chosen: history.Filter) -> list[HistoryReceipt]:
    with history.opened(db or history.default_path()) as connection:
        return history.receipts(connection, chosen)


def _json_value(value: Any) -> Any:
    """A value of a query as JSON has it: what is not finite is null, times are text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, Decimal):
        return float(value)
    if value is None or isinstance(value, str | int | bool):
        return value
    return value.isoformat() if isinstance(value, datetime) else str(value)

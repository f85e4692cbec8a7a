"""The history's file: one DuckDB database with the tables `receipts` and `slots`.

Opened for writing by `add` alone. Everything else opens it read-only, without access to other
files, and with its settings locked, so that a query can neither write nor read anything else.
"""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Event
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import duckdb
from pydantic import ValidationError

from driver import layout, store
from driver.errors import UsageError
from driver.faults import listed
from driver.history.rows import Rows, Seen
from driver.records import HistoryReceipt, HistorySlot, Record

FORMAT = "driver-history/1"
_ANEW = "If it is damaged, `driver history add` makes another from the receipts: name it with --db"
# What a person may take for a history, by its first bytes.
_KINDS = {
    b"SQLite format 3": "an SQLite file",
    b"PAR1": "a Parquet file",
    b"{": "a JSON file, perhaps a receipt, which `driver history add` takes",
}
R = TypeVar("R", bound=Record)
TABLES: dict[str, type[Record]] = {"receipts": HistoryReceipt, "slots": HistorySlot}
_BATCH = 2000  # receipts per statement
_SQL: dict[Any, str] = {
    str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", datetime: "TIMESTAMP",
}  # fmt: skip
_LOCKED = {
    "enable_external_access": "false",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}


@dataclass(frozen=True)
class Filter:
    """Which receipts. Texts are parts of what the columns hold; None and empty: all."""

    machine: str | None = None
    browser: str | None = None
    preset: str | None = None
    arm: str | None = None
    verdict: str | None = None
    since: datetime | None = None
    last: int | None = None


def default_path() -> Path:
    return layout.data_dir() / "history.duckdb"


# --------------------------------------------------------------------------- writing


def add(path: Path, rows: Sequence[Rows]) -> tuple[int, int]:
    """Writes rows into the database at `path`, made where there is none; how many receipts were
    not in it before, and how many are in it now. A receipt that is there already is replaced.

    Raises UsageError where the file cannot be written or is no history.
    """
    store.check_writable(path.resolve().parent, "--db names the history's file")
    newest = {row.receipt.digest: row for row in rows}
    with _open(path, read_only=False) as connection:
        _create(connection, path)
        before = _count(connection)
        connection.execute("BEGIN")
        for start in range(0, len(newest), _BATCH):
            batch = list(newest.values())[start : start + _BATCH]
            digests = [row.receipt.digest for row in batch]
            for table in TABLES:
                connection.execute(
                    f"DELETE FROM {table} WHERE digest IN (SELECT unnest($1::VARCHAR[]))", [digests]
                )
            _insert(connection, "receipts", [row.receipt for row in batch])
            _insert(connection, "slots", [slot for row in batch for slot in row.slots])
        _remember(connection, rows)
        connection.execute("COMMIT")
        total = _count(connection)
    return total - before, total


def seen(path: Path) -> dict[str, Seen]:
    """By the SHA-256 of their bytes, the files that this very program has added to it before.

    Raises UsageError where the database is none of a history.
    """
    if not path.exists():
        return {}
    with opened(path) as connection:
        if "seen" not in _names(connection):
            return {}
        found = connection.execute(
            "SELECT file_sha256, digest, checked = 'invalid', fault FROM seen "
            "JOIN receipts USING (digest) WHERE program = ?",
            [layout.program_sha256()],
        ).fetchall()
    return {file_sha256: Seen(*values) for file_sha256, *values in found}


def _remember(connection: duckdb.DuckDBPyConnection, rows: Sequence[Rows]) -> None:
    """Which files these rows are of, and which program computed them."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS seen (file_sha256 VARCHAR, program VARCHAR, digest VARCHAR)"
    )
    program = layout.program_sha256()
    pairs = {row.file_sha256: row.receipt.digest for row in rows if row.file_sha256}
    # Another program's entries tell of rows that are no more.
    connection.execute(
        "DELETE FROM seen WHERE file_sha256 IN (SELECT unnest($1::VARCHAR[])) "
        "OR (digest IN (SELECT unnest($2::VARCHAR[])) AND program <> $3)",
        [list(pairs), list(pairs.values()), program],
    )
    connection.execute(
        "INSERT INTO seen SELECT unnest($1::VARCHAR[]), $2, unnest($3::VARCHAR[])",
        [list(pairs), program, list(pairs.values())],
    )


def _create(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    if not _names(connection):
        connection.execute("CREATE TABLE history (format VARCHAR)")
        connection.execute("INSERT INTO history VALUES (?)", [FORMAT])
        for table, record in TABLES.items():
            columns = ", ".join(f"{name} {kind}" for name, kind in columns_of(record).items())
            connection.execute(f"CREATE TABLE {table} ({columns})")
    _check(connection, path)


def _insert(connection: duckdb.DuckDBPyConnection, table: str, records: Sequence[Record]) -> None:
    """One statement for all rows, a parameter per column: many times faster than `executemany`."""
    if not records:
        return
    columns = columns_of(TABLES[table])
    values = [[_plain(getattr(record, name)) for record in records] for name in columns]
    unnested = ", ".join(
        f"unnest(${i}::{kind}[])" for i, kind in enumerate(columns.values(), start=1)
    )
    connection.execute(f"INSERT INTO {table} SELECT {unnested}", values)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def columns_of(record: type[Record]) -> dict[str, str]:
    """Name → SQL type of a record's fields, in order."""
    return {name: _sql_type(field.annotation) for name, field in record.model_fields.items()}


def _sql_type(annotation: Any) -> str:
    """`float | None` → DOUBLE, `tuple[str, ...]` → VARCHAR[]."""
    if annotation in _SQL:
        return _SQL[annotation]
    arguments = [a for a in get_args(annotation) if a not in (type(None), Ellipsis)]
    if get_origin(annotation) is Literal:
        return "VARCHAR"
    if get_origin(annotation) is tuple:
        return _sql_type(arguments[0]) + "[]"
    if isinstance(annotation, UnionType) or len(arguments) >= 1:  # X | None, or Annotated[X, …]
        return _sql_type(arguments[0])
    raise TypeError(f"no column type for {annotation}")


# --------------------------------------------------------------------------- reading


@contextmanager
def opened(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The database, read-only and locked. Raises UsageError where there is none."""
    if not path.exists():
        raise UsageError(
            f"{path}: there is no history; `driver history add receipts/` makes it, --db names "
            "another"
        )
    with _open(path, read_only=True) as connection:
        _check(connection, path)
        yield connection


@contextmanager
def _open(path: Path, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    _check_file(path)
    try:
        connection = duckdb.connect(str(path), read_only=read_only, config=dict(_LOCKED))
    except duckdb.Error as error:
        raise UsageError(
            f"{path}: cannot be opened as a history ({first_line(error)}); --db names a file that "
            "`driver history add` made, which no other program holds open"
        ) from error
    try:
        yield connection
    except duckdb.Error as error:
        raise UsageError(f"{path}: {first_line(error)}. {_ANEW}") from error
    except ValidationError as error:
        raise UsageError(
            f"{path} has a row that no `driver history add` wrote ({listed(error)}). {_ANEW}"
        ) from error
    finally:
        connection.close()


def _check_file(path: Path) -> None:
    """Raises UsageError for what DuckDB would not know, or wait for, without saying so."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; --db names a file in it")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a regular file; --db names the history's file")
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError:
        return  # a file to be made; or DuckDB says why it cannot be read
    if start and start[8:12] != b"DUCK":
        kind = next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), "")
        raise UsageError(
            f"{path} is no history of driver's{f': it is {kind}' if kind else ''}; --db names a "
            "file that `driver history add RECEIPTS --db FILE` makes"
        )


def first_line(error: BaseException) -> str:
    """Without the lines that DuckDB adds for people at its own prompt."""
    return str(error).strip().partition("\n")[0]


def _names(connection: duckdb.DuckDBPyConnection) -> set[str]:
    found = connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal")
    return {str(name) for (name,) in found.fetchall()}


def _check(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Raises UsageError unless its tables are those of this version."""
    hint = "add the receipts to a new file with --db, or move this one away"
    names = _names(connection)
    if "history" not in names:
        raise UsageError(f"{path}: a database, but no history of this driver; {hint}")
    for table, record in TABLES.items():
        rows = connection.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index",
            [table],
        ).fetchall()
        if [name for (name,) in rows] != list(columns_of(record)):
            raise UsageError(f"{path}: a history of another version of this driver; {hint}")


def _count(connection: duckdb.DuckDBPyConnection) -> int:
    row = connection.execute("SELECT count(*) FROM receipts").fetchone()
    assert row
    return int(row[0])


def where(chosen: Filter) -> tuple[str, list[Any]]:
    """The condition of a filter on `receipts`, with its parameters; `last` is not part of it."""
    terms: list[str] = []
    values: list[Any] = []
    for column in ("machine", "browser"):
        if text := getattr(chosen, column):
            terms.append(f"contains(lower({column}), lower(?))")
            values.append(text)
    if chosen.preset:
        terms.append("preset = ?")
        values.append(chosen.preset)
    if chosen.arm:
        # A name alone is that arm and no other: wasm is not wasm64.
        part = ":" in chosen.arm or "=" in chosen.arm
        one = "contains(canonical_{0}, ?)" if part else "arm_{0} = ?"
        terms.append(f"({one.format('a')} OR {one.format('b')})")
        values += [chosen.arm, chosen.arm]
    if chosen.verdict:
        terms.append("checked = ?" if chosen.verdict == "invalid" else "verdict = ?")
        values.append(chosen.verdict)
    if chosen.since:
        terms.append("frozen_utc >= ?")
        values.append(chosen.since)
    return " AND ".join(terms) or "true", values


def receipts(connection: duckdb.DuckDBPyConnection, chosen: Filter) -> list[HistoryReceipt]:
    """The receipts of a filter, newest first."""
    condition, values = where(chosen)
    limit = f" LIMIT {int(chosen.last)}" if chosen.last else ""
    return _records(
        connection, HistoryReceipt,
        f"SELECT * FROM receipts WHERE {condition} "
        f"ORDER BY frozen_utc DESC NULLS LAST, digest{limit}",
        values,
    )  # fmt: skip


def earlier(
    connection: duckdb.DuckDBPyConnection,
    series: str,
    before: datetime | None,
    leave_out: Sequence[str],
    last: int,
) -> list[HistoryReceipt]:
    """The last runs of an arm that times can be compared with, oldest first."""
    found = _records(
        connection, HistoryReceipt,
        "SELECT * FROM receipts WHERE (series_a = $1 OR series_b = $1) "
        "AND ($2::TIMESTAMP IS NULL OR frozen_utc < $2) AND verdict <> 'failed' "
        "AND checked <> 'invalid' AND digest NOT IN (SELECT unnest($3::VARCHAR[])) "
        "AND frozen_utc IS NOT NULL ORDER BY frozen_utc DESC, digest LIMIT $4",
        [series, before, list(leave_out), last],
    )  # fmt: skip
    return found[::-1]


def by_digest(connection: duckdb.DuckDBPyConnection, start: str) -> HistoryReceipt:
    """The receipt whose digest starts so. Raises UsageError unless it is exactly one."""
    found = _records(
        connection, HistoryReceipt, "SELECT * FROM receipts WHERE starts_with(digest, ?) LIMIT 2",
        [start],
    )  # fmt: skip
    if len(found) != 1:
        count = "no receipt" if not found else "more than one receipt"
        raise UsageError(
            f"{start!r:.80}: {count} of the history has a digest that starts so, and no file is "
            "named so; `driver history list` shows digests"
        )
    return found[0]


def _records(
    connection: duckdb.DuckDBPyConnection, record: type[R], sql: str, values: list[Any]
) -> list[R]:
    names = list(record.model_fields)
    fetched = connection.execute(sql, values).fetchall()
    return [record.model_validate(dict(zip(names, row, strict=True))) for row in fetched]


# --------------------------------------------------------------------------- queries


@dataclass(frozen=True)
class Answer:
    """What a query gives."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def query(path: Path, sql: str) -> Answer:
    """Runs one statement that reads. Raises UsageError with DuckDB's message and where to look."""
    ended = Event()

    def work() -> Answer:
        try:
            return _answer(connection, sql)
        finally:
            ended.set()

    with opened(path) as connection, ThreadPoolExecutor(1) as aside:
        try:
            return aside.submit(work).result()
        except KeyboardInterrupt:
            # DuckDB itself does not hear it while it computes; and it may just be about to begin.
            for _ in range(100):
                connection.interrupt()
                if ended.wait(0.05):
                    break
            raise
        except (duckdb.Error, UnicodeError) as error:
            raise UsageError(
                f"history query: {str(error).strip()}\n\nThe tables are {' and '.join(TABLES)}; "
                'driver history query "DESCRIBE receipts" lists the columns of one.'
            ) from error


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> Answer:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(f"history query: expected one statement, got {len(statements)}")
    done = connection.execute(statements[0])
    return Answer(tuple(str(c[0]) for c in done.description or ()), done.fetchall())


def export(path: Path, table: str, chosen: Filter, out: Path) -> int:
    """Writes a table's rows of a filter as Parquet, in one piece; how many rows.

    Raises UsageError where the file cannot be written.
    """
    if table not in TABLES:
        raise UsageError(f"--table {table!r:.40}: expected {' or '.join(TABLES)}")
    out = out.resolve()
    store.check_target(out)
    with opened(path) as connection:  # its check of the tables
        digests = [row.digest for row in receipts(connection, chosen)]
    try:
        with (
            tempfile.TemporaryDirectory(dir=out.parent, prefix=".partial-") as folder,
            duckdb.connect(str(path), read_only=True) as connection,
        ):
            part = Path(folder) / out.name
            chosen_rows = connection.sql(
                f"SELECT * FROM {table} WHERE digest IN (SELECT unnest($1::VARCHAR[])) "
                + (
                    "ORDER BY frozen_utc, digest"
                    if table == "receipts"
                    else "ORDER BY digest, slot"
                ),
                params=[digests],
            )
            chosen_rows.write_parquet(str(part))
            row = connection.execute("SELECT count(*) FROM read_parquet(?)", [str(part)]).fetchone()
            part.replace(out)
    except (OSError, duckdb.Error) as error:
        raise UsageError(f"{out}: cannot be written ({first_line(error)})") from error
    assert row
    return int(row[0])

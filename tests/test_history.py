"""The history: receipts in, rows out; nothing written or read by a query; new runs beside old."""

import contextlib
import csv
import json
import math
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pytest
from receipts import Parts, failed_slot, nonfinite, parts, timed

from driver import history, layout
from driver.history import rows as rows_module
from driver.history.database import columns_of
from driver.layout import ROOT
from driver.plan import evaluator
from driver.receipt import digest, parse
from driver.records import HistoryReceipt, HistorySlot, Refused
from driver.report.trend import picture

Run = Callable[..., tuple[int, str, str]]
START = datetime(2026, 10, 1, 3, tzinfo=UTC)


def at(built: Parts, days: float, a: float = 1.0, b: float = 1.0) -> Parts:
    """The run `days` later, its sides slower by these factors."""
    time = START + timedelta(days=days)
    factor = {"A": a, "B": b}
    slots = tuple(
        slot.model_copy(
            update={
                **timed(ms * factor[slot.side] for ms in slot.windows_ms),
                "started_utc": (time + timedelta(seconds=1 + slot.index)).isoformat(),
            }
        )
        for slot in built.slots
    )
    return replace(built, slots=slots).with_plan(frozen_utc=time.isoformat())


def write(folder: Path, name: str, data: Any) -> Path:
    path = folder / f"{name}.receipt.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture(autouse=True)
def own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRIVER_DATA", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Receipts of ten nights that vary by half a percent, one failed, one on a software adapter."""
    folder = tmp_path_factory.mktemp("nights")
    good = parts(noise=0.002)
    for i in range(10):
        wave = 1 + 0.005 * math.sin(2.4 * i)
        write(folder, f"night-{i}", at(good, i, wave, wave).sealed())
    write(folder, "failed", failed_slot(at(good, 10)).sealed())
    write(folder, "software", at(parts(adapter="software"), 11).sealed())
    return folder


@pytest.fixture(scope="module")
def kept(nights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of them."""
    path = tmp_path_factory.mktemp("kept") / "history.duckdb"
    read = history.read_all(history.find([str(nights)])[0])
    history.add(path, [one for one in read if isinstance(one, history.Rows)])
    return path


def listed(driver: Run, db: Path, *arguments: object) -> list[dict[str, Any]]:
    code, out, _ = driver("history", "list", "--db", db, "--json", *arguments)
    assert code == 0
    found = json.loads(out)
    assert isinstance(found, list)
    return found


# --------------------------------------------------------------------------- add


def test_a_folder_is_added_and_the_same_receipt_is_one_entry(
    driver: Run, nights: Path, tmp_path: Path
) -> None:
    db = tmp_path / "new folder" / "h.duckdb"
    code, out, _ = driver("history", "add", nights, "--db", db)
    assert code == 0
    assert "12 added, 0 renewed" in out
    copy = write(
        tmp_path, "another name", json.loads((nights / "night-3.receipt.json").read_text())
    )
    code, out, _ = driver("history", "add", copy, nights / "night-4.receipt.json", copy, "--db", db,
                          "--json")  # fmt: skip
    found = json.loads(out)
    counts = ("added", "renewed", "unchanged", "total")
    assert (code, [found[name] for name in counts]) == (0, [0, 0, 2, 12])
    code, out, _ = driver("history", "add", copy, "--again", "--db", db, "--json")
    found = json.loads(out)
    assert (code, [found[name] for name in counts]) == (0, [0, 1, 0, 12])
    code, out, _ = driver("history", "query", "SELECT count(*) AS n FROM slots", "--db", db,
                          "--json")  # fmt: skip
    assert json.loads(out) == [{"n": 11 * 16 + 3}]


def test_the_default_database_is_in_the_data_folder(
    driver: Run, nights: Path, tmp_path: Path
) -> None:
    code, _, err = driver("history", "list")
    assert (code, "driver history add" in err) == (2, True)
    assert driver("history", "add", f"{nights}/night-*.json")[0] == 0
    assert (tmp_path / "data" / "history.duckdb").is_file()
    assert "10 receipts" in driver("history", "list")[1]


def test_rows_hold_what_the_receipt_says(nights: Path) -> None:
    data = json.loads((nights / "night-2.receipt.json").read_text())
    receipt = parse(data)
    rows = rows_module.read(nights / "night-2.receipt.json")
    assert isinstance(rows, history.Rows)
    row = rows.receipt
    assert row.digest == data["digest"]
    assert (row.checked, row.verdict, row.verdict_stated) == ("valid", "qualified", "qualified")
    assert (row.preset, row.arm_a, row.arm_b) == ("mini", "wasm", "webgpu")
    assert row.frozen_utc == datetime(2026, 10, 3, 3)
    assert (row.ratio, row.ratio_low) == (
        receipt.comparison.estimate.ratio,
        receipt.comparison.estimate.low,
    )
    # 40 and 20 ms per window of four steps.
    assert row.ms_a == pytest.approx(10, rel=0.02)
    assert row.ms_b == pytest.approx(5, rel=0.02)
    assert row.ms_a_low and row.ms_a and row.ms_a_high
    assert row.ms_a_low < row.ms_a < row.ms_a_high
    for slot, kept_slot in zip(receipt.slots, rows.slots, strict=True):
        assert list(kept_slot.windows_ms) == slot.windows_ms
        assert kept_slot.steps == len(slot.losses)


def _forged(data: dict[str, Any]) -> dict[str, Any]:
    """A failed run that calls itself qualified, its digest made anew."""
    data["verdict"]["status"] = "qualified"
    data["digest"] = digest(data)
    return data


def test_bad_receipts_are_named_and_the_others_are_added(
    driver: Run, nights: Path, tmp_path: Path
) -> None:
    good = json.loads((nights / "night-0.receipt.json").read_text())
    write(tmp_path, "good", good)
    (tmp_path / "half.receipt.json").write_text(json.dumps(good)[:5000])
    write(tmp_path, "other", {"format": "driver-ladder/1"})
    write(tmp_path, "list", [1, 2])
    own = at(parts(), 3).with_plan(evaluator=evaluator())
    write(tmp_path, "forged", _forged(failed_slot(own).sealed()))
    # Says that it is the good one, and is not.
    write(tmp_path, "squatter", at(parts(), 5).sealed() | {"digest": good["digest"]})
    (tmp_path / "gone.receipt.json").symlink_to(tmp_path / "nowhere")
    db = tmp_path / "h.duckdb"
    code, out, _ = driver(
        "history", "add", tmp_path, tmp_path / "missing.json", "--db", db, "--json"
    )
    found = json.loads(out)
    assert code == 2
    assert found["added"] == found["total"] == 3
    assert {Path(one["file"]).name for one in found["unreadable"]} == {
        "half.receipt.json", "other.receipt.json", "list.receipt.json", "missing.json",
    }  # fmt: skip
    assert all(one["reason"] for one in found["unreadable"])
    assert {Path(one["file"]).name for one in found["invalid"]} == {
        "forged.receipt.json", "squatter.receipt.json",
    }  # fmt: skip
    by_file = {row["file"]: row for row in listed(driver, db)}
    forged = by_file["forged.receipt.json"]
    assert (forged["verdict"], forged["verdict_stated"]) == ("failed", "qualified")
    assert by_file["good.receipt.json"]["digest"] == good["digest"]
    assert by_file["squatter.receipt.json"]["digest"] != good["digest"]
    assert len(listed(driver, db, "--verdict", "invalid")) == 2
    # Alone, what does not hold is code 1.
    assert driver("history", "add", tmp_path / "forged.receipt.json", "--db", db)[0] == 1


def test_a_file_that_was_added_before_is_not_computed_again(
    driver: Run, nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the very same bytes, and only by the very same program; what was wrong is told again."""
    db, calls = tmp_path / "h.duckdb", list[str]()

    def read(file: Path) -> history.Rows | Refused:
        calls.append(file.name)
        return rows_module_read(file)

    rows_module_read = rows_module.read
    monkeypatch.setattr(rows_module, "read", read)
    good = json.loads((nights / "night-0.receipt.json").read_text())
    path = write(tmp_path, "good", good)
    own = at(parts(), 3).with_plan(evaluator=evaluator())
    forged = write(tmp_path, "forged", _forged(failed_slot(own).sealed()))
    (tmp_path / "half.receipt.json").write_text(json.dumps(good)[:5000])

    def add() -> tuple[int, dict[str, Any], list[str]]:
        calls.clear()
        code, out, _ = driver("history", "add", tmp_path, "--db", db, "--json")
        return code, json.loads(out), sorted(calls)

    names = [f"{name}.receipt.json" for name in ("forged", "good", "half")]
    code, first, read_then = add()
    assert (code, read_then, first["added"], first["unchanged"]) == (2, names, 2, 0)
    before = listed(driver, db)
    code, second, read_then = add()
    assert (code, read_then, second["unchanged"]) == (2, names[2:], 2)
    assert (second["added"], second["renewed"], second["total"]) == (0, 0, 2)
    assert second["invalid"] == first["invalid"] and first["invalid"][0]["file"] == str(forged)
    assert listed(driver, db) == before
    # A blank more, and it is another file.
    path.write_text(path.read_text() + " ")
    code, third, read_then = add()
    assert (read_then, third["renewed"], third["unchanged"]) == (names[1:], 1, 1)
    # Another program may come to something else.
    with monkeypatch.context() as other:
        other.setattr(layout, "program_sha256", lambda: "another")
        code, fourth, read_then = add()
    assert (read_then, fourth["renewed"], fourth["unchanged"]) == (names, 2, 0)
    code, out, _ = driver("history", "add", path, "--db", db, "--json")
    assert json.loads(out)["renewed"] == 1  # its row was the other program's


def test_a_place_without_receipts_is_said(driver: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("empty", "none-*.json"):
        code, out, _ = driver("history", "add", tmp_path / place, "--db", tmp_path / "h.duckdb")
        assert code == 2
        assert "no file *.receipt.json is there" in out
    code, _, err = driver("history", "add", "", "--db", tmp_path / "h.duckdb")
    assert (code, "an empty value" in err) == (2, True)


def test_odd_receipts_are_kept(driver: Run, tmp_path: Path) -> None:
    odd = parts(blocks=1)
    machine = odd.environment.machine | {"cpu": "\x1b[31m𝕏\u202e\0" + "C" * 9000}
    hostile = odd.with_environment(machine=machine).with_plan(preset={"name": "$x_1$ </svg> \n|"})
    write(tmp_path, "hostile", hostile.sealed())
    write(tmp_path, "not finite", at(nonfinite(parts()), 1).sealed())
    write(tmp_path, "no slots", replace(failed_slot(at(parts(), 2)), slots=()).sealed())
    write(tmp_path, "no date", parts(blocks=1).with_plan(frozen_utc="yesterday").sealed())
    write(tmp_path, "last day", at(odd, 2_900_000).sealed())
    db = tmp_path / "h.duckdb"
    code, out, _ = driver("history", "add", tmp_path, "--db", db)
    assert code == 1  # the one without a date
    assert "5 added" in out
    for name in ("svg", "png"):
        code, out, err = driver("history", "plot", tmp_path / f"t.{name}", "--db", db)
        assert code == 0, err
        assert "2 receipts without a date" in out
    ElementTree.fromstring((tmp_path / "t.svg").read_text())
    code, out, _ = driver("history", "list", "--db", db)
    assert code == 0
    assert "\x1b" not in out and "\u202e" not in out
    code, out, _ = driver("history", "query", "SELECT windows_ms FROM slots", "--db", db, "--json")
    assert code == 0
    assert "NaN" not in out


def test_many_files_are_read_by_several_processes(nights: Path) -> None:
    files = history.find([str(nights)])[0]
    some = [file for file in files for _ in range(20)]
    assert len(some) > rows_module._PARALLEL_FROM
    found = history.read_all(some)
    assert [one.receipt.file for one in found if isinstance(one, history.Rows)] == [
        file.name for file in some
    ]


def test_what_is_no_history_is_refused(driver: Run, nights: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.duckdb"
    text.write_text("no database")
    other = tmp_path / "other.duckdb"
    with duckdb.connect(str(other)) as connection:
        connection.execute("CREATE TABLE mine (a INTEGER)")
    older = tmp_path / "older.duckdb"
    assert driver("history", "add", nights / "night-0.receipt.json", "--db", older)[0] == 0
    with duckdb.connect(str(older)) as connection:
        connection.execute("ALTER TABLE slots DROP COLUMN failure")
    lite, parquet, damaged = (tmp_path / name for name in ("lite", "parquet", "damaged"))
    with contextlib.closing(sqlite3.connect(lite)) as foreign:
        foreign.execute("CREATE TABLE mine (a INTEGER)")
        foreign.commit()
    parquet.write_bytes(b"PAR1" + bytes(20))
    damaged.write_bytes(other.read_bytes()[:100])
    for path, said in (
        (text, "is no history of driver's"),
        (lite, "it is an SQLite file"),
        (parquet, "it is a Parquet file"),
        (damaged, "cannot be opened"),
        (other, "no history"),
        (older, "version"),
    ):
        before = path.read_bytes()
        for command in (("list",), ("add", nights), ("query", "SELECT 1")):
            code, _, err = driver("history", *command, "--db", path)
            assert (code, said in err) == (2, True), err
            assert path != text or "--db names a file that `driver history add" in err
        assert path.read_bytes() == before
    for command in (("list",), ("add", nights), ("query", "SELECT 1")):
        code, _, err = driver("history", *command, "--db", tmp_path)
        assert (code, "is a folder; --db names a file in it" in err) == (2, True), err


def test_while_another_process_writes(driver: Run, nights: Path, tmp_path: Path) -> None:
    db = tmp_path / "h.duckdb"
    assert driver("history", "add", nights, "--db", db)[0] == 0
    held = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", held, db], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "1\n"
        code, _, err = driver("history", "add", nights, "--db", db)
        assert (code, "cannot be opened" in err) == (2, True)
        other.communicate("\n")
    assert len(listed(driver, db)) == 12


@pytest.mark.parametrize("command", ["add", "list", "plot", "query", "export", "compare"])
def test_every_command_has_an_example(driver: Run, command: str) -> None:
    code, out, _ = driver("history", command, "--help")
    assert code == 0
    assert f"Example: driver history {command} " in out


def test_schemas_of_the_answers(driver: Run) -> None:
    for name, key in (("list", "ratio_low"), ("add", "unreadable"), ("compare", "changes")):
        assert key in json.loads(driver("schema", f"history-{name}")[1])["properties"]


def test_columns_are_the_records_fields() -> None:
    assert columns_of(HistorySlot)["windows_ms"] == "DOUBLE[]"
    types = columns_of(HistoryReceipt)
    assert (types["ratio"], types["dirty"], types["reasons"]) == ("DOUBLE", "BOOLEAN", "VARCHAR[]")
    assert types["frozen_utc"] == "TIMESTAMP"


# --------------------------------------------------------------------------- list


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((), 12), (("--last", 3), 3), (("--preset", "mini"), 12), (("--preset", "small"), 0),
        (("--arm", "wasm"), 12), (("--arm", "wasm64"), 0), (("--arm", "threads=2"), 12),
        (("--arm", "threads=1"), 0), (("--verdict", "failed"), 1), (("--verdict", "qualified"), 10),
        (("--verdict", "unqualified"), 1), (("--verdict", "invalid"), 0),
        (("--machine", "model cpu"), 12), (("--machine", "%"), 0), (("--browser", "chromium"), 12),
        (("--browser", "firefox"), 0), (("--since", "2026-10-09"), 4), (("--since", "99999d"), 12),
        (("--since", "2026-10-09T04:00:00+01:00"), 4), (("--since", "0d"), 0),
        (("--verdict", "qualified", "--last", 2, "--since", "2026-10-05"), 2),
    ],
)  # fmt: skip
def test_filters(driver: Run, kept: Path, arguments: tuple[object, ...], count: int) -> None:
    assert len(listed(driver, kept, *arguments)) == count


@pytest.mark.parametrize(
    "command",
    [["list"], ["plot", "{folder}/trend.svg"], ["query", "{sql}"], ["add", "{run}"]],
)
@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO receipts (digest) VALUES (NULL)",
        "UPDATE receipts SET verdict = 'splendid'",
        "CREATE OR REPLACE TABLE seen (other INTEGER)",
    ],
)
def test_a_database_made_by_hand_gives_no_traceback(
    kept: Path, nights: Path, tmp_path: Path, driver: Run, command: list[str], change: str
) -> None:
    """Rows and tables that the driver did not write: code 2 and the file, or they do not matter."""
    path = tmp_path / "mine.duckdb"
    shutil.copy(kept, path)
    with duckdb.connect(str(path)) as connection:
        connection.execute(change)
    run = next(nights.glob("*.json"))
    sql = "SELECT * FROM receipts"
    words = [word.format(folder=tmp_path, run=run, sql=sql) for word in command]
    code, _, err = driver("history", *words, "--db", path)
    assert code in (0, 1, 2)
    if "splendid" in change or "NULL" in change:
        assert code == (2 if command[0] in ("list", "plot") else 0), err
    if code == 2:
        assert str(path) in err
        assert "`driver history add` makes another" in err


def test_the_list_is_newest_first_and_readable(driver: Run, kept: Path) -> None:
    found = listed(driver, kept)
    times = [row["frozen_utc"] for row in found]
    assert times == sorted(times, reverse=True)
    code, out, _ = driver("history", "list", "--db", kept)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["date", "preset", "arms"]
    assert "2026-10-12 03:00" in lines[1] and "unqualified" in lines[1]
    assert lines[-1] == "12 receipts"


def test_two_arms_of_one_name_are_two(driver: Run, tmp_path: Path) -> None:
    """In the list as `--arms` has them, and in the README's query."""
    built = parts(names=("wasm", "wasm"))
    one = built.plan.arms[1]
    one = one.model_copy(
        update={
            "options": one.options | {"threads": 1},
            "canonical": one.canonical.replace("threads=2", "threads=1"),
        }
    )
    file, path = tmp_path / "a.receipt.json", tmp_path / "h.duckdb"
    file.write_text(json.dumps(built.with_plan(arms=(built.plan.arms[0], one)).sealed()))
    # Its slots still say two threads, so it is kept as one that does not hold.
    assert driver("history", "add", file, "--db", path)[0] == 1
    _, out, _ = driver("history", "list", "--db", path)
    assert "wasm:threads=2,wasm:threads=1" in " ".join(out.split())
    readme = (ROOT / "README.md").read_text()
    (sql,) = re.findall(r'driver history query "(.*)"', readme)
    columns = re.findall(r"GROUP BY (\w+)", sql)
    both = f"SELECT DISTINCT {columns[0]}, {columns[0].replace('_a', '_b')} FROM receipts"
    _, out, _ = driver("history", "query", both, "--db", path, "--json")
    assert len(set(json.loads(out)[0].values())) == 2


@pytest.mark.parametrize(
    "arguments", [("--verdict", "good"), ("--since", "last week"), ("--since", "d"), ("--last", 0)]
)
def test_wrong_filters(driver: Run, kept: Path, arguments: tuple[object, ...]) -> None:
    assert driver("history", "list", "--db", kept, *arguments)[0] == 2


# --------------------------------------------------------------------------- plot, export


def test_the_picture_marks_a_change_and_what_does_not_count(
    driver: Run, nights: Path, tmp_path: Path
) -> None:
    built = parts(noise=0.002)
    read = []
    for i in range(24):
        wave = 1 + 0.004 * math.sin(2.4 * i)
        path = write(
            tmp_path, f"n{i}", at(built, i, wave, wave * (1.06 if i >= 14 else 1)).sealed()
        )
        read.append(rows_module.read(path))
    read += [rows_module.read(nights / f"{name}.receipt.json") for name in ("failed", "software")]
    rows = [one.receipt for one in read if isinstance(one, history.Rows)]
    drawn = picture(rows)
    again = picture(rows[::-1])
    assert drawn.data == again.data
    text = drawn.data.decode()
    assert "+6." in text and "-5." in text  # B and the ratio; A did not change
    assert text.count("stroke-dasharray") >= 2
    assert "swiftshader" in text and "unqualified" in text and "failed" in text
    steady = picture(rows[:14]).data.decode()
    assert "+6." not in steady
    assert drawn.notes == ()
    # A failed run is a mark at the edge, not a time.
    assert picture(rows[:24]).data != picture(rows[:25]).data
    # The rest is named.
    many = [row.model_copy(update={"preset": f"p{i}"}) for i, row in enumerate(rows[:9])]
    assert len(picture(many).notes) == 5


def test_plot_writes_pictures(driver: Run, kept: Path, tmp_path: Path) -> None:
    for name, start in (("t.svg", b"<?xml"), ("t.png", b"\x89PNG")):
        code, out, _ = driver("history", "plot", tmp_path / name, "--db", kept)
        assert (code, "12 receipts" in out) == (0, True)
        assert (tmp_path / name).read_bytes().startswith(start)
    for name, more in (("t.pdf", ()), ("x.svg", ("--preset", "none"))):
        assert driver("history", "plot", tmp_path / name, "--db", kept, *more)[0] == 2
        assert not (tmp_path / name).exists()


def test_export_to_parquet(driver: Run, kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "it's.parquet"
    assert driver("history", "export", out, "--db", kept)[0] == 0
    assert driver("history", "export", tmp_path / "s.parquet", "--table", "slots", "--db", kept,
                  "--verdict", "failed")[0] == 0  # fmt: skip
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT count(*), sum(ms_a) FROM read_parquet(?)", [str(out)])
        count, total = rows.fetchone() or (0, 0)
        assert count == 12
        assert total == pytest.approx(10 * 11, rel=0.05)
        (slots,) = connection.execute(
            "SELECT len(windows_ms) FROM read_parquet(?) LIMIT 1", [str(tmp_path / "s.parquet")]
        ).fetchone() or (0,)
        assert slots == 3
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    assert driver("history", "export", out, "--table", "x", "--db", kept)[0] == 2
    assert driver("history", "export", tmp_path / "no" / "x.parquet", "--db", kept)[0] == 2
    for name in ("rows.csv", "rows"):  # never Parquet under the name of something else
        code, _, err = driver("history", "export", tmp_path / name, "--db", kept)
        assert (code, "ends in .parquet" in err) == (2, True)
        assert not (tmp_path / name).exists()


# --------------------------------------------------------------------------- query


def test_a_query_reads(driver: Run, kept: Path) -> None:
    sql = (
        "SELECT verdict, count(*) AS n, max(frozen_utc) AS last, list(arm_a)[1:2] AS arms, "
        "'nan'::DOUBLE AS x FROM receipts GROUP BY verdict ORDER BY verdict"
    )
    code, out, _ = driver("history", "query", sql, "--db", kept, "--json")
    assert code == 0
    assert json.loads(out)[0] == {
        "verdict": "failed", "n": 1, "last": "2026-10-11T03:00:00", "arms": ["wasm"], "x": None,
    }  # fmt: skip
    code, out, _ = driver("history", "query", sql, "--db", kept)
    assert code == 0
    assert out.splitlines()[0].split() == ["verdict", "n", "last", "arms", "x"]
    assert out.splitlines()[-1] == "3 rows"
    code, out, _ = driver("history", "query", "SELECT 'a,\"b' AS c, 1.5 AS d, NULL", "--db", kept,
                          "--csv")  # fmt: skip
    assert list(csv.reader(out.splitlines())) == [["c", "d", "NULL"], ['a,"b', "1.5", ""]]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO history VALUES ('x')", "DELETE FROM receipts", "DROP TABLE receipts",
        "CREATE TABLE t (a INTEGER)", "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')", "SELECT * FROM '{file}'",
        "COPY receipts TO '{out}'", "COPY (SELECT 1) TO '{out}'", "EXPORT DATABASE '{out}'",
        "ATTACH '{out}'", "INSTALL httpfs", "LOAD httpfs", "SELECT * FROM glob('/*')",
        "SET enable_external_access=true", "RESET enable_external_access", "SET threads=1",
        "SELECT 1; SELECT 2", ";", "SELECT", "SELECT nothing FROM receipts", "SELEC 1",
    ],
)  # fmt: skip
def test_a_query_can_do_nothing_else(driver: Run, kept: Path, tmp_path: Path, sql: str) -> None:
    file, out = tmp_path / "secret.csv", tmp_path / "out.db"
    file.write_text("secret\n1\n")
    before = kept.read_bytes()
    code, printed, err = driver("history", "query", sql.format(file=file, out=out), "--db", kept)
    assert code == 2
    assert printed == ""
    assert err.startswith("driver: history query: ")
    assert not out.exists()
    assert kept.read_bytes() == before
    assert list(kept.parent.iterdir()) == [kept]


def test_a_bad_query_is_answered_with_where_to_look(driver: Run, kept: Path) -> None:
    """The error, columns like the one that was meant, the tables; and the way to the schema."""
    for wrong in ("SELECT rato FROM receipts", "SELECT ratio FROM receipt", "SELEC 1"):
        _, _, err = driver("history", "query", wrong, "--db", kept)
        assert wrong in err
        assert "The tables are receipts and slots" in err
        assert len(err) < 500
        assert '"ratio"' in err or "rato" not in wrong
    (way,) = re.findall(r'driver history query "(.*)"', err)
    code, out, _ = driver("history", "query", way, "--db", kept)
    assert code == 0
    assert "ratio_low" in out


def test_ctrl_c_ends_a_query_that_takes_forever(kept: Path) -> None:
    sql = (
        "SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range % 7 = b.range % 5"
    )
    command = [sys.executable, "-c", _ANNOUNCED, "history", "query", sql, "--db", str(kept)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (130, False)


# The command line, which says when the query begins.
_ANNOUNCED = """
from driver import cli
from driver.history import database
real = database._answer
def answer(connection, sql):
    print("asked", flush=True)
    return real(connection, sql)
database._answer = answer
cli.main()
"""


# --------------------------------------------------------------------------- compare


def compared(driver: Run, *arguments: object) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    code, out, err = driver("history", "compare", *arguments, "--json")
    assert out, err
    return code, {(c["of"], c["against"]): c for c in json.loads(out)["changes"]}


@pytest.mark.parametrize(
    ("slower", "code", "word"),
    [
        (1.0, 0, "equivalent"),
        (1.05, 1, "regression"),
        (0.95, 0, "improvement"),
        (1.02, 0, "unsure"),
    ],
)
def test_a_new_run_beside_the_last_ones(
    driver: Run, kept: Path, tmp_path: Path, slower: float, code: int, word: str
) -> None:
    new = write(tmp_path, "new", at(parts(noise=0.002), 20, 1.0, slower).sealed())
    got, changes = compared(driver, new, "--db", kept)
    assert got == code
    b = changes["B", "last runs"]
    assert (b["word"], b["runs"]) == (word, 10)
    assert b["change"] == pytest.approx(slower, abs=0.01)
    assert changes["A", "last runs"]["word"] == "equivalent"
    assert b["between_run_sd"] == pytest.approx(0.004, abs=0.002)


def test_what_creeps_is_seen_beside_the_baseline(
    driver: Run, kept: Path, nights: Path, tmp_path: Path
) -> None:
    """0.4% a night is never a regression against the last nights, after 20 of them it is 8%."""
    base = nights / "night-0.receipt.json"
    folder = tmp_path / "creep"
    folder.mkdir()
    for i in range(20):
        write(folder, f"n{i}", at(parts(noise=0.002), 30 + i, 1.0, 1.004 ** (i + 1)).sealed())
    db = tmp_path / "h.duckdb"
    assert driver("history", "add", nights, folder, "--db", db)[0] == 0
    new = write(tmp_path, "new", at(parts(noise=0.002), 51, 1.0, 1.004**21).sealed())
    code, changes = compared(driver, new, "--db", db, "--last", 8, "--baseline", base)
    assert changes["B", "last runs"]["word"] != "regression"
    assert changes["B", "baseline"]["word"] == "regression"
    assert changes["A", "baseline"]["word"] == "equivalent"
    assert code == 1
    # By its digest as well.
    start = json.loads(base.read_text())["digest"][:10]
    assert compared(driver, new, "--db", db, "--last", 8, "--baseline", start)[0] == 1
    listed = json.loads(driver("history", "list", "--db", db, "--json")[1])
    ((shared, count),) = Counter(row["digest"][0] for row in listed).most_common(1)
    assert count > 1
    for text, said in (("ffffffffffff", "no receipt"), (shared, "more than one")):
        code, _, err = driver("history", "compare", new, "--db", db, f"--baseline={text}")
        assert (code, said in err) == (2, True), err


def test_the_first_night_is_unsure(driver: Run, nights: Path, tmp_path: Path) -> None:
    new = nights / "night-9.receipt.json"
    code, changes = compared(driver, new, "--db", tmp_path / "none.duckdb")
    assert code == 0
    assert {c["word"] for c in changes.values()} == {"unsure"}
    assert "it takes 3" in changes["A", "last runs"]["reason"]


def test_other_machines_say_nothing(driver: Run, kept: Path, nights: Path, tmp_path: Path) -> None:
    built = parts(noise=0.002)
    built = built.with_environment(machine=built.environment.machine | {"cpu": "Another"})
    new = write(tmp_path, "new", at(built, 20, 3.0, 3.0).sealed())
    code, changes = compared(
        driver, new, "--db", kept, "--baseline", nights / "night-0.receipt.json"
    )
    assert code == 0
    assert {c["word"] for c in changes.values()} == {"unsure"}
    assert "another machine" in changes["A", "baseline"]["reason"]


def test_later_and_failed_runs_are_not_earlier_ones(driver: Run, kept: Path, nights: Path) -> None:
    _, changes = compared(driver, nights / "night-5.receipt.json", "--db", kept)
    assert changes["A", "last runs"]["runs"] == 5
    code, _, err = driver("history", "compare", nights / "failed.receipt.json", "--db", kept)
    assert (code, "failed" in err) == (2, True)


def _against_source(built: Parts, revision: str) -> Parts:
    """wasm from another source against wasm: what a night runs."""
    a, b = built.plan.arms
    other = f"source={revision}"
    first = a.model_copy(
        update={
            "options": a.options | {"source": revision},
            "canonical": a.canonical.replace("+threads", f"+{other}+threads"),
        }
    )
    slots = tuple(
        slot.model_copy(update={"arm": first.canonical}) if slot.side == "A" else slot
        for slot in built.slots
    )
    return replace(built, slots=slots).with_plan(arms=(first, b))


def test_a_change_against_its_base_in_one_run(driver: Run, tmp_path: Path) -> None:
    """The base is another revision every night; head is one series all the same."""
    built = parts(names=("wasm", "wasm"), noise=0.002)
    built = built.with_plan(arms=(built.plan.arms[0], built.plan.arms[1]))
    folder = tmp_path / "nights"
    folder.mkdir()
    for i in range(6):
        wave = 1 + 0.004 * math.sin(2.4 * i)
        night = _against_source(at(built, i, wave, 2 * wave), f"{i:040x}")
        write(folder, f"n{i}", night.sealed())
    new = write(tmp_path, "new", _against_source(at(built, 9, 1.0, 2.1), "f" * 40).sealed())
    db = tmp_path / "h.duckdb"
    assert driver("history", "add", folder, "--db", db)[0] == 0
    code, changes = compared(driver, new, "--db", db)
    assert code == 1
    assert changes["B", "last runs"]["runs"] == 6
    assert changes["B", "last runs"]["word"] == "regression"
    assert changes["A", "last runs"]["runs"] == 0
    assert changes["B against A", "the same run"]["change"] == pytest.approx(1.05, abs=0.01)
    assert changes["B against A", "the same run"]["word"] == "regression"


def test_what_compare_prints(driver: Run, kept: Path, nights: Path, tmp_path: Path) -> None:
    new = write(tmp_path, "new", at(parts(noise=0.002), 20, 1.0, 1.2).sealed())
    code, out, _ = driver("history", "compare", new, "--db", kept)
    assert code == 1
    assert "regression" in out and "margin 0.02" in out
    code, out, _ = driver("history", "compare", new, "--db", kept, "--markdown")
    assert code == 1
    assert out.startswith("### Against earlier runs: **regression**")
    assert "| B | last runs | 10 |" in out


def test_compare_takes_noise_between_runs_from_the_history(
    driver: Run, kept: Path, nights: Path, tmp_path: Path
) -> None:
    base = nights / "night-0.receipt.json"
    new = write(tmp_path, "new", at(parts(noise=0.002), 20, 1.0, 1.2).sealed())
    code, out, _ = driver("compare", base, new)
    assert (code, "driver history" in out) == (0, True)
    code, out, _ = driver("compare", base, new, "--db", kept)
    assert code == 1
    assert "regression" in out
    code, out, _ = driver("compare", base, nights / "night-9.receipt.json", "--db", kept, "--json")
    assert code == 0
    ratio = json.loads(out)["changes"][2]
    # Both arms moved together from night to night, so their ratio hardly did.
    assert ratio["between_run_sd"] < 0.002
    assert ratio["word"] == "equivalent"

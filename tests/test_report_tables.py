"""Every table at several widths: complete, within the width, no word broken that fits."""

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import receipts
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from test_compare import noise
from test_geometry import step
from test_historical import rehearsed
from test_kernels_report import a_report
from test_ladder import a_ladder, pair
from test_precision import ladder_of, reported, webgpu_pair
from test_reproduce import judged

from driver import presets, receipt, report
from driver.compare import compare_receipts
from driver.doctor import Check, DoctorReport
from driver.history.rows import rows_of
from driver.plan import evaluator
from driver.records import GeometryReport, HistoryChange, HistoryReport
from driver.report.terminal import TextTable, new_console, text_of, visible

WIDE = 4000
HANG = 4  # the deepest indent of a line that is wrapped

BASE = receipts.parts(noise=0.002, blocks=6)
RUNS = {name: receipt.parse(run.sealed()) for name, run in receipts.everything().items()}
GOOD = RUNS["good"]
HISTORY = [
    rows_of(receipt.examine(run.sealed(), evaluator()), f"{name}.receipt.json").receipt
    for name, run in receipts.everything().items()
]
CHECKS = DoctorReport(
    checks=(
        Check(name="python", status="ok", value="3.13.5 on Linux-6.12-x86_64"),
        Check(
            name="adapter speed", status="warning", remedy="start the browser with a hardware GPU",
            value="SwiftShader computes no faster than all cores together, so it is a program's",
        ),
        Check(name="browser", status="missing", value="none found", remedy="driver setup"),
    ),
    adapter=None,
)  # fmt: skip
CHANGES = HistoryReport(
    new_digest="d", baseline_digest=None, margin=0.02, confidence=0.95, last=20,
    remarks=("the machine was busy in 3 of them",),
    changes=(
        HistoryChange(
            of="B against A", arm="webgpu:matmul=blocked", against="the same run", runs=20,
            earlier=12.345, new=13.5, change=1.09, low=1.05, high=1.12, between_run_sd=0.01,
            word="regression", reason=None,
        ),
        HistoryChange(
            of="A", arm="wasm:threads=2", against="last runs", runs=1, earlier=None, new=13.5,
            change=None, low=None, high=None, between_run_sd=None, word="unsure",
            reason="it takes three earlier runs, there is one",
        ),
    ),
)  # fmt: skip


def compared(width: int) -> str:
    one, two = receipt.parse(BASE.sealed()), receipt.parse(receipts.parts(blocks=6).sealed())
    found = compare_receipts(one, two, 0.02, [noise(one, 0), noise(one, 1)])
    return report.comparison(found, width)


# Every text with a table, by the function that makes it.
PAGES: dict[str, list[Callable[[int], str]]] = {
    "text": [lambda width, run=run: report.text(run, width) for run in RUNS.values()]
    + [lambda width: report.text(rehearsed(0.0), width)],
    "curve_over_presets": [
        lambda width: report.curve_over_presets(
            [("receipt-2026-09-02-clip", 2_743_296, GOOD), ("xl", 6_416_896, None)], width
        )
    ],
    "kernels": [lambda width: report.kernels(a_report((7.59, 0.35), (12.7, 0.23)), width)],
    "ladder": [
        lambda width: report.ladder(a_ladder([pair("scalar", "simd128")]), width),
        lambda width: report.ladder(ladder_of(reported(webgpu_pair("off", "storage"))), width),
    ],
    "geometry": [
        lambda width: report.geometry(
            GeometryReport(arm="webgpu", adapter={}, presets=(step(),)), width
        )
    ],
    "machine_checks": [lambda width: report.machine_checks(CHECKS, width)],
    "listing": [lambda width: report.listing(HISTORY, width)],
    "against": [lambda width: report.against(CHANGES, width)],
    "answer": [
        lambda width: report.answer(
            ["arm", "median(ms)", "machine"],
            [["wasm", 12.25, "AMD EPYC 7B13 with a rather long name, 2 cores"], ["null", 1, ""]],
            width,
        )
    ],
    "comparison": [compared],
    "reproduction": [lambda width: report.reproduction(judged(BASE), width)],
    "calibration": [lambda width: report.calibration(noise(GOOD), width)],
    "preset_list": [
        lambda width: report.preset_list([presets.load(name) for name in presets.names()], width)
    ],
    "arm_list": [report.arm_list],
}


def test_no_report_is_left_out() -> None:
    """Pictures apart: they have a width of their own."""
    with_width = {
        name for name in report.__all__
        if callable(found := getattr(report, name)) and not inspect.isclass(found)
        and "width" in inspect.signature(found).parameters
    }  # fmt: skip
    assert set(PAGES) == with_width - {"svg"}


def words_of(page: str) -> set[str]:
    """Without the colon that a heading before its value has."""
    return {word.removesuffix(":") for word in page.split()}


def check_whole(narrow: str, wide: str, width: int, headings: set[str]) -> None:
    """Nothing is lost but headings, nothing too wide, and what is broken did not fit."""
    assert max(map(cell_len, narrow.splitlines())) <= width
    long = {word for word in words_of(wide) if cell_len(word) > width - HANG}
    assert words_of(wide) - long - words_of(narrow) <= headings
    for piece in words_of(narrow) - words_of(wide):
        assert any(piece in word for word in long), f"{piece!r} is a piece of a word that fits"


@pytest.fixture
def headings(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The words of all headings of the test's tables: empty columns lose theirs when stacked, as
    cells that name a row do."""
    found: set[str] = set()
    make = TextTable.__init__

    def remember(self: TextTable, given: Sequence[str], *more: Any, **named: Any) -> None:
        found.update(word for heading in given for word in heading.split())
        make(self, given, *more, **named)

    monkeypatch.setattr(TextTable, "__init__", remember)
    return found


@pytest.mark.parametrize("width", [40, 50, 80, 110])
@pytest.mark.parametrize("name", PAGES)
def test_no_word_is_broken_that_fits(name: str, width: int, headings: set[str]) -> None:
    for page in PAGES[name]:
        check_whole(page(width), page(WIDE), width, headings)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, "name  ms  what for\nab     1  words that are told at length"),
        (31, "name  ms  what for\nab     1  words that are told\n          at length"),
        (28, "ab\n  ms: 1\n  what for: words that are\n  told at length"),
    ],
)  # fmt: skip
def test_columns_give_way_before_rows_are_stacked(width: int, expected: str) -> None:
    """A column of words keeps some width, or each row is a few lines."""
    table = TextTable(("name", "ms", "what for"), ("name", "what for"))
    table.add("ab", "1", "words that are told at length")
    console = new_console(width, False)
    console.print(table)
    assert text_of(console).split("\n") == expected.split("\n")


def test_a_row_needs_a_cell_for_every_heading() -> None:
    with pytest.raises(ValueError, match="3 cells under 2 headings"):
        TextTable(("a", "b"), ()).add("1", "2", "3")


cells = st.text(st.characters(codec="utf-8"), max_size=30)


@given(st.integers(2, 60), st.lists(st.lists(cells, min_size=3, max_size=3), max_size=4), st.data())
def test_any_table(width: int, rows: list[list[str]], data: Any) -> None:
    """Whatever stands in it, at whatever width: all of it is shown."""
    headings = ("what", "ms/step", "")
    left = data.draw(st.sets(st.sampled_from(headings)))
    table = TextTable(headings, left, head=data.draw(st.integers(0, 3)))
    for row in rows:
        table.add(*row)
    console = new_console(width, False)
    console.print(table)
    page = text_of(console)
    assert max(map(cell_len, page.splitlines()), default=0) <= width
    told = "".join(visible(line) for row in rows for cell in row for line in cell.split("\n"))
    assert Counter("".join(told.split())) <= Counter("".join(page.split()))

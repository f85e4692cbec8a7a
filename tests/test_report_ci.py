"""A receipt for a CI job: the Markdown summary and the JUnit file; and the command that writes."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import receipts
from markdown_it import MarkdownIt
from markdown_it.token import Token

from driver import receipt, report
from driver.records import Gate, Receipt

Run = Callable[..., tuple[int, str, str]]
RUNS = {name: receipt.parse(run.sealed()) for name, run in receipts.everything().items()}
HOSTILE = (
    "\n\n# x\n- y\n| a | b |\n|---|\n```\n<script>alert(1)</script><img src=x> &amp; **b** _i_ `c` "
    "[t](https://e.org) <https://e.org> https://e.org www.e.org a@e.org #12 ~~s~~ ![i](x)\x00\x1b"
    "\u202e\ud800\ufffe]]>"
)
PLAIN = {"text", "strong", "code_inline"}


# --------------------------------------------------------------------------- Markdown


def parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def cells(tokens: list[Token]) -> list[str]:
    """Contents of the tables' cells, as a reader sees them."""
    opened = [i for i, token in enumerate(tokens) if token.type in ("td_open", "th_open")]
    return [shown(tokens[i + 1]) for i in opened]


def shown(inline: Token) -> str:
    """Text of a line; comments, which nobody sees, are left out."""
    return "".join(child.content for child in inline.children or () if child.type != "html_inline")


def check_plain(tokens: list[Token]) -> None:
    """Text in headings, paragraphs, lists and tables; no HTML but comments, nothing to follow."""
    for token in tokens:
        assert token.type not in {"html_block", "fence", "code_block", "blockquote_open", "hr"}
        for child in token.children or ():
            if child.type == "html_inline":
                assert child.content == "<!-- -->"
            else:
                assert child.type in {"text", "strong_open", "strong_close", "text_special"}


@pytest.mark.parametrize("name", RUNS)
def test_the_summary_has_verdict_headline_ratio_and_open_gates(name: str) -> None:
    run = RUNS[name]
    text = report.markdown(run)
    tokens = parsed(text)
    check_plain(tokens)
    lines = [shown(token) for token in tokens if token.type == "inline"]
    assert report.verdict_line(run)[:500] in lines[0]
    assert run.verdict.headline in lines
    found = cells(tokens)
    estimate = run.comparison.estimate
    assert (f"{estimate.ratio:.4g}" if estimate.ratio is not None else "none") in found
    if estimate.low is not None:
        assert f"{estimate.low:.4g} to {estimate.high:.4g}" in found
    short = [gate for gate in run.gates if gate.status in ("fail", "unknown")]
    assert Counter(found[-4 * len(short) :: 4] if short else []) == Counter(g.name for g in short)
    assert ("gates did not pass" in text) == bool(short)
    assert text.endswith("\n")


def hostile(name: str, poison: str) -> Receipt:
    data = receipt.restored(receipts.everything()[name].sealed())
    return Receipt.model_validate(receipts.poisoned(data, poison, (*receipts.WORDS, "failure")))


@pytest.mark.parametrize("name", ["good", "failed", "one block"])
def test_a_strangers_strings_change_no_structure(name: str) -> None:
    clean, found = (parsed(report.markdown(hostile(name, words))) for words in ("z", HOSTILE))
    check_plain(found)
    assert [t.type for t in found] == [t.type for t in clean]
    text = "\n".join(shown(token) for token in found if token.type == "inline")
    assert "<script>alert(1)</script><img src=x> &amp; **b** _i_ `c`" in text


def test_nothing_that_github_makes_a_link_of() -> None:
    """Addresses, names, numbers of issues: broken by a comment that nobody sees."""
    text = report.markdown(hostile("failed", HOSTILE))
    assert not re.search(r"https?://|www\.\w|\w@\w|(?<!&)#\d", text)


@pytest.mark.parametrize("start", ["1. x", "- x", "+ x", "=== ", "# x", "> x", "    x", "12) x"])
def test_a_headline_begins_no_block(start: str) -> None:
    run = RUNS["good"]
    verdict = run.verdict.model_copy(update={"headline": start + "y"})
    tokens = parsed(report.markdown(run.model_copy(update={"verdict": verdict})))
    check_plain(tokens)
    assert (start + "y").strip() in [shown(t) for t in tokens if t.type == "inline"]


def test_a_summary_stays_short() -> None:
    run = hostile("failed", "x" * 100_000)
    gate = Gate(name="n", gate_class="blocking", limit=None, measured=None, status="fail",
                reason="r" * 5000)  # fmt: skip
    text = report.markdown(run.model_copy(update={"gates": (gate,) * 3000}))
    assert len(text) < 150_000  # a job's summary holds 1 MiB
    assert "and 2900 more" in text


# --------------------------------------------------------------------------- JUnit


@pytest.mark.parametrize("name", RUNS)
def test_a_case_per_gate(name: str) -> None:
    run = RUNS[name]
    suite = ElementTree.fromstring(report.junit(run).encode()).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [gate.name for gate in run.gates]
    for case, gate in zip(cases, run.gates, strict=True):
        assert case.get("classname") == f"driver.{gate.gate_class}"
        failure, skipped = case.find("failure"), case.find("skipped")
        assert (failure is not None) == (gate.status == "fail")
        assert (skipped is not None) == (gate.status in ("unknown", "not-applicable"))
        if failure is not None:
            assert (failure.get("type"), failure.get("message")) == (gate.gate_class, gate.reason)
            assert failure.text == gate.reason
        if skipped is not None:
            assert skipped.get("message") == f"{gate.status}: {gate.reason}"
    counts = Counter(gate.status for gate in run.gates)
    expected = {
        "tests": len(run.gates), "failures": counts["fail"], "errors": 0,
        "skipped": counts["unknown"] + counts["not-applicable"],
    }  # fmt: skip
    assert {key: int(suite.get(key, "-1")) for key in expected} == expected


def test_figures_are_properties() -> None:
    run = RUNS["good"]
    root = ElementTree.fromstring(report.junit(run).encode())
    found = {p.get("name"): p.get("value") for p in root.iter("property")}
    a, b = run.comparison.arms
    assert found["verdict"] == "qualified"
    assert found["headline"] == run.verdict.headline
    assert float(found["ratio"] or 0) == run.comparison.estimate.ratio
    assert float(found["step_ms_A"] or 0) == a.median_step_ms
    assert float(found["step_ms_B"] or 0) == b.median_step_ms


def test_only_what_was_measured_is_a_figure() -> None:
    root = ElementTree.fromstring(report.junit(RUNS["failed, not finite"]).encode())
    found = {p.get("name"): p.get("value") or "" for p in root.iter("property")}
    assert "ratio" not in found
    assert all(math.isfinite(float(found[key])) for key in found if key.startswith("step_ms"))


@pytest.mark.parametrize("name", ["good", "failed"])
def test_a_strangers_strings_are_text(name: str) -> None:
    """Parsed again it has the same cases, and no character that XML cannot hold."""
    run = hostile(name, HOSTILE)
    written = report.junit(run)
    root = ElementTree.fromstring(written.encode())
    assert {element.tag for element in root.iter()} <= {
        "testsuites", "testsuite", "properties", "property", "testcase", "failure", "skipped",
    }  # fmt: skip
    assert len(root.findall(".//testcase")) == len(run.gates)
    assert not re.search("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", written)
    assert "alert(1)</script>" in (root.find(".//testcase").get("name") or "")  # type: ignore[union-attr]


def test_a_doubtful_receipt_is_a_failed_case() -> None:
    run = RUNS["good"]
    for faults, other in ((("a\x00b",), ()), ((), ("c",))):
        check = receipt.Examination(faults, other, ())
        root = ElementTree.fromstring(report.junit(run, check).encode())
        assert root.get("tests") == str(len(run.gates) + 1)
        assert root.get("failures") == "1"
        (failure,) = root.iter("failure")
        assert failure.text == (faults or other)[0].replace("\x00", "")
    assert "INVALID" in report.markdown(run, receipt.Examination(("x",), (), ()))


# --------------------------------------------------------------------------- the command


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "mini.receipt.json"
    path.write_text(json.dumps(receipts.parts(adapter="software").sealed()))
    return path


def test_beside_the_receipt_or_on_stdout(driver: Run, stored: Path) -> None:
    code, out, err = driver("report", stored, "--html", "--markdown", "--junit")
    found = receipt.parse(json.loads(stored.read_text()))
    check = receipt.Examination((), (), ())
    page, results = stored.with_suffix(".html"), stored.with_suffix(".junit.xml")
    assert page.name == "mini.receipt.html"
    assert page.read_text() == report.html(found, check)
    assert results.read_text() == report.junit(found, check)
    # These receipts were judged by an evaluator of their own, which may differ in nothing.
    assert out == report.markdown(found, check)
    assert str(page) in err
    assert str(results) in err
    assert code == 0


def test_where_it_is_told(driver: Run, stored: Path, tmp_path: Path) -> None:
    page, summary, results = (tmp_path / name for name in ("a.html", "b.md", "c.xml"))
    words = ["report", "--junit", stored, "--html", page, results, "--markdown", summary]
    code, out, _ = driver(*words)
    assert (code, out) == (0, "")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert summary.read_text().startswith("### ")
    assert results.read_text().startswith("<?xml")
    anywhere = tmp_path / "summary"
    assert driver("report", stored, "--markdown", anywhere)[0] == 0
    assert anywhere.read_text() == summary.read_text()
    assert not stored.with_suffix(".html").exists()


def test_places_that_cannot_be(driver: Run, stored: Path, tmp_path: Path) -> None:
    """Nothing is written, and the message names the file."""
    before = sorted(tmp_path.iterdir())
    text = stored.read_text()
    for words, said in (
        (["x.html"], "x.html"),
        (["--html", "x.md", "y.html"], "x.md"),
        (["--html", "x.html", "y.html"], "y.html"),
        (["--html", "--junit", "x.txt"], "x.txt"),
        (["--html", tmp_path], "is a folder"),
        (["--html", tmp_path / "none" / "x.html"], "there is no folder"),
        (["--junit", stored], "is the receipt itself"),
    ):
        code, out, err = driver("report", stored, *words)
        assert (code, out) == (2, "")
        assert said in err
    assert sorted(tmp_path.iterdir()) == before
    assert stored.read_text() == text


def test_an_invalid_receipt_is_written_with_its_fault(driver: Run, stored: Path) -> None:
    stored.write_text(stored.read_text().replace('"unqualified"', '"qualified"'))
    code, out, err = driver("report", stored, "--html", "--markdown")
    assert code == 1
    assert err.count("INVALID receipt") == 1
    assert "INVALID receipt" in out
    assert "INVALID receipt" in stored.with_suffix(".html").read_text()


def test_other_results_have_no_page(driver: Run, tmp_path: Path) -> None:
    for name, said in (
        ("driver-kernels/1", "driver kernels --json"), ("driver-ladder/1", "not a whole ladder"),
    ):  # fmt: skip
        path = tmp_path / "other.json"
        path.write_text(json.dumps({"format": name}))
        code, _, err = driver("report", path, "--html")
        assert code == 2
        assert said in err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.json"]

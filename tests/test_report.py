"""Receipts as text: complete, and safe to print whoever wrote them."""

import re
import unicodedata

import pytest
import receipts
from hypothesis import given, settings
from hypothesis import strategies as st

from driver import receipt, report
from driver.plan import SUSPECTS
from driver.records import Receipt, SlotEvent

RUNS = {name: receipt.parse(run.sealed()) for name, run in receipts.everything().items()}
HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]qualified[/]\u202e\x9b31m\ud800\x00\r\u2028"


def flowed(text: str) -> str:
    """The words of a page whatever its width."""
    return " ".join(text.split())


def safe(text: str) -> bool:
    """Nothing that steers a terminal or cannot be printed."""
    text.encode("utf-8")
    return all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp") for c in text)


# --------------------------------------------------------------------------- what it says


@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_and_its_reasons_are_told(name: str) -> None:
    run = RUNS[name]
    page = report.text(run, width=400)
    assert report.verdict_line(run) in page
    assert run.verdict.headline in page
    for reason in run.verdict.reasons:
        assert reason in page
    assert safe(page)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("width", [20, 40, 60, 110])
def test_narrow_terminals(name: str, width: int) -> None:
    page = report.text(RUNS[name], width=width)
    assert max(map(len, page.splitlines())) <= width
    assert RUNS[name].verdict.status in page


def test_every_gate_slot_and_arm_has_its_line() -> None:
    run = RUNS["good"]
    page = report.text(run, width=300)
    for gate in run.gates:
        assert re.search(rf"^{re.escape(gate.name)} +{gate.gate_class}", page, re.MULTILINE)
    for arm in run.plan.arms:
        words = arm.canonical.replace(":", "  ").replace("+", " ")
        assert re.search(rf"^{arm.side} +{re.escape(words)}$", page, re.MULTILINE)
    assert len(re.findall(r"^ *\d+ +\d+ +[AB] +ok ", page, re.MULTILINE)) == len(run.slots)


def test_the_share_of_the_roofline() -> None:
    """6000 executed FLOPs in 10 ms, of 0.001 GFLOP/s: 60%; blank where none was measured."""
    run = receipt.parse(receipts.at_speed(receipts.parts(), None).sealed())
    lines = report.text(run, width=300).splitlines()
    table = lines[next(i for i, line in enumerate(lines) if "ms/step" in line) :]
    a, b = (next(line for line in table if line.startswith(f"{side} ")) for side in "AB")
    assert re.search(r" (59|60|61)% ", a)
    assert "%" not in b


def test_where_a_steps_time_goes() -> None:
    """Operations by time, what is outside of them, and what asking cost."""
    lines = report.text(RUNS["good"], width=300).splitlines()
    rows = lines[lines.index("profile of A wasm") + 1 :]
    assert rows[0].split() == ["operation", "calls", "ms/step", "share", "GFLOP/s"]
    # 1152 FLOPs in 6 ms; windows of 5 steps, two a round; the second round is the fastest.
    assert rows[1].split() == ["matmul_forward", "3", "6", "60.0%", "0.000192"]
    assert rows[2].split() == ["adamw", "1", "2.05", "20.5%"]
    assert rows[3].split() == ["gelu_forward", "1", "1.01", "10.1%"]
    assert rows[4].split() == ["outside", "of", "them", "0.94", "9.4%"]
    assert rows[5].startswith("the profiler's own cost: +0.5% of a step (+0.5% to +1.0% over 2 ")
    assert "9.95 ms/step without it, 10 with it, windows of 5 steps" in rows[5]
    assert "no profile of B webgpu: not measured on this arm yet" in lines


def test_no_profile_where_none_was_asked_for() -> None:
    run, none = RUNS["good"], {"profile": None, "profile_reason": None}
    arms = tuple(arm.model_copy(update=none) for arm in run.plan.arms)
    plan = run.plan.model_copy(update={"arms": arms})
    assert "profile" not in report.text(run.model_copy(update={"plan": plan}))


def test_the_ratio_with_its_interval() -> None:
    run = RUNS["good"]
    estimate = run.comparison.estimate
    page = report.text(run, width=300)
    assert f"time of A / time of B = {estimate.ratio:.4g}" in page
    assert f"[{estimate.low:.4g} to {estimate.high:.4g}]  4 blocks: B is faster than A" in page


def test_no_interval_is_said_with_its_reason() -> None:
    page = report.text(RUNS["one block"], width=300)
    assert "[no interval]  1 block: unsure which is faster (1 finished block:" in page


def test_a_run_whose_only_block_is_suspect_did_finish_it() -> None:
    hidden = SlotEvent(kind="hidden", message="1 times hidden")
    run = receipt.parse(
        receipts.parts(blocks=1).with_plan(suspects=SUSPECTS).with_slot(1, events=[hidden]).sealed()
    )
    page = flowed(report.text(run, width=300))
    assert re.search(r"without suspect block 0 \(.*?\): none is left", page)
    assert "no block finished" not in page


def test_a_failed_run_makes_no_claim() -> None:
    page = flowed(report.text(RUNS["failed"], width=300))
    assert "no ratio: no block finished" in page
    assert "failed (device-lost: the device was lost)" in page
    assert "failed: errors failed: slot 2" in page
    assert "No claim" in page


def test_a_reference_shorter_than_the_training_says_so() -> None:
    run = RUNS["good"]
    assert "A against the float64 reference over 14 steps: " in report.text(run, width=300)
    (_, a_error), *_ = run.comparison.curve_errors.items()
    errors = {"A": a_error.model_copy(update={"steps": 10})}
    comparison = run.comparison.model_copy(update={"curve_errors": errors})
    page = report.text(run.model_copy(update={"comparison": comparison}), width=300)
    assert "A against the float64 reference over 10 of 14 steps: " in page


def test_numbers_that_are_none_are_shown_as_such() -> None:
    page = report.text(RUNS["not finite"], width=300)
    assert "B against the float64 reference over 14 steps: loss nan" in page
    assert re.search(r"ok +[\d.]+ [\d.]+ nan", page)


def test_software_comes_first() -> None:
    assert report.verdict_line(RUNS["software"]) == "unqualified: software adapter"
    assert report.verdict_line(RUNS["good"]) == "qualified"


def test_colour_only_where_wanted() -> None:
    plain, coloured = (report.text(RUNS["software"], 200, colour) for colour in (False, True))
    assert "\x1b" not in plain
    assert "\x1b[1;33munqualified: software adapter\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).split() == plain.split()


# --------------------------------------------------------------------------- strangers


@pytest.mark.parametrize("name", ["good", "failed", "not finite", "one block"])
@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("width", [30, 120])
def test_a_strangers_strings_are_shown_not_obeyed(name: str, colour: bool, width: int) -> None:
    data = receipt.restored(receipts.everything()[name].sealed())
    for slot in data["slots"]:
        if slot["failure"]:
            slot["failure"] = {"kind": "crash", "message": HOSTILE, "op": HOSTILE}
    hostile = Receipt.model_validate(receipts.poisoned(data, HOSTILE, (*receipts.WORDS, "failure")))
    page = report.text(hostile, width=width, colour=colour)
    bare = re.sub(r"\x1b\[[\d;]*m", "", page) if colour else page
    assert safe(bare)
    assert "2J" in bare
    assert "[bold red]" in "".join(bare.split("\n")) or width == 30
    if colour:
        # The only escapes are styles of the report's own.
        assert set(re.findall(r"\x1b\[([\d;]*)m", page)) <= {
            "0", "1", "2", "32", "33", "1;31", "1;32", "1;33",
        }  # fmt: skip
    assert safe(report.curve_over_presets([(HOSTILE, 5, hostile), ("b", 6, None)]))


def test_a_reason_cannot_forge_a_verdict_line() -> None:
    run = RUNS["software"]
    verdict = run.verdict.model_copy(update={"reasons": ("x\nqualified\n",), "headline": "a\nb"})
    page = report.text(run.model_copy(update={"verdict": verdict}), width=200)
    assert r"unqualified: x\nqualified\n" in page
    assert not re.search(r"^(qualified|b)$", page, re.MULTILINE)


@settings(max_examples=60)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text(question: str, message: str) -> None:
    run = RUNS["failed"]
    failure = run.slots[2].failure
    assert failure is not None
    slot = run.slots[2].model_copy(
        update={"failure": failure.model_copy(update={"message": message})}
    )
    shown = run.model_copy(
        update={
            "slots": (*run.slots[:2], slot),
            "plan": run.plan.model_copy(update={"question": question}),
        }
    )
    assert safe(report.text(shown, width=80))


@pytest.mark.parametrize("value", receipts.ODD)
def test_any_number(value: float) -> None:
    for part in ("slots", "comparison", "gates"):
        assert safe(report.text(receipts.with_numbers(RUNS["good"], value, (part,))))


def test_windows_of_no_steps() -> None:
    run = RUNS["good"]
    slots = tuple(slot.model_copy(update={"steps_per_window": 0}) for slot in run.slots)
    assert safe(report.text(run.model_copy(update={"slots": slots})))


# --------------------------------------------------------------------------- over presets


def test_a_curve_over_presets_leaves_blanks() -> None:
    rows = [("tiny", 70_464, RUNS["good"]), ("small", 366_432, None), ("xl", 1, RUNS["failed"])]
    lines = report.curve_over_presets(rows).splitlines()
    a, b = RUNS["good"].comparison.arms
    assert [line.split()[0] for line in lines[-3:]] == ["tiny", "small", "xl"]
    tiny, small, xl = (line.split() for line in lines[-3:])
    assert tiny[1:4] == ["70,464", f"{a.median_step_ms:.4g}", f"{b.median_step_ms:.4g}"]
    assert tiny[-1] == "qualified"
    assert small == ["small", "366,432"]
    assert xl[-1] == "failed"


def test_the_picture_is_one_file() -> None:
    """Nothing is fetched from elsewhere, and what a receipt says is escaped."""
    built = receipts.parts()
    picture = report.svg(receipt.parse(built.sealed()))
    assert picture.startswith("<svg")
    assert "font-face" not in picture
    assert "url(http" not in picture
    assert "curve.loss.A" in picture

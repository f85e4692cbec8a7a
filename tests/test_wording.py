"""What rounding and grammar make of numbers."""

import html
import math
import re
from collections.abc import Callable

import pytest
import receipts
from hypothesis import given
from hypothesis import strategies as st

from driver import receipt, report
from driver.plan import SUSPECTS
from driver.records import Receipt, SlotEvent
from driver.stats import word_for
from driver.wording import counted, interval_text, told_apart_from

RATIOS = st.floats(1e-6, 1e6) | st.floats(0.99, 1.01)


@pytest.mark.parametrize(
    ("low", "high", "digits", "words"),
    [
        (1.0047376, 1.0670485, 3, "1.005 to 1.067"),
        (1.0047376, 1.0670485, 4, "1.005 to 1.067"),
        (0.93, 0.99996, 3, "0.93 to 0.99996"),
        (1.89, 1.918, 3, "1.89 to 1.92"),
        (1.0, 2.0, 3, "1 to 2"),
        (0.9, 1.0000004, 4, "0.9 to 1.0000004"),
        (1.001, 1.02004, 4, "1.001 to 1.02004"),
    ],
)
def test_an_interval(low: float, high: float, digits: int, words: str) -> None:
    assert interval_text(low, high, (1.0, 1.02), digits) == words


@given(RATIOS, RATIOS, st.sampled_from([0.005, 0.02, 0.1]), st.sampled_from([3, 4]))
def test_rounding_never_changes_the_answer(
    one: float, other: float, margin: float, digits: int
) -> None:
    """The word that the printed interval gives is the word of the interval itself."""
    low, high = min(one, other), max(one, other)
    limits = (1.0, 1 + margin)
    shown = [float(end) for end in interval_text(low, high, limits, digits).split(" to ")]
    for end, value in zip(shown, (low, high), strict=True):
        for limit in limits:
            assert (end > limit, end < limit) == (value > limit, value < limit)
    sure = {"faster", "slower"}
    before = word_for(math.log(low), math.log(high), 0.0)
    after = word_for(*map(math.log, shown), 0.0)
    assert (before in sure or after in sure) <= (before == after)
    assert (told_apart_from(one) == "1") == (one == 1)


@pytest.mark.parametrize("value", receipts.ODD)
def test_any_number(value: float) -> None:
    assert told_apart_from(value)
    assert " to " in interval_text(value, value)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_counted(number: int) -> None:
    assert counted(number, "block") == f"{number} block" + "s" * (number != 1)
    assert counted(number, "loss", "losses") == f"{number} loss" + "es" * (number != 1)


def close(noise: float = 0.02) -> Receipt:
    """Two arms that differ by little more than their noise: the interval begins just above 1."""
    built = receipts.parts(blocks=6)
    waves = (-1.0, 1.0, 0.3, -0.4, 0.6, -0.5)
    slots = []
    for slot in built.slots:
        ms = 50.0 * (1.018 * (1 + noise * waves[slot.block]) if slot.side == "A" else 1.0)
        slots.append(slot.model_copy(update=receipts.timed([ms] * len(slot.windows_ms))))
    return receipt.parse(receipts.replace(built, slots=tuple(slots)).sealed())


def test_no_report_says_one_beside_faster() -> None:
    run = close()
    estimate = run.comparison.estimate
    assert estimate.low and estimate.high
    assert estimate.word == "faster"
    assert f"{estimate.low:.3g}" == "1"
    for page in (
        run.verdict.headline, report.hero(run).detail, report.text(run, width=400),
        report.markdown(run), report.html(run), report.junit(run),
    ):  # fmt: skip
        assert "1.00" in page
        assert "1 to 1.0" not in page


@pytest.mark.parametrize("calm", [0, 1, 2])
def test_why_there_is_no_estimate_without_suspect_blocks(calm: int) -> None:
    """Every block finished: what is left is said, in the grammar of its number."""
    built = receipts.parts(blocks=4).with_plan(suspects=SUSPECTS)
    hidden = SlotEvent(kind="hidden", message="1 times hidden")
    for block in range(4 - calm):
        built = built.with_slot(4 * block, events=[hidden])
    run = receipt.parse(built.sealed())
    found = run.comparison.sensitivity
    assert found and found.blocks == calm
    left = ["no finished block is", "1 finished block is", "2 finished blocks are"][calm]
    assert (found.reason or "").startswith(f"{left} left without the suspect ones")


ONE = re.compile(r"(?<![\d.,×/])1 (\w+s)\b")
# Verbs and units, and whatever else may follow the number one.
ALSO_OF_ONE = {
    "does",
    "passes",
    "is",
    "was",
    "has",
    "ms",
    "s",
    "loss",
    "this",
    "times",
    "as",
    "class",
}


@pytest.mark.parametrize("page", [report.html, report.markdown, lambda run: report.text(run, 400)])
def test_one_of_anything_is_singular(page: Callable[[Receipt], str]) -> None:
    """A run with one block, one window, one step, one sample and one gate of each kind."""
    run = receipt.parse(receipts.parts(blocks=1).sealed())
    arms = tuple(
        arm.model_copy(update={"warmup_steps": 1, "windows": 1, "steps_per_window": 1})
        for arm in run.plan.arms
    )
    a, b = (found.model_copy(update={"windows": 1}) for found in run.comparison.arms)
    gates = [
        next(gate for gate in run.gates).model_copy(update={"status": status, "reason": "so"})
        for status in ("pass", "fail", "unknown", "not-applicable")
    ]
    one = run.model_copy(
        update={
            "plan": run.plan.model_copy(update={"arms": arms}),
            "comparison": run.comparison.model_copy(update={"arms": (a, b)}),
            "gates": tuple(gates),
        }
    )
    text = html.unescape(
        re.sub(r"<style>.*?</style>|<svg.*?</svg>|<[^>]*>", " ", page(one), flags=re.S)
    )
    assert [word for word in ONE.findall(text) if word not in ALSO_OF_ONE] == []
    assert "(s)" not in text

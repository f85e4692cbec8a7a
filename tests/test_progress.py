"""Progress as a person sees it: on real pseudo-terminals of several widths, in logs, not at all.

`python -m pytest tests/test_progress.py -k costs` prints what the live view costs.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from terminals import Screen, Terminal

from driver.progress import SlotNow
from driver.progress.displays import REFRESHES_HZ
from driver.progress.state import ArmNow, State
from driver.progress.view import MOST_COLUMNS, clock, lines
from driver.records import Side

# A run without a browser: says something, finishes a slot of A, is in one of B when a key comes.
RUN = """
import sys
from driver.progress import Reporter, SlotNow
with Reporter("quiet" in sys.argv, "plain" in sys.argv) as report:
    report.say("warning: it is hot")
    report.part("preset small, 2 of 3")
    report.phase("looking at the machine", 1)
    report.slots(("wasm simd=scalar", "wasm simd=relaxed"))
    for number, (side, ms, loss) in enumerate([("A", 30.0, 5.5), ("B", 10.0, 5.25)], 1):
        report.slot(f"slot {number}/8  {side} wasm", 4,
                    SlotNow(number, 8, 1, 2, ("A", "B", "B", "A"), number - 1, side, 3661.0))
        report.window(side, 2 * ms)
        report.window(side, ms)
        report.step(2, loss)
    sys.stdin.readline()
    report.error("it did not go well")
    report.result("the result")
"""


def run(columns: int, *words: str, env: dict[str, str] | None = None, **kept: Path) -> Terminal:
    return Terminal(["-c", RUN, *words], columns, env, **kept)


def in_b(screen: Screen) -> bool:
    return "▶ B" in screen.text and "5.25" in screen.text


def test_wide() -> None:
    with run(120) as terminal:
        screen = terminal.until(in_b)
        assert screen.text.splitlines()[0] == "warning: it is hot"
        assert "preset small, 2 of 3" in screen.text
        assert "slot 2 of 8   block 1 of 2    A [B] B  A" in screen.text
        assert "19%" in screen.text  # one slot and a half of eight
        assert "about 1:01:0" in screen.text
        rows = {row.split()[0]: row for row in screen.text.splitlines() if "simd=" in row}
        assert rows["A"].split() == ["A", "30.00", "45.00", "2", "5.5000", "wasm", "simd=scalar"]
        assert rows["▶"].split()[1:5] == ["B", "10.00", "15.00", "2"]
        assert "A/B 3.000  (raw: no interval, no claim before the end)" in screen.text
        assert screen.colours
        assert not screen.cursor
        terminal.type(b"\n")
        assert terminal.end() == 0
        # Nothing is left of the view, and the lines that stay are in order.
        said = ["warning: it is hot", "it did not go well", "the result"]
        assert terminal.screen.text.splitlines() == said
        assert terminal.sane
        # The last result is the last thing drawn: the view is not shown once more to be erased.
        assert b"slot 2 of 8" not in terminal.output.partition(b"the result")[2]


SEVERAL = """
import sys
from driver.progress import Reporter
with Reporter() as report:
    report.phase("the first", 1)
    report.result("a result")
    report.phase("the second", 1)
    sys.stdin.readline()
    report.result("another result")
    report.say("a line")
"""


def test_the_view_is_back_after_a_result() -> None:
    with Terminal(["-c", SEVERAL], 80) as terminal:
        screen = terminal.until(lambda screen: "the second" in screen.text)
        assert screen.text.splitlines()[:2] == ["a result", "the second"]
        terminal.type(b"\n")
        assert terminal.end() == 0
        assert terminal.screen.text.splitlines() == ["a result", "another result", "a line"]
        assert b"the second" not in terminal.output.partition(b"another result")[2]
        assert terminal.sane


def test_narrow_and_resized() -> None:
    with run(40) as terminal:
        screen = terminal.until(in_b)
        assert not screen.wrapped
        assert "slot 2/8  block 1/2   A [B] B  A" in screen.text
        assert "▶ B   10.00 ms/step  loss 5.2500" in screen.text
        assert "A/B 3.000  raw, no claim yet" in screen.text
        for columns in (120, 40, 20, 8, 80):
            terminal.resize(columns)
            screen = terminal.until(lambda screen: "▶ B" in screen.text)
            assert not screen.wrapped, screen.text
        assert "A/B 3.000  (raw: no interval" in screen.text
        terminal.type(b"\n")
        assert terminal.end() == 0
        assert terminal.sane


def test_an_exported_width_that_is_no_longer_true() -> None:
    with run(40, env={"COLUMNS": "200"}) as terminal:
        assert not terminal.until(in_b).wrapped


def test_no_color() -> None:
    with run(80, env={"NO_COLOR": "1"}) as terminal:
        assert not terminal.until(in_b).colours


@pytest.mark.parametrize(
    ("words", "env"), [(["plain"], {}), ([], {"TERM": "dumb"}), (["plain"], {"FORCE_COLOR": "1"})]
)
def test_plain(words: list[str], env: dict[str, str]) -> None:
    """Lines without anything that steers a terminal."""
    with run(80, *words, env=env) as terminal:
        terminal.until(lambda screen: "slot 2/8" in screen.text)
        terminal.type(b"\n")
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.output
        text = terminal.screen.text
    for line in ("preset small, 2 of 3", "looking at the machine …", "slot 1/8  A wasm …"):
        assert line in text


def test_quiet() -> None:
    with run(80, "quiet") as terminal:
        terminal.type(b"\n")
        assert terminal.end() == 0
        assert terminal.output == b"it did not go well\r\nthe result\r\n"


def test_the_result_goes_to_stdout_alone(tmp_path: Path) -> None:
    """Also while the view is there, and stdout is a file."""
    target = tmp_path / "out"
    with run(80, stdout=target) as terminal:
        terminal.until(in_b)
        terminal.type(b"\n")
        assert terminal.end() == 0
        assert "the result" not in terminal.screen.text
    assert target.read_text() == "the result\n"


def test_a_terminal_that_goes_away(tmp_path: Path) -> None:
    """What was started to outlive its terminal goes on and gives its result."""
    target = tmp_path / "out"
    script = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + RUN.replace(
        "sys.stdin.readline()", "import time; time.sleep(1.5); report.say('still here')"
    )
    terminal = Terminal(["-c", script], 80, stdout=target)
    terminal.until(in_b)
    assert terminal.outlive() == 0
    assert target.read_text() == "the result\n"


def test_a_log_gets_lines_whatever_is_forced() -> None:
    """CI forces colours often; a log is no terminal all the same."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], input="\n", capture_output=True, text=True, check=True,
        env={"FORCE_COLOR": "1", "TERM": "xterm", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout == "the result\n"
    assert "\x1b" not in done.stderr
    assert "slot 2/8  B wasm …" in done.stderr


def test_how_often_it_draws_and_what_that_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """At most four times a second. The cost is printed, not judged."""
    assert REFRESHES_HZ <= 4
    script = RUN.replace("sys.stdin.readline()", indent(COST, "    ").strip())
    with Terminal(["-c", script], 120) as terminal:
        terminal.until(in_b)
        assert terminal.end() == 0
        text = terminal.screen.text
        drawn = terminal.output.count(b"windows")
    spent, wall = (float(word) for word in text.splitlines()[1].split()[1:])
    assert 2 <= drawn <= 4 * wall + 4
    with capsys.disabled():
        print(f"\nlive view: {60 * spent / wall:.2f} s of CPU time a minute")


# While windows come much faster than it draws, as they never do.
COST = """
import time
time.sleep(0.5)
cpu, wall = time.process_time(), time.perf_counter()
for step in range(60):
    report.window("B", 10.0 + step)
    report.step(step % 4, 5.25)
    time.sleep(0.05)
report.say(f"cost {time.process_time() - cpu} {time.perf_counter() - wall}")
"""


def test_view_never_fills_a_line() -> None:
    """Of any width, for every kind of state: some terminals wrap after the last column."""
    states = [State(), State(phase="reference", total=40, done=10, loss=5.4), slot_state()]
    states.append(slot_state(slot=None, phase="priming the browser", slots_done=0.25))
    states.append(slot_state(part="pair 1/3: " + "scalar → simd128, " * 9))
    for state in states:
        for columns in range(1, 200):
            found = lines(state, columns)
            assert found
            assert all(line.cell_len <= max(8, columns - 1) for line in found)
            assert all(line.cell_len <= MOST_COLUMNS for line in found)


def slot_state(**changes: Any) -> State:
    arms: dict[Side, ArmNow] = {
        "A": ArmNow("wasm threads=2", [12000.5, 0.0123], 5.5), "B": ArmNow("webgpu"),
    }  # fmt: skip
    slot = SlotNow(24, 24, 6, 6, ("B", "A", "A", "B"), 3, "B", 0.4)
    return replace(State(arms=arms, slot=slot, left_s=0.4, total=9, done=9), **changes)


def test_view_before_there_are_figures() -> None:
    text = "\n".join(line.plain for line in lines(slot_state(), 100))
    assert "A/B" not in text
    assert "100%" in text
    assert slot_state().raw_ratio() is None
    assert State().raw_ratio() is None


def test_time_left() -> None:
    """The run's where it is known, the phase's by its pace, none before its first step."""
    assert slot_state(left_s=100.0, left_at=10.0).seconds_left(30.0) == 80
    assert slot_state(left_s=100.0, left_at=10.0).seconds_left(300.0) == 0
    assert State(total=40, done=10, phase_began=0.0).seconds_left(20.0) == 60
    assert State(total=40, phase_began=0.0).seconds_left(20.0) is None
    assert [clock(s) for s in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]

"""How many threads an arm gets: decided by samples, whatever a browser says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.arms import parse_arm, parse_arms
from driver.browser import BrowserSession
from driver.machine import machine_facts
from driver.prepare import probe
from driver.threads import MOST, ROUNDS, candidates, choice, wanted


@pytest.mark.parametrize(
    ("samples", "threads"),
    [
        # A machine with as many cores as it says.
        ({1: [40.0], 2: [79.0]}, 2),
        ({1: [40.0], 2: [79.0], 3: [118.0], 4: [156.0]}, 4),
        # A quota of two cores' time on a machine with eight.
        ({1: [40.0], 2: [79.0], 4: [80.0], 8: [76.0]}, 2),
        # One core alone.
        ({1: [40.0], 2: [40.5], 4: [39.0]}, 1),
        # Four fast cores and four slow ones, which still add something.
        ({1: [40.0], 4: [150.0], 8: [200.0]}, 8),
        # A second thread on the same core adds nothing to what fills it.
        ({2: [80.0], 4: [160.0], 8: [163.0]}, 4),
        # A single bad round, or two, hides no core; seen on two cores with a load of 9.
        ({1: [50.2, 38.5, 2.7], 2: [35.9, 12.5, 35.9]}, 2),
        # Another process on one of two cores.
        ({1: [40.0], 2: [54.0]}, 2),
    ],
)
def test_the_choice(samples: dict[int, list[float]], threads: int) -> None:
    chosen, reason = choice(samples)
    assert chosen == threads
    assert reason.startswith(f"{threads} of up to {max(samples)} threads")


@given(st.integers(1, 16), st.integers(1, 64), st.data())
def test_disturbed_rounds_never_cost_a_core(cores: int, said: int, data: st.DataObject) -> None:
    """One clean round is enough, whatever the others lost of any number of threads."""
    counts = candidates(said, cores)
    lost = st.lists(st.floats(0.0, 0.99), min_size=ROUNDS - 1, max_size=ROUNDS - 1)
    samples = {
        n: [40.0 * n * (1 - share) for share in data.draw(lost)] + [40.0 * n] for n in counts
    }
    assert choice(samples)[0] >= cores * 0.9


@given(st.none() | st.integers(1, 1 << 40), st.integers(1, 1 << 12))
def test_candidates(said: int | None, usable: int) -> None:
    found = candidates(said, usable)
    assert found[0] == 1
    assert found[-1] == min(usable, MOST)
    assert list(found) == sorted(set(found))
    assert said is None or said > found[-1] or said in found


@pytest.mark.parametrize(
    ("arms", "open_"),
    [("wasm,webgpu", True), ("wasm:threads=2,wasm64", True), ("wasm:threads=1,webgpu", False),
     ("null,webgpu", False)],
)  # fmt: skip
def test_only_what_is_open_is_measured(arms: str, open_: bool) -> None:
    assert wanted(parse_arms(arms)) == open_


TOLD = """
import * as real from "{{real}}";
export const timer_step_ms = real.timer_step_ms;
export const probe = async () => ({{ ...(await real.probe()), hardware_concurrency: {} }});
"""


@pytest.mark.parametrize("said", [1, 64])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_browser_that_is_told_a_wrong_number(
    session: BrowserSession, broken: Any, said: int
) -> None:
    """The machine is measured, and the receipt's record says all of it."""
    server = await broken("probe.js", TOLD.format(said))
    found = await probe(session, server, [parse_arm("wasm")])
    unasked = await probe(session, server, [parse_arm("wasm:threads=1")])
    assert unasked.threads is None
    threads, usable = found.threads, machine_facts().cores_usable
    assert threads is not None
    assert (threads.hardware_concurrency, threads.cores_usable) == (said, usable)
    assert found.features["usable_threads"] == threads.threads
    if usable == 1:
        assert (threads.threads, threads.measured) == (1, ())
        return
    samples = {one.threads: one.gflops for one in threads.measured}
    assert tuple(samples) == candidates(said, usable)
    assert all(len(values) == ROUNDS and min(values) > 0.01 for values in samples.values())
    busy = threads.reason.startswith(f"{usable} usable core")
    assert threads.threads == (usable if busy else choice(samples)[0])


def test_a_busy_machine_lowers_nothing() -> None:
    """Seen at a load of 14 on two cores, in five rounds of five."""
    threads, reason = choice({1: [51.9] * 5, 2: [44.7] * 5}, busy=7.0)
    assert threads == 2
    assert "load of 7.00 per core" in reason

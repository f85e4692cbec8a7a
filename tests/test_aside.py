"""Work in a thread: what it gives, and that it ends when nobody wants it any more."""

import asyncio
import threading

import pytest

from driver import corpus, presets
from driver.aside import GoOn, Unwanted, aside
from driver.workload import Teacher, Workload, reference_curve, with_band


async def test_what_it_gives() -> None:
    assert await aside(lambda _: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ValueError, match="mine"):
        await aside(raising)


def raising(_: GoOn) -> None:
    raise ValueError("mine")


async def test_a_cancelled_one_ends() -> None:
    """It would run for ever, and asyncio.run would wait for it."""
    loop, began, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def endless(go_on: GoOn) -> None:
        loop.call_soon_threadsafe(began.set)
        try:
            while True:
                go_on()
        finally:
            loop.call_soon_threadsafe(ended.set)

    task = asyncio.create_task(aside(endless))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), 10)


def test_training_asks_after_every_step() -> None:
    """A reference, its replicas and the teacher states stop at the step in which they are told."""
    preset = presets.load("tiny")
    workload = Workload.draw(preset, corpus.load(None), 1)
    reference, _ = reference_curve(workload, 2, frozenset(), lambda _: None)

    def stopped_at(last: int) -> tuple[list[int], GoOn]:
        seen: list[int] = []

        def go_on() -> None:
            seen.append(len(seen) + 1)
            if len(seen) == last:
                raise Unwanted

        return seen, go_on

    seen, go_on = stopped_at(3)
    with pytest.raises(Unwanted):
        reference_curve(workload, 50, frozenset(), lambda _: go_on())
    assert seen == [1, 2, 3]
    seen, go_on = stopped_at(3)
    with pytest.raises(Unwanted):
        with_band(workload, reference, {}, {}, 2, lambda _: go_on())
    assert seen == [1, 2, 3]
    seen, go_on = stopped_at(2)
    teacher = Teacher(workload)
    with pytest.raises(Unwanted):
        teacher.compute(go_on=go_on)
    assert seen == [1, 2]
    assert teacher.step_s == 0

"""The reporter: what a run tells of itself while it runs."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console

from driver.progress.displays import Display, InPlace, Lines, Silent
from driver.progress.state import ArmNow, SlotNow, State
from driver.records import Plan, Side, Slot


def display_for(quiet: bool, plain: bool) -> Display:
    """How progress is shown: errors alone, lines, or, on a terminal that can do it, in place."""
    if quiet:
        return Silent()
    # Asked of stderr itself: FORCE_COLOR makes rich take a log for a terminal.
    if plain or not sys.stderr.isatty() or Console(stderr=True).is_dumb_terminal:
        return Lines()
    return InPlace()


class Reporter:
    """What is going on now; a context manager. Written to stderr, so that stdout stays data."""

    def __init__(self, quiet: bool = False, plain: bool = False) -> None:
        self._displays = [display_for(quiet, plain)]
        self._state = State()
        self._stopped = False  # the terminal's display, by a result

    def __enter__(self) -> Self:
        for display in self._displays:
            display.start(self._state)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for display in self._displays:
            display.stop()

    @contextmanager
    def beside(self, display: Display) -> Iterator[None]:
        """Shows everything there as well, as long as the body runs."""
        display.start(self._state)
        self._displays.append(display)
        try:
            yield
        finally:
            self._displays.remove(display)
            display.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        for display in self._displays:
            display.say(text)

    def error(self, text: str) -> None:
        """A line that stays and that `--quiet` does not keep back."""
        for display in self._displays:
            display.error(text)

    def result(self, text: str) -> None:
        """Prints a result on stdout, out of the display's way, which goes on with what comes next:
        after the last result there is nothing to be shown any more."""
        self._displays[0].stop()
        self._stopped = True
        print(text, flush=True)

    def part(self, text: str) -> None:
        """One of several runs begins; `text` says which."""
        self._state.part = text
        self._state.began = time.monotonic()
        self._forget()
        self._go_on()
        for display in self._displays:
            display.part(self._state)

    def phase(self, text: str, total: int) -> None:
        """A new phase of `total` steps."""
        state = self._state
        if state.slot:
            state.slots_done = state.slot.number / state.slot.slots
            state.slot = None
        self._begin(text, total)

    def slots(self, labels: tuple[str, str], plan: Plan | None = None) -> None:
        """A run's slots are to come, by this plan; `labels` tell its arms A and B apart."""
        self._forget()
        self._state.arms = {"A": ArmNow(labels[0]), "B": ArmNow(labels[1])}
        self._state.plan = plan

    def slot(self, text: str, total: int, now: SlotNow) -> None:
        """A slot of `total` steps; `slots` came before."""
        state = self._state
        state.left_s, state.left_at = now.left_s, time.monotonic()
        state.slot = now
        if now.side in state.arms:
            state.arms[now.side].curve.clear()
        self._begin(text, total)

    def step(self, done: int, loss: float | None = None, losses: Sequence[float] = ()) -> None:
        """`done` steps of the phase are finished; `loss` is the last one's, `losses` are those of
        all steps since the last report, where they are known."""
        state = self._state
        state.done, state.loss = done, loss
        if state.slot and loss is not None:
            arm = state.arms[state.slot.side]
            arm.loss = loss
            new = losses or (loss,)
            arm.curve += zip(range(done - len(new) + 1, done + 1), new, strict=True)
        for display in self._displays:
            display.step(state)

    def window(self, side: Side, step_ms: float) -> None:
        """A timed window of an arm has ended, ms/step; nothing is derived from it but the view."""
        if side in self._state.arms:
            self._state.arms[side].windows_ms.append(step_ms)

    def slot_ended(self, slot: Slot) -> None:
        """A slot is over, well or not; what comes next says so to the displays."""
        self._state.ended.append(slot)
        if slot.side in self._state.arms:
            self._state.arms[slot.side].curve = list(enumerate(slot.losses, 1))

    def rest(self, text: str) -> None:
        """Nothing is measured now; `text` says what is waited for."""
        self._forget()
        self._state.began = time.monotonic()
        self._begin(text, 1)

    def _begin(self, text: str, total: int) -> None:
        state = self._state
        state.phase, state.total, state.done, state.loss = text, max(total, 1), 0, None
        state.phase_began = time.monotonic()
        self._go_on()
        for display in self._displays:
            display.phase(state)

    def _go_on(self) -> None:
        if self._stopped:
            self._stopped = False
            self._displays[0].start(self._state)

    def _forget(self) -> None:
        """An earlier run's arms."""
        state = self._state
        state.arms, state.plan, state.ended = {}, None, []
        state.slot, state.left_s, state.slots_done = None, None, 0.0
        state.phase, state.done, state.total, state.loss = "", 0, 1, None

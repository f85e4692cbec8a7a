"""The ways to show progress: a view that is written over in place, plain lines, nothing."""

import contextlib
import os
import sys
import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from driver.progress import view
from driver.progress.state import State

# In CI a line per phase and slot is enough; a long phase speaks up once in a while.
PLAIN_EVERY_S = 15.0
# Drawn in a thread of this process, whatever happens: what is measured runs in others, and a page
# that has just posted a window does not wait for it.
REFRESHES_HZ = 2.0


class Display(Protocol):
    """Shows a state; on a terminal all of it goes to stderr."""

    def start(self, state: State) -> None:
        """Begin to show the state, which changes from now on."""

    def stop(self) -> None:
        """Leave the terminal as it was, but for the lines that were said."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def error(self, text: str) -> None:
        """A line that stays, however quiet a person wanted it."""

    def part(self, state: State) -> None:
        """One of several runs has begun."""

    def phase(self, state: State) -> None:
        """A new phase or slot has begun."""

    def step(self, state: State) -> None:
        """Steps of the phase are done."""


class Silent:
    """Errors and nothing else."""

    def start(self, state: State) -> None: ...

    def stop(self) -> None: ...

    def say(self, text: str) -> None: ...

    def error(self, text: str) -> None:
        # A reader that has gone, as of `2>&1 | head`, takes nothing with it: the run goes on.
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def part(self, state: State) -> None: ...

    def phase(self, state: State) -> None: ...

    def step(self, state: State) -> None: ...


class Lines(Silent):
    """A line for everything: for a log, for CI, for a screen reader."""

    def __init__(self) -> None:
        self._spoken = 0.0

    def say(self, text: str) -> None:
        self.error(text)

    def part(self, state: State) -> None:
        self.say(state.part)

    def phase(self, state: State) -> None:
        self._spoken = time.monotonic()
        self.say(f"{state.phase} …")

    def step(self, state: State) -> None:
        if time.monotonic() - self._spoken > PLAIN_EVERY_S:
            self._spoken = time.monotonic()
            loss = "" if state.loss is None else f" loss {state.loss:.4f}"
            self.say(f"  {state.phase}: step {state.done}{loss}")


class InPlace(Silent):
    """A view of a few lines at the end of the terminal, written over in place.

    A terminal that has gone takes nothing with it: the run goes on, as it may be meant to.
    It costs 0.15 s of CPU time a minute; `tests/test_progress.py` measures that again.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._state = State()

    def start(self, state: State) -> None:
        self._state = state
        self._live = Live(
            console=self._console,
            get_renderable=self._view,
            refresh_per_second=REFRESHES_HZ,
            transient=True,
            # Results on stdout stay there, also where that is a file.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with contextlib.suppress(OSError):
            self._live.start()

    def stop(self) -> None:
        if self._live:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        # The terminal wraps it, so that a path can be copied whole.
        with contextlib.suppress(OSError):
            self._console.print(Text(text), soft_wrap=True)

    def error(self, text: str) -> None:
        self.say(text)

    def _view(self) -> Group:
        # COLUMNS may be that of a window which has changed since.
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or self._console.width
        except OSError:
            columns = self._console.width
        return Group(*view.lines(self._state, min(columns, self._console.width)))

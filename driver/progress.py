"""Progress on stderr: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from driver.records import Plan, Side, Slot

# In CI a line per phase and slot is enough; a long phase speaks up once in a while.
PLAIN_EVERY_S = 15.0


@dataclass(frozen=True)
class SlotPlace:
    """A slot that begins, and its place in the run."""

    index: int
    slots: int
    block: int
    position: int
    side: Side
    arm: str
    steps: int
    left_s: float
    """Estimate of the time until the last slot ends."""


class Reporter:
    """What is going on now; a context manager. Written to stderr, so that stdout stays data."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal and not quiet
        self._bar: Progress | None = None
        self._task: object = None
        self._phase = ""
        self._spoken = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(compact=True),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar:
            self._bar.console.print(text, markup=False)
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def phase(self, text: str, total: int) -> None:
        """A new phase of `total` steps."""
        self._phase, self._spoken = text, time.monotonic()
        self.rest()
        if self._bar:
            self._task = self._bar.add_task(text, total=max(total, 1), note="")
        elif not self._quiet:
            print(f"{text} …", file=sys.stderr, flush=True)

    def rest(self) -> None:
        """Nothing is going on."""
        if self._bar:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)

    def planned(self, plan: Plan) -> None:
        """The plan is frozen; slots follow."""

    def slot(self, place: SlotPlace) -> None:
        """A slot begins."""
        self.phase(
            f"slot {place.index + 1}/{place.slots}  {place.side} {place.arm}, "
            f"about {place.left_s:.0f} s left in all",
            place.steps,
        )

    def slot_ended(self, slot: Slot) -> None:
        """A slot is over, well or not."""

    def step(self, done: int, loss: float | None = None, step_ms: float | None = None) -> None:
        """`done` steps of the phase are finished; the last ones took `step_ms` each."""
        figures = ("" if loss is None else f"loss {loss:.4f}",
                   "" if step_ms is None else f"{step_ms:.4g} ms/step")  # fmt: skip
        note = "  ".join(filter(None, figures))
        if self._bar and self._bar.task_ids:
            self._bar.update(self._bar.task_ids[0], completed=done, note=note)
        elif not self._quiet and time.monotonic() - self._spoken > PLAIN_EVERY_S:
            self._spoken = time.monotonic()
            print(f"  {self._phase}: step {done} {note}", file=sys.stderr, flush=True)

"""What a display shows: the phase or slot that runs, and the arms' raw figures so far."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from driver.records import Plan, Side, Slot


@dataclass(frozen=True)
class SlotNow:
    """Where in the plan's order a run is. Numbers count from 1, `position` from 0."""

    number: int
    slots: int
    block: int
    blocks: int
    order: Sequence[Side]
    """Of this block: A B B A or B A A B."""
    position: int
    side: Side
    left_s: float
    """Estimate of the time that all slots to come, this one included, take in seconds."""


@dataclass
class ArmNow:
    """An arm's raw figures: nothing here is an estimate, and nothing is claimed from it."""

    label: str
    windows_ms: list[float] = field(default_factory=list)
    """ms/step of every window so far, over all slots."""
    loss: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)
    """Step, counted from 1, and loss in the arm's newest slot: as far as they were reported, and
    every step once the slot has ended."""

    @property
    def last_ms(self) -> float | None:
        return self.windows_ms[-1] if self.windows_ms else None

    @property
    def median_ms(self) -> float | None:
        # A copy: a display reads it from a thread of its own.
        windows = list(self.windows_ms)
        return median(windows) if windows else None


@dataclass
class State:
    """Written by the reporter, read by a display."""

    part: str = ""
    phase: str = ""
    done: int = 0
    total: int = 1
    loss: float | None = None
    began: float = field(default_factory=time.monotonic)
    phase_began: float = field(default_factory=time.monotonic)
    arms: dict[Side, ArmNow] = field(default_factory=dict)
    """Both sides from the first block of a run on."""
    plan: Plan | None = None
    """The run's, as long as `arms` are there."""
    ended: list[Slot] = field(default_factory=list)
    """Its slots that are over, well or not."""
    slot: SlotNow | None = None
    """None in phases that are no slot."""
    slots_done: float = 0.0
    """Share of the run's slots that is finished."""
    left_s: float | None = None
    """Estimate of what is left of the run, as of `left_at`."""
    left_at: float = 0.0

    def raw_ratio(self) -> float | None:
        """Median window of A over that of B, as far as both have windows; no claim."""
        a, b = (self.arms[side].median_ms if side in self.arms else None for side in ("A", "B"))
        return a / b if a and b else None

    def share(self) -> float:
        """Of the run's slots where there are some, else of the phase."""
        if not self.arms:
            return min(1.0, self.done / self.total)
        if self.slot is None:
            return self.slots_done
        begun = min(1.0, self.done / self.total)
        return (self.slot.number - 1 + begun) / self.slot.slots

    def seconds_left(self, now: float) -> float | None:
        """Of the run where that is known, else of the phase, from its pace so far."""
        if self.left_s is not None:
            return max(0.0, self.left_s - (now - self.left_at))
        if 0 < self.done < self.total:
            return (now - self.phase_began) / self.done * (self.total - self.done)
        return None

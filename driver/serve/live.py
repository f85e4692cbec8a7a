"""What the page shows: a run as the reporter has it, and a receipt as its result."""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from driver.arms import short_names
from driver.progress import Silent, State
from driver.records import ArmSummary, Receipt, Side, Slot
from driver.report import hero
from driver.report.words import arm_name, first_known
from driver.run import Request
from driver.serve.state import (
    ArmResult,
    ArmView,
    GateView,
    Place,
    ResultView,
    RunView,
    SlotView,
)
from driver.stats import planned_blocks, step_ms

MOST_POINTS = 240  # of a curve; a page is about that many pixels wide
MOST_WINDOWS = 60
MOST_LINES = 20
_SIDES: tuple[Side, Side] = ("A", "B")


class PageDisplay(Silent):
    """Progress in the page, beside the terminal's; `view` is what the page shows now."""

    def __init__(self, request: Request, changed: Callable[[bool], None]) -> None:
        self._request = request
        self._changed = changed
        """Called in the loop, with True where the page must not wait for the news."""
        self._loop = asyncio.get_running_loop()
        self._state = State()
        self._said: list[str] = []

    def start(self, state: State) -> None:
        self._state = state

    def say(self, text: str) -> None:
        self._said += [line.strip() for line in text.splitlines() if line.strip()]
        self._changed(True)

    def error(self, text: str) -> None:
        self.say(text)

    def phase(self, state: State) -> None:
        self._changed(True)

    def step(self, state: State) -> None:
        # Some steps are reported from a thread that nobody waits for any more: it may be late, and
        # the loop closed by then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._changed, False)

    @property
    def view(self) -> RunView:
        """A picture of the state."""
        state, plan = self._state, self._state.plan
        left_s = None
        if state.left_s is not None:
            left_s = state.seconds_left(time.monotonic())
        elif plan:
            left_s = plan.estimated_s
        return RunView(
            preset=self._request.preset.name,
            arms=(self._arm("A"), self._arm("B")),
            phase=state.phase or "starting",
            share=state.share(),
            left_s=left_s,
            budget_s=self._request.purpose.budget_s,
            place=_place(state),
            raw_ratio=state.raw_ratio(),
            order=tuple("".join(block) for block in plan.order) if plan else (),
            slots=tuple(map(_slot, state.ended)),
            said=tuple(self._said[-MOST_LINES:]),
        )

    def _arm(self, side: Side) -> ArmView:
        plan, now = self._state.plan, self._state.arms.get(side)
        name = short_names(*(plan.arms if plan else self._request.arms))[_SIDES.index(side)]
        if now is None:
            return ArmView(side=side, name=name, label=name)
        return ArmView(
            side=side, name=name, label=_more_than(name, now.label), step_ms=now.last_ms,
            median_step_ms=now.median_ms, windows=len(now.windows_ms),
            newest_ms=tuple(now.windows_ms[-MOST_WINDOWS:]), loss=now.loss,
            curve=thinned(now.curve),
        )  # fmt: skip


def _more_than(name: str, label: str) -> str:
    """The label, or the name where the label has no other words."""
    return name if set(label.split()) <= set(re.findall(r"[^\s()]+", name)) else label


def _place(state: State) -> Place | None:
    slot = state.slot
    if slot is None:
        return None
    return Place(
        number=slot.number, slots=slot.slots, block=slot.block, blocks=slot.blocks,
        position=slot.position, side=slot.side,
    )  # fmt: skip


def _slot(slot: Slot) -> SlotView:
    marks = tuple(f"{event.kind}: {event.message}" for event in slot.events)
    if slot.failure:
        marks = (f"{slot.failure.kind}: {slot.failure.message}", *marks)
    return SlotView(
        block=slot.block + 1, position=slot.position, side=slot.side, ok=slot.status == "ok",
        step_ms=step_ms(slot), marks=marks,
    )  # fmt: skip


def thinned(curve: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """At most `MOST_POINTS` points of a curve, the first and the last among them."""
    if len(curve) <= MOST_POINTS:
        return tuple(curve)
    last = len(curve) - 1
    return tuple(curve[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS))


# --------------------------------------------------------------------------- the result


def result_of(receipt: Receipt, path: Path, number: int, interrupted: bool) -> ResultView:
    """What the page shows of a receipt."""
    found = receipt.comparison
    words = hero(receipt)
    planned = 4 * planned_blocks(receipt.plan, receipt.slots)
    told = _stop_told(receipt, planned) if interrupted else {}
    return ResultView(
        number=number,
        file=path.name,
        folder=str(path.parent),
        interrupted=interrupted,
        status=receipt.verdict.status,
        reasons=tuple(
            next((words for said, words in told.items() if reason.endswith(said)), reason)
            for reason in receipt.verdict.reasons
        ),
        headline=receipt.verdict.headline,
        figure=words.figure,
        line=f"You stopped it. {words.line}" if interrupted else words.line,
        detail=words.detail,
        arms=(_arm(receipt, found.arms[0]), _arm(receipt, found.arms[1])),
        slots=len(receipt.slots),
        slots_planned=planned,
        suspect=tuple(
            f"block {block.block + 1}: {', '.join(block.suspect)}"
            for block in found.blocks
            if block.suspect
        ),
        gates=tuple(
            GateView(
                name=g.name,
                gate_class=g.gate_class,
                status=g.status,
                reason=told.get(g.reason, g.reason),
            )
            for g in receipt.gates
            if g.status in ("fail", "unknown")
        ),
        gates_passed=sum(gate.status == "pass" for gate in receipt.gates),
    )


def _stop_told(receipt: Receipt, planned: int) -> dict[str, str]:
    """What the receipt says of slots that are missing → the same for whoever stopped the run.

    A receipt holds a run against its plan, whatever kept it from the rest; that a person did is
    known here alone. A slot that failed before the stop remains what it is.
    """
    if any(slot.status == "failed" for slot in receipt.slots):
        return {}
    words = stopped_words(len(receipt.slots), planned)
    return {
        gate.reason: f"{words}; a plan that was not run to its end counts as failed"
        for gate in receipt.gates
        if gate.name == "errors" and gate.status == "fail"
    }


def stopped_words(slots: int, planned: int) -> str:
    """Who ended a run, and when."""
    return f"stopped by you in the page after {slots} of {planned} slots"


def _arm(receipt: Receipt, summary: ArmSummary) -> ArmResult:
    mine = [slot for slot in receipt.slots if slot.side == summary.side]
    low, high = summary.quartile1_step_ms, summary.quartile3_step_ms
    return ArmResult(
        side=summary.side,
        name=arm_name(receipt, summary.side),
        step_ms=summary.median_step_ms,
        quartiles=None if low is None or high is None else (low, high),
        gflops=summary.gflops,
        windows=summary.windows,
        first_loss=summary.first_loss,
        last_loss=summary.last_loss,
        first_step_ms=first_known(slot.first_step_ms for slot in mine),
        compile_ms=first_known(slot.compile_ms for slot in mine),
    )

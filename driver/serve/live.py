"""Progress of a run for the page, beside the terminal's; and a receipt as the page's result."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from statistics import median

from driver.plan import announce
from driver.progress import Reporter, SlotPlace
from driver.records import ArmSummary, Plan, Receipt, Side, Slot
from driver.report import hero
from driver.report.words import first_known
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
MOST_LINES = 12


class LiveReporter(Reporter):
    """Tells the terminal, and keeps what the page shows in `view`."""

    def __init__(
        self, terminal: Reporter, request: Request, changed: Callable[[bool], None]
    ) -> None:
        super().__init__(quiet=True)
        self._terminal = terminal
        self._changed = changed
        """Called with True where the page must not wait for the news."""
        self._loop = asyncio.get_running_loop()
        self._plan: Plan | None = None
        self._ended: list[Slot] = []
        self._curve: list[tuple[int, float]] = []
        a, b = (ArmView(side=side, name=spec.name, canonical=spec.canonical)
                for side, spec in zip(("A", "B"), request.arms, strict=True))  # fmt: skip
        self.view = RunView(
            preset=request.preset.name, arms=(a, b), phase="starting",
            budget_s=request.purpose.budget_s,
        )  # fmt: skip

    def say(self, text: str) -> None:
        """A line that stays."""
        self._terminal.say(text)
        self._update(True, said=(*self.view.said, text)[-MOST_LINES:])

    def phase(self, text: str, total: int) -> None:
        """A new phase of `total` steps."""
        self._terminal.phase(text, total)
        self._update(True, phase=text, done=0, total=max(total, 1), place=None)

    def planned(self, plan: Plan) -> None:
        """The plan is frozen; slots follow."""
        self._plan = plan
        self._terminal.planned(plan)
        arms = tuple(
            view.model_copy(update={"canonical": arm.canonical})
            for view, arm in zip(self.view.arms, plan.arms, strict=True)
        )
        lines = tuple(line.strip() for line in announce(plan, 0.0).splitlines()[1:])
        # Said already, word for word.
        said = tuple(line for line in self.view.said if not line.startswith("plan "))
        order = tuple("".join(block) for block in plan.order)
        self._update(
            True, arms=arms, plan=lines, order=order, slots_planned=4 * len(order),
            left_s=plan.estimated_s, said=said,
        )  # fmt: skip

    def slot(self, place: SlotPlace) -> None:
        """A slot begins."""
        self._terminal.slot(place)
        self._curve = []
        where = Place(
            index=place.index, slots=place.slots, block=place.block, blocks=place.slots // 4,
            position=place.position, side=place.side, arm=place.arm,
        )  # fmt: skip
        self._update(
            True, phase=f"slot {place.index + 1} of {place.slots}", done=0, total=place.steps,
            place=where, slots_planned=place.slots, left_s=place.left_s,
        )  # fmt: skip

    def step(self, done: int, loss: float | None = None, step_ms: float | None = None) -> None:
        """`done` steps of the phase are finished. May be called from another thread."""
        self._terminal.step(done, loss, step_ms)
        # A thread that nobody waits for any more may be late: the loop is closed by then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._step, done, loss, step_ms)

    def _step(self, done: int, loss: float | None, step_ms: float | None) -> None:
        place = self.view.place
        if place is None:
            self._update(False, done=done)
            return
        new: dict[str, object] = {}
        if step_ms is not None:
            new["step_ms"] = step_ms
        if loss is not None:
            self._curve.append((done, loss))
            new |= {"loss": loss, "curve": thinned(self._curve)}
        self._update(False, done=done, arms=self._with(place.side, new))

    def slot_ended(self, slot: Slot) -> None:
        """A slot is over, well or not."""
        self._terminal.slot_ended(slot)
        self._ended.append(slot)
        marks = tuple(f"{event.kind}: {event.message}" for event in slot.events)
        if slot.failure:
            marks = (f"{slot.failure.kind}: {slot.failure.message}", *marks)
        ended = SlotView(
            block=slot.block, position=slot.position, side=slot.side, ok=slot.status == "ok",
            step_ms=step_ms(slot), marks=marks,
        )  # fmt: skip
        mine = [ms for s in self._ended if s.side == slot.side if (ms := step_ms(s)) is not None]
        new: dict[str, object] = {"median_step_ms": median(mine) if mine else None}
        if slot.losses:
            new |= {"loss": slot.losses[-1], "curve": thinned(list(enumerate(slot.losses, 1)))}
        self._update(True, slots=(*self.view.slots, ended), arms=self._with(slot.side, new))

    def _with(self, side: Side, new: dict[str, object]) -> tuple[ArmView, ...]:
        return tuple(
            arm.model_copy(update=new) if arm.side == side else arm for arm in self.view.arms
        )

    def _update(self, now: bool, **new: object) -> None:
        self.view = self.view.model_copy(update=new)
        self._changed(now)


def thinned(curve: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
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
    return ResultView(
        number=number,
        file=path.name,
        folder=str(path.parent),
        interrupted=interrupted,
        status=receipt.verdict.status,
        reasons=receipt.verdict.reasons,
        headline=receipt.verdict.headline,
        figure=words.figure,
        line=words.line,
        detail=words.detail,
        arms=(_arm(receipt, found.arms[0]), _arm(receipt, found.arms[1])),
        slots=len(receipt.slots),
        slots_planned=4 * planned_blocks(receipt.plan, receipt.slots),
        suspect=tuple(
            f"block {block.block + 1}: {', '.join(block.suspect)}"
            for block in found.blocks
            if block.suspect
        ),
        gates=tuple(
            GateView(name=g.name, gate_class=g.gate_class, status=g.status, reason=g.reason)
            for g in receipt.gates
            if g.status in ("fail", "unknown")
        ),
        gates_passed=sum(gate.status == "pass" for gate in receipt.gates),
    )


def _arm(receipt: Receipt, summary: ArmSummary) -> ArmResult:
    mine = [slot for slot in receipt.slots if slot.side == summary.side]
    arm = next(arm for arm in receipt.plan.arms if arm.side == summary.side)
    low, high = summary.quartile1_step_ms, summary.quartile3_step_ms
    return ArmResult(
        side=summary.side,
        name=arm.name,
        canonical=summary.arm,
        step_ms=summary.median_step_ms,
        quartiles=None if low is None or high is None else (low, high),
        gflops=summary.gflops,
        windows=summary.windows,
        first_loss=summary.first_loss,
        last_loss=summary.last_loss,
        first_step_ms=first_known(slot.first_step_ms for slot in mine),
        compile_ms=first_known(slot.compile_ms for slot in mine),
    )

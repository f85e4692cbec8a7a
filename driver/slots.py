"""The plan's blocks: fresh browsers, fresh pages, one record per slot."""

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driver.arms import given_losses, in_few_words
from driver.browser import Browser, Session
from driver.jobs import (
    JobMaker,
    curve,
    digest_op,
    open_op,
    read_op,
    read_refusal,
    train_op,
    train_ops,
)
from driver.machine import BUSY_SHARE, OthersWatch
from driver.measure import JobOutcome, run_job
from driver.parity import Mask, tensor_error
from driver.plan import Measured, now_utc
from driver.progress import Reporter, SlotNow
from driver.records import (
    ArmJob,
    ArmPlan,
    Op,
    OpResult,
    Plan,
    Progress,
    ReferenceFacts,
    Side,
    Slot,
    SlotEvent,
    StateRef,
    TokensRef,
)
from driver.reference import Tensors
from driver.server import JobServer
from driver.stats import planned_blocks
from driver.tensors import State

SENTINELS = 5
TELLS = 3
OnWeights = Callable[[Side, State], None]


@dataclass
class Blocks:
    """Runs the plan's blocks and adds what they give to `measured`."""

    browser: Browser
    report: Reporter
    server: JobServer
    maker: JobMaker
    initial: StateRef
    tokens: TokensRef
    arms: tuple[ArmJob, ArmJob]
    checkpoints: dict[int, Tensors]
    undetermined: tuple[dict[str, Mask], dict[str, Mask]]
    measured: Measured
    on_weights: OnWeights = lambda *_: None
    began: float = field(default_factory=time.monotonic)
    warned: bool = False

    async def run(self) -> None:
        """All blocks, each in a fresh browser after an unrecorded priming slot."""
        self.report.slots(in_few_words(*self.measured.plan.arms), self.measured.plan)
        for block, order in enumerate(self.measured.plan.order):
            if block >= self._planned():
                break
            async with self.browser.session() as session:
                await self._prime(session)
                for position, side in enumerate(order):
                    slot = await self._slot(session, block, position, side)
                    self.measured.slots.append(slot)
                    self.report.slot_ended(slot)
                    self._warn(slot)
                    if slot.status == "failed":
                        return
        await self._check_ends()

    def _warn(self, slot: Slot) -> None:
        """Once, while something can still be done about it."""
        others = slot.others_cpu
        if self.warned or others is None or others <= BUSY_SHARE:
            return
        self.warned = True
        self.report.say(
            f"warning: other programs used {others:.0%} of this machine's CPU time in slot "
            f"{slot.index + 1}: its block counts as suspect, and a run with many such slots is "
            "unqualified"
        )

    def _planned(self) -> int:
        return planned_blocks(self.measured.plan, self.measured.slots)

    async def _prime(self, session: Session) -> None:
        """The first page of a process is slower: the cheaper arm runs once, unrecorded."""
        a, b = self.measured.plan.arms
        which = 0 if a.estimated_step_ms <= b.estimated_step_ms else 1
        self.report.phase("priming the browser", 1)
        name = f"prime-{len(self.measured.slots)}"
        await self._job(session, name, which, [open_op(), train_op(1, "prime")])

    async def _slot(self, session: Session, block: int, position: int, side: Side) -> Slot:
        plan, index = self.measured.plan, 4 * block + position
        which = 0 if side == "A" else 1
        arm = plan.arms[which]
        program = [Op(op="sentinel", count=SENTINELS)]
        if any(planned.name == "webgpu" for planned in plan.arms):
            program.append(Op(op="gpu_sentinel", count=SENTINELS))
        program.append(open_op())
        if arm.warmup_steps:
            program.append(train_op(1, "first"))
            program += train_ops(arm.warmup_steps - 1, arm.steps_per_window, "warmup")
        program += [Op(op="empty")] * (1 + TELLS)  # what telling the driver takes
        program += [train_op(arm.steps_per_window, "window")] * arm.windows
        refusal = read_refusal(self.maker.config)
        program.append((digest_op if refusal else read_op)("param", "param"))
        slots = 4 * self._planned()
        left_s = self._left_s(index, slots)
        self.report.slot(
            f"slot {index + 1}/{slots}  {side} {arm.name}, about {left_s:.0f} s left in all",
            arm.total_steps,
            SlotNow(
                index + 1, slots, block + 1, self._planned(), plan.order[block], position, side,
                left_s,
            ),
        )  # fmt: skip
        started, watched = now_utc(), _Others(session, arm.windows)
        outcome = await self._job(session, f"slot-{index}", which, program, watched.see)
        if outcome.status == "ok" and "param" in outcome.blobs:
            self.on_weights(side, self.maker.tensors_of(outcome.blobs["param"]))
        self._compare_end(which, outcome, arm.total_steps, index)
        slot = slot_record(arm, started, index, block, position, outcome, refusal)
        return slot.model_copy(update={"others_cpu": watched.share})

    async def _check_ends(self) -> None:
        """An arm whose curve is longer than the reference's gets one more, untimed job that ends
        where the reference ended, for the comparison of parameters."""
        for which, parity in enumerate(self.measured.parity):
            if not parity.applicable or parity.final_params or not self.checkpoints:
                continue
            arm = self.measured.plan.arms[which]
            steps = min(arm.total_steps, self.measured.plan.reference_steps)
            self.report.phase(f"parameters of {arm.side} {arm.name} at step {steps}", steps)
            program = [open_op(), *train_ops(steps, arm.steps_per_window, "end")]
            program.append(read_op("param", "param"))
            async with self.browser.session() as session:
                outcome = await self._job(session, f"end-{arm.side}", which, program)
            self._compare_end(which, outcome, steps, None)

    def _compare_end(self, which: int, outcome: JobOutcome, steps: int, slot: int | None) -> None:
        """Parameters at the end of a curve against the reference's, where it has them."""
        parity = self.measured.parity[which]
        if outcome.status != "ok" or not parity.applicable or steps not in self.checkpoints:
            return
        got = self.maker.tensors_of(outcome.blobs["param"])
        masks = self.undetermined[which]
        errors = {
            n: tensor_error(p, got[n], n, masks.get(n)) for n, p in self.checkpoints[steps].items()
        }
        found = parity.model_copy(
            update={"final_slot": slot, "final_step": steps, "final_params": errors}
        )
        a, b = self.measured.parity
        self.measured.parity = (found, b) if which == 0 else (a, found)

    async def _job(
        self, session: Session, name: str, which: int, program: list[Op],
        see: Callable[[OpResult], None] = lambda _: None,
    ) -> JobOutcome:  # fmt: skip
        plan = self.measured.plan
        planned, arm = plan.arms[which], self.arms[which]
        if arm.name == "null":
            arm = null_program(arm, plan, planned, name, self.measured.reference)
        states = {"initial": self.initial}
        job = self.maker.job(name, arm, states, self.tokens, program, plan.sha256)
        return await run_job(
            session,
            self.server,
            job,
            deadline_s=deadline_s(plan, planned),
            on_progress=lambda progress: self._progress(planned.side, progress, see),
        )

    def _progress(self, side: Side, progress: Progress, see: Callable[[OpResult], None]) -> None:
        op = progress.result
        see(op)
        if op.label == "window" and op.ms is not None and op.steps:
            self.report.window(side, op.ms / op.steps)
        self.report.step(progress.steps_done, progress.loss, op.losses)

    def _left_s(self, index: int, slots: int) -> float:
        """Time for the slots from `index` on: by the plan's estimate, after a block by its pace."""
        if index < 4:
            plan = self.measured.plan
            return plan.estimated_s * (slots - index) / (4 * len(plan.order))
        return (time.monotonic() - self.began) * (slots - index) / index


class _Others:
    """What others use of the machine's CPU time in a slot, from its opening to its last window.

    Asked for there and only there: before the warm-up, and when nothing is timed any more.
    """

    def __init__(self, session: Session, windows: int) -> None:
        processes = session.processes
        self._watch = None if processes is None else OthersWatch(processes)
        self._left = windows
        self.share: float | None = None

    def see(self, op: OpResult) -> None:
        """An instruction has ended."""
        if self._watch is None:
            return
        if op.op == "open":
            self._watch.begin()
        elif op.op == "train" and op.label == "window":
            self._left -= 1
            if self._left == 0:
                self.share = self._watch.share()


def deadline_s(plan: Plan, arm: ArmPlan) -> float:
    """When a slot counts as hung: five times its estimate, and at least a quarter of the budget."""
    estimate = arm.total_steps * arm.estimated_step_ms / 1000
    return max(15 + 5 * estimate, plan.budget_s / 4)


def slot_record(
    arm: ArmPlan,
    started: str,
    index: int,
    block: int,
    position: int,
    outcome: JobOutcome,
    param_reason: str | None = None,
) -> Slot:
    """Raw data of a slot, as far as it came; `param_reason` is why parameters were not read."""
    result = outcome.result
    ops = outcome.ops
    losses, norms = curve(ops)
    opened = next((op for op in ops if op.op == "open"), None)
    first = next((op for op in ops if op.op == "train"), None)
    windows = [op.ms for op in ops if op.op == "train" and op.label == "window"]
    param = outcome.blobs.get("param")
    param_sha256 = hashlib.sha256(param).hexdigest() if param is not None else None
    if param_reason:
        digests = (op.detail.get("pieces_sha256") for op in ops if op.op == "digest")
        param_sha256 = next(digests, None)
    return Slot(
        index=index,
        block=block,
        position=position,
        side=arm.side,
        arm=arm.canonical,
        status="ok" if outcome.status == "ok" else "failed",
        failure=outcome.failure,
        started_utc=started,
        compile_ms=opened.compile_ms if opened else None,
        upload_ms=opened.upload_ms if opened else None,
        first_step_ms=first.ms if first and first.steps == 1 else None,
        steps_per_window=arm.steps_per_window,
        windows_ms=[ms for ms in windows if ms is not None],
        arrivals_ms=arrivals(ops, outcome.arrivals_ms),
        tell_ms=tells(ops, outcome.arrivals_ms),
        losses=losses,
        grad_norms=norms,
        sentinel_ms=[ms for op in ops if op.op == "sentinel" for ms in op.values_ms],
        gpu_sentinel_ms=[ms for op in ops if op.op == "gpu_sentinel" for ms in op.values_ms],
        param_sha256=param_sha256,
        param_reason=param_reason,
        memory=result.memory if result else {},
        ran=result.ran if result else {},
        adapter=result.adapter if result else None,
        page=result.page.model_dump(mode="json") if result else None,
        events=[SlotEvent(kind=e.kind, message=e.message) for e in outcome.events],
        wall_ms=outcome.wall_ms,
    )


def arrivals(ops: Sequence[OpResult], arrivals_ms: Sequence[float]) -> list[float]:
    """Of the arrivals of all instructions those of the windows and of the one before them."""
    windows = [i for i, op in enumerate(ops[: len(arrivals_ms)]) if op.label == "window"]
    return [arrivals_ms[i] for i in [windows[0] - 1, *windows]] if windows else []


def tells(ops: Sequence[OpResult], arrivals_ms: Sequence[float]) -> list[float]:
    """Milliseconds from one empty instruction's arrival to the next one's."""
    empty = [at for op, at in zip(ops, arrivals_ms, strict=False) if op.op == "empty"]
    return [after - before for before, after in itertools.pairwise(empty)]


def null_program(
    arm: ArmJob, plan: Plan, planned: ArmPlan, name: str, reference: ReferenceFacts
) -> ArmJob:
    """The null arm's options for one job: every step's time and loss, drawn here from its seed."""
    asked = arm.options
    number = int(name.rsplit("-", 1)[-1]) if name.startswith("slot-") else 0
    steps = planned.total_steps
    seed = int(asked["seed"])
    stream = np.random.Generator(np.random.Philox(key=[seed, 1 + number]))
    times = float(asked["ms"]) * np.exp(float(asked["noise"]) * stream.standard_normal(steps))
    times *= (1 + float(asked["drift"])) ** number
    times *= np.where(stream.random(steps) < float(asked["spikes"]), 10.0, 1.0)
    options: dict[str, Any] = {"steps_ms": json.dumps([float(t) for t in times])}
    if asked["curve"] == "reference":
        options["losses"] = json.dumps(reference.losses)
        options["grad_norms"] = json.dumps(reference.grad_norms)
    elif asked["curve"] == "frozen":
        options["losses"] = json.dumps([math.log(plan.config.vocab)] * steps)
    else:
        options["losses"] = json.dumps(given_losses(str(asked["curve"]), steps))
    faults = {key: asked[key] for key in ("nan_at", "hang_at", "crash_at")}
    options |= {key: at for key, at in faults.items() if int(at) >= 0}
    return ArmJob(name=arm.name, module=arm.module, options=options)

"""Everything before the plan is frozen: probe, parity, export, step times, reference curve.

The first unexplained numerical failure stops here, before any long loop.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from driver.arms import (
    TILE_OF,
    ArmSpec,
    canonical,
    chosen_text,
    resolve,
    with_choices,
)
from driver.aside import aside
from driver.browser import Session
from driver.errors import ArmError, BudgetError, SlotError, Unsupported
from driver.host import Host, host_of
from driver.jobs import (
    JobMaker,
    load_op,
    open_op,
    profile_op,
    read_op,
    read_refusal,
    train_op,
    wasm_digest,
    wgsl_digests,
)
from driver.machine import machine_state
from driver.measure import JobOutcome, expect_result, failed_because, run_job
from driver.parity import Mask, gate_limits, key_bias_ratio, precision_of, tensor_error
from driver.profile import profile_of
from driver.records import (
    ArmJob,
    ArmParity,
    Job,
    Op,
    OpResult,
    Profile,
    ProfileSamples,
    Progress,
    ReferenceFacts,
    Roofline,
    Side,
    StateRef,
    TeacherPoint,
    ThreadChoice,
    TokensRef,
    VariantTrial,
)
from driver.schedule import ArmCost
from driver.server import JobServer
from driver.threads import all_cores, choose_threads, wanted
from driver.variants import choose
from driver.wording import counted
from driver.workbench import Workbench
from driver.workload import (
    TEACHER_STEPS,
    Lesson,
    Teacher,
    Workload,
    forward_facts,
    forward_reason,
    reference_step_s,
)

# Length of the timing job's windows.
ESTIMATE_MS = 300.0
# A profile's windows, its rounds of four, and the share of the budget that one arm's may take.
PROFILE_WINDOW_MS = 100.0
PROFILE_ROUNDS = 7
PROFILE_SHARE = 0.1
OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Probed:
    """What the browser and the page said before anything ran."""

    browser: dict[str, Any]
    features: dict[str, Any]
    page: dict[str, Any]
    adapter: dict[str, Any] | None
    threads: ThreadChoice | None
    cpu_roofline: Roofline | None
    host: Host


@dataclass(frozen=True)
class Prepared:
    """One side, checked and timed."""

    side: Side
    spec: ArmSpec
    arm: ArmJob
    expected: dict[str, Any]
    parity: ArmParity
    cost: ArmCost
    roofline: Roofline | None = None
    profile: Profile | None = None
    profile_reason: str | None = None
    variants: tuple[VariantTrial, ...] = ()


async def probe(session: Session, server: JobServer, specs: Sequence[ArmSpec] = ()) -> Probed:
    """Asks a page, from inside a worker, what this browser can do. Raises SlotError, and
    Unsupported where no page of this driver can work in it.

    Measures how many threads are worth having where one of the arms leaves that open, and what all
    cores reach where one of them uses an adapter, to set it beside them.
    """
    await session.reach(server.base_url)
    job = Job(job="probe", program=(Op(op="probe"),))
    outcome = await run_job(session, server, job, deadline_s=60)
    if outcome.failure or outcome.result is None:
        raise SlotError(f"the probe page failed: {failed_because(outcome)}")
    features = outcome.result.ops[0].detail
    if not features.get("secure_context"):
        raise Unsupported(
            f"{session.facts.name} {session.facts.version} does not take the driver's page, served "
            "over plain HTTP, for a secure one: it has no hashing, no shared memory and no WebGPU "
            "there. Use a browser of Chromium's family or Firefox, or open the page by hand over "
            "HTTPS: driver serve --lan"
        )
    threads, cpu_roofline, host = None, None, host_of(session.facts, features)
    features["usable_threads"] = host.cores
    bench = Workbench(session, server, 60)
    if any(spec.name == "webgpu" for spec in specs):
        cpu_roofline = await bench.roofline("roofline-cpu", all_cores(features, host.cores))
    if wanted(specs):
        threads = await choose_threads(bench, features, host.cores, host.load(machine_state()))
        features["usable_threads"] = threads.threads
    facts = session.facts.model_dump(mode="json")
    webgpu = features.get("webgpu")
    available = isinstance(webgpu, dict) and webgpu.get("available") is True
    return Probed(
        browser=facts,
        features=features,
        page=outcome.result.page.model_dump(mode="json"),
        adapter=webgpu if available else None,
        threads=threads,
        cpu_roofline=cpu_roofline,
        host=host,
    )


class Preparation:
    """Prepares both arms of one run in one browser session."""

    def __init__(
        self,
        session: Session,
        server: JobServer,
        maker: JobMaker,
        workload: Workload,
        features: dict[str, Any],
        cores: int,
        deadline_s: float,
        available_bytes: int,
        on_progress: OnProgress | None = None,
        profile: bool = False,
    ) -> None:
        self.session = session
        self.server = server
        self.maker = maker
        self.workload = workload
        self.features = features
        self.cores = cores
        self.deadline_s = deadline_s
        self.on_progress = on_progress
        self.profile = profile
        self.teacher = Teacher(workload)
        self.initial, _ = maker.state("initial", {"param": workload.flat})
        self.forward_reason = forward_reason(workload.config, available_bytes)
        self._forward: ReferenceFacts | None = None
        self.bench = Workbench(session, server, max(60.0, deadline_s))
        self._chosen: dict[str, tuple[ArmJob, tuple[VariantTrial, ...]]] = {}

    @property
    def length(self) -> int:
        """Instructions of the parity job, for a progress bar."""
        return 5 if self.forward_reason else 3 + 4 * (len(TEACHER_STEPS) + 1)

    async def reference_step_s(self) -> float | None:
        """Time of one float64 reference step, in seconds; None where it takes none."""
        if self.forward_reason:
            return None
        if self.teacher.lessons:
            return self.teacher.step_s
        return await aside(lambda go_on: reference_step_s(self.workload, go_on))  # nothing trains

    async def _teach(self) -> None:
        """The teacher's states and steps, computed once."""
        if not self.teacher.lessons:
            await aside(lambda go_on: self.teacher.compute(go_on=go_on))

    async def arm(self, side: Side, spec: ArmSpec) -> Prepared:
        """Resolves, checks and times one arm.

        Raises Unsupported for what this machine cannot honour, SlotError when the page fails.
        """
        arm, variants = await self._tuned(side, spec)
        expected = expected_echo(arm, self.workload)
        if spec.name == "null":
            ms = float(arm.options["ms"])
            reason = "the null arm does not train"
            parity = ArmParity(side=side, applicable=False, reason=reason)
            cost = ArmCost(ms, 0.0, 500.0)
            unknown = reason if self.profile else None
            return Prepared(side, spec, arm, expected, parity, cost, profile_reason=unknown)
        check = self._check_forward if self.forward_reason else self._check
        parity, first_step_ms, readback_ms, overhead_ms = await check(side, arm)
        step_ms = first_step_ms
        if first_step_ms < ESTIMATE_MS:
            step_ms, overhead_ms = await self._time(side, arm, first_step_ms)
        cost = ArmCost(step_ms, readback_ms, overhead_ms)
        roofline = await self.bench.roofline(f"roofline-{side}", arm)
        profile, unknown = await self._profile(side, arm, step_ms) if self.profile else (None, None)
        return Prepared(
            side, spec, arm, expected, parity, cost, roofline, profile, unknown, variants
        )

    async def _tuned(self, side: Side, spec: ArmSpec) -> tuple[ArmJob, tuple[VariantTrial, ...]]:
        """What runs here, tiles and variants measured; the same for the same arm twice.

        And the trials of a GPU's variants.
        """
        arm = resolve_here(spec, self.features, self.cores)
        if not spec.is_wasm and spec.name != "webgpu":
            return arm, ()
        # A source with the very same kernels is the same arm: noise must not choose between them.
        asked = {key: value for key, value in spec.options.items() if key != "source"}
        made = wasm_digest(arm) if spec.is_wasm else str(sorted(wgsl_digests(arm).items()))
        key = f"{canonical(spec.name, asked)} {made}"
        if key not in self._chosen:
            config, name = self.workload.config, f"tune-{side}"
            if spec.is_wasm:
                self._chosen[key] = await self.bench.tune(name, arm, spec, config), ()
            else:
                self._chosen[key] = await choose(self.bench, name, arm, spec, config, self.features)
        tuned, trials = self._chosen[key]
        return with_choices(arm, spec, tuned.options), trials

    async def _check(self, side: Side, arm: ArmJob) -> tuple[ArmParity, float, float, float]:
        """Parity at the teacher points and the round trip; also step, readback and overhead ms."""
        await self._teach()
        states: dict[str, StateRef] = {"initial": self.initial}
        program = [open_op()]
        for index, lesson in enumerate(self.teacher.lessons):
            label, t = lesson.label, lesson.t
            if index:  # the first starts where opening leaves the arm
                states[label], _ = self.maker.state(label, lesson.sections, t=t, at=t)
                program.append(load_op(label))
            program += [train_op(1, label), read_op("grad", f"grad.{label}")]
            program.append(read_op("param", f"param.{label}"))
        program += [Op(op="reimport"), Op(op="readback", count=20)]
        tokens, _ = self.maker.tokens(self.workload.batches(max(TEACHER_STEPS) + 1))
        outcome = await self._run(f"prepare-{side}", arm, states, tokens, program)
        ops = outcome.ops
        points = tuple(
            self._point(arm, lesson, _labelled(ops, lesson.label), outcome.blobs)
            for lesson in self.teacher.lessons
        )
        equal, reason = _round_trip(ops)
        parity = ArmParity(
            side=side,
            applicable=True,
            points=points,
            export_equal=equal,
            export_reason=reason,
        )
        trains = [op.ms for op in ops if op.op == "train" and op.ms is not None]
        readback = next(op for op in ops if op.op == "readback")
        # The first step may compile; the later ones tell.
        step_ms = min(trains[1:])
        overhead = _open_ms(ops) + 1000
        return parity, step_ms, float(median(readback.values_ms)), overhead

    async def forward_facts(self) -> ReferenceFacts:
        """The reference where it is a forward pass of the first batch and nothing else."""
        if self._forward is None:
            reason = self.forward_reason or ""
            self._forward = await aside(lambda go_on: forward_facts(self.workload, reason, go_on))
        return self._forward

    async def _check_forward(
        self, side: Side, arm: ArmJob
    ) -> tuple[ArmParity, float, float, float]:
        """As `_check` where the reference does no more than a forward pass: two steps, their first
        loss compared, and the round trip where sections are read at all."""
        reference = await self.forward_facts()
        refusal = read_refusal(self.workload.config)
        program = [open_op(), train_op(1, "t0"), train_op(1, "t1")]
        program += [] if refusal else [Op(op="reimport")]
        program.append(Op(op="readback", count=20))
        tokens, _ = self.maker.tokens(self.workload.batches(2))
        outcome = await self._run(
            f"prepare-{side}", arm, {"initial": self.initial}, tokens, program
        )
        ops = outcome.ops
        equal, reason = _round_trip(ops)
        parity = ArmParity(
            side=side,
            applicable=True,
            points_reason=self.forward_reason,
            first_loss=_labelled(ops, "t0").losses[0],
            reference_first_loss=reference.first_loss,
            export_equal=equal,
            export_reason=refusal or reason,
            final_reason=self.forward_reason,
        )
        readback = next(op for op in ops if op.op == "readback")
        return (
            parity,
            _labelled(ops, "t1").ms or 0.0,
            float(median(readback.values_ms)),
            _open_ms(ops) + 1000,
        )

    async def _time(self, side: Side, arm: ArmJob, first_ms: float) -> tuple[float, float]:
        """Step time of a longer window, and a slot's time without its steps; in ms."""
        most = self.workload.preset.max_steps_per_window
        steps = max(1, min(most, math.ceil(ESTIMATE_MS / max(first_ms, 1e-3))))
        tokens, _ = self.maker.tokens(self.workload.batches(2 * steps + 1))
        windows = [train_op(1, "first"), train_op(steps, "window"), train_op(steps, "window")]
        program = [open_op(), *windows, read_op("param", "param")]
        outcome = await self._run(f"time-{side}", arm, {"initial": self.initial}, tokens, program)
        times = [op.ms for op in outcome.ops if op.op == "train" and op.ms is not None]
        return min(times[1:]) / steps, outcome.wall_ms - sum(times)

    async def _profile(
        self, side: Side, arm: ArmJob, step_ms: float
    ) -> tuple[Profile | None, str | None]:
        """Where a step's time goes, or why that is not known; in a page of its own."""
        step_ms = max(step_ms, 1e-3)
        steps = min(
            math.ceil(PROFILE_WINDOW_MS / step_ms), self.workload.preset.max_steps_per_window
        )
        affordable = self.deadline_s * 1000 * PROFILE_SHARE / (4 * steps * step_ms)
        rounds = max(1, min(PROFILE_ROUNDS, int(affordable) - 1))  # and one to warm up
        tokens, _ = self.maker.tokens(self.workload.batches(4 * steps * (1 + rounds)))
        program = [open_op(), profile_op(steps, rounds)]
        states = {"initial": self.initial}
        outcome = await self._run(f"profile-{side}", arm, states, tokens, program)
        detail = outcome.ops[-1].detail
        if detail["profile"] is None:
            return None, str(detail["reason"])
        samples = ProfileSamples.model_validate(detail["profile"])
        return profile_of(samples, self.workload.config), None

    async def _run(
        self,
        name: str,
        arm: ArmJob,
        states: dict[str, StateRef],
        tokens: TokensRef,
        program: list[Op],
    ) -> JobOutcome:
        job = self.maker.job(name, arm, states, tokens, program)
        outcome = await run_job(
            self.session,
            self.server,
            job,
            deadline_s=self.deadline_s,
            on_progress=self.on_progress,
        )
        if outcome.failure and outcome.failure.kind == "hang":
            raise BudgetError(self._too_slow(arm, outcome))
        return expect_result(outcome, f"arm {arm.name} failed in its preparation", arm.name)

    def _too_slow(self, arm: ArmJob, outcome: JobOutcome) -> str:
        """The budget ended before the preparation did: how long the least run needs."""
        trains = [op.ms / op.steps for op in outcome.ops if op.ms and op.steps]
        # The preparation takes 4 steps, the least run 2 slots of 2 steps; the other arm as much.
        need_s = 2 * (9 * max(trains, default=self.deadline_s * 1000) / 1000 + 30)
        seen = f", {max(trains):.0f} ms/step so far" if trains else ""
        return (
            f"a budget of {self.deadline_s:.0f} s is used up by the preparation of arm {arm.name} "
            f"at preset {self.workload.preset.name} ({len(outcome.ops)} instructions done{seen}). "
            f"Use --budget {int(need_s) + 1}s or more, or a smaller preset"
        )

    def undetermined(self, arm: ArmJob) -> dict[str, Mask]:
        """Elements that a comparison of this arm's parameters with the reference leaves out at the
        end of a curve; none where the reference takes no steps."""
        return _undetermined(arm, self.teacher.lessons[0]) if self.teacher.lessons else {}

    def _point(
        self, arm: ArmJob, lesson: Lesson, trained: OpResult, blobs: dict[str, bytearray]
    ) -> TeacherPoint:
        pupil, step = lesson.pupil, lesson.step
        masks = _undetermined(arm, lesson)
        grads = self.maker.tensors_of(blobs[f"grad.{lesson.label}"])
        params = self.maker.tensors_of(blobs[f"param.{lesson.label}"])
        return TeacherPoint(
            t=lesson.t,
            state=lesson.kind,
            loss=trained.losses[0],
            reference_loss=step.loss,
            grad_norm=trained.grad_norms[0],
            reference_grad_norm=step.grad_norm,
            grads={n: tensor_error(g, grads[n], n) for n, g in step.grads.items()},
            params={
                n: tensor_error(p, params[n], n, masks.get(n)) for n, p in pupil.params.items()
            },
            key_bias_ratio=key_bias_ratio(grads),
        )


def _undetermined(arm: ArmJob, lesson: Lesson) -> dict[str, Mask]:
    """What the arm's precision leaves open in a first step."""
    limits = gate_limits(precision_of(arm.options), lesson.pupil.config.n_layer)
    return lesson.undetermined(limits["parity.grads"], limits["parity.params"])


def resolve_here(spec: ArmSpec, features: dict[str, Any], cores: int) -> ArmJob:
    """As `resolve`, and what another machine chose must fit this one. Raises Unsupported."""
    if spec.pinned is None:
        return resolve(spec, features)
    where = f"pinned from receipt {spec.pinned.receipt_digest[:12]}; what --arms gives wins over it"
    threads = spec.options.get("threads", 1)
    if "threads" in spec.pinned.options and int(threads) > cores:
        raise Unsupported(
            f"arm {spec.name}: threads={threads} is more than the {counted(cores, 'core')} "
            f"usable here ({where})"
        )
    try:
        return resolve(spec, features)
    except (Unsupported, ArmError) as error:
        raise type(error)(f"{error} ({', '.join(spec.pinned.options)}: {where})") from error


def expected_echo(arm: ArmJob, workload: Workload) -> dict[str, Any]:
    """What the arm must echo from inside its worker: recipe, data, and what it was told to run."""
    if arm.name == "null":
        return {"arm": "null", **workload.state_echo}
    echo: dict[str, Any] = {
        "arm": arm.name,
        "hyper": workload.config.model_dump(),
        **workload.state_echo,
    }
    if arm.name in ("wasm", "wasm64"):
        echo["module_sha256"] = wasm_digest(arm)
        echo["address_type"] = "i64" if arm.name == "wasm64" else "i32"
        echo |= {key: arm.options[key] for key in ("simd", "threads", "shared")}
        echo["kernels"] = {key: arm.options[key] for key in TILE_OF}
        echo["tiles"] = {key: arm.options[key] for key in TILE_OF.values()}
    if arm.name == "webgpu":
        echo["wgsl_sha256"] = wgsl_digests(arm)
        echo["products"] = {key: chosen_text(arm.options, key) for key in TILE_OF}
        # An older revision of this project (`source=`) knows no halves and says nothing of them.
        if arm.options["f16"] != "off" or not arm.options.get("source"):
            echo["f16"] = arm.options["f16"]
    return echo


def _round_trip(ops: Sequence[OpResult]) -> tuple[bool | None, str | None]:
    """Whether the export came back with the same bits, and why not."""
    trip = next((op for op in ops if op.op == "reimport"), None)
    if trip is None:
        return None, "not tried"
    equal = bool(trip.detail.get("equal"))
    return equal, None if equal else f"floats that differ: {trip.detail}"


def _labelled(ops: Sequence[OpResult], label: str) -> OpResult:
    return next(op for op in ops if op.op == "train" and op.label == label)


def _open_ms(ops: Sequence[OpResult]) -> float:
    opened = next(op for op in ops if op.op == "open")
    return (opened.compile_ms or 0) + (opened.upload_ms or 0)

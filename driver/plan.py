"""Preparation → the plan: what fits the budget, frozen and hashed before the first slot."""

from dataclasses import dataclass
from datetime import UTC, datetime

from driver import __version__, adapter, layout, machine, store
from driver.arms import canonical, told_apart
from driver.calibration import calibration_key
from driver.corpus import Corpus, unigram_entropy
from driver.errors import BudgetError
from driver.jobs import JobMaker
from driver.parity import LEAST_BLOCKS, LEAST_CURVE_TO_LEARN, gate_plans, judge
from driver.power import MOST_BLOCKS, PILOT_BLOCKS, STEIN_POWER
from driver.prepare import Prepared, Probed
from driver.receipt import frozen
from driver.records import (
    ArmParity,
    ArmPlan,
    AutoBlocks,
    CorpusFacts,
    Environment,
    Evaluator,
    OthersCpu,
    Plan,
    ReferenceFacts,
    Slot,
    Subject,
    SuspectRule,
)
from driver.replicas import REPLICAS
from driver.schedule import (
    BUDGET_RULE,
    Fit,
    Wishes,
    block_orders,
    fit,
    least,
    more_blocks,
    staged_orders,
)
from driver.stats import compare
from driver.wording import counted
from driver.workload import Workload

BROWSER_MS = 3000.0  # a fresh browser process
MARGIN = 0.02
# The float64 reference may take this share of the time left; curves are compared as far as it came.
REFERENCE_SHARE = 0.25
# Of that, for the float32 replicas: at least one step of each, if it takes no more than half.
BAND_SHARE = 0.05
STOP_RULE = "all planned blocks run; the first failed slot ends the run; nothing is retried"
AUTO_RULE = (
    "Stein's two stages: after the pilot blocks, and from the variance of their log ratios alone, "
    "the number of blocks in all that finds the difference with the power, even, up to the most; "
    "the interval keeps the pilot's variance and degrees of freedom, unless the later blocks' "
    "variance is larger by an F test at 5%: then the wider of that and all blocks'. Nothing else "
    "is looked at."
)
SUSPECTS = SuspectRule(
    sentinel_factor=1.2,
    others_cpu=machine.BUSY_SHARE,
    most=0.5,
    rule="A block is suspect when a slot's median sentinel is not within this factor of the "
    "median over all slots, when others used more of the machine's CPU time in a slot than this "
    "share, when a page was hidden, or when page or browser reported an event other than a "
    "warning. The estimate is of all blocks; that without suspect ones stands beside it. Where "
    "more than half of the blocks are suspect, the machine was not quiet.",
)
# As far as the fixed limits of curves hold in a small model: rounding grows with the steps, and
# after some hundred of them only replicas tell how far. Further the reference goes only with them.
FIXED_LIMITS_STEPS = 256
DECISIONS = ("faster", "slower", "equivalent", "unsure", "failed")


@dataclass
class Measured:
    """Everything for a receipt, from the moment the plan is frozen; slots are added as they end."""

    plan: Plan
    subject: Subject
    environment: Environment
    reference: ReferenceFacts
    parity: tuple[ArmParity, ArmParity]
    slots: list[Slot]

    def worth_running(self) -> bool:
        """Nothing has failed that no slot could mend: no parity gate of the prepare phase, nor an
        adapter that has to be hardware."""
        comparison = compare(self.plan, self.reference, [])
        gates = judge(self.plan, self.environment, self.parity, [], comparison, self.reference)
        return not any(
            gate.status == "fail"
            and (gate.name.startswith("parity.") or gate.name == "adapter")
            and gate.gate_class == "blocking"
            for gate in gates
        )


@dataclass(frozen=True)
class Purpose:
    """What a run is for and what a person chose beside preset and arms."""

    blocks: int
    budget_s: float
    require_hardware: bool = False
    question: str | None = None
    tracking_url: str | None = None
    profile: bool = False
    auto: bool = False


def fit_budget(
    purpose: Purpose,
    workload: Workload,
    sides: tuple[Prepared, Prepared],
    reference_step_s: float | None,
    used_s: float,
) -> tuple[Fit, int, int]:
    """What fits the budget, and the numbers of steps of the reference and of its float32 replicas:
    none without a step's time, and no replicas where no arm trains.

    Raises BudgetError, with the time that the least run needs, when nothing does.
    """
    preset = workload.preset
    wishes = Wishes(
        blocks=PILOT_BLOCKS if purpose.auto else purpose.blocks,
        windows=preset.windows,
        warmup_steps=preset.warmup_steps,
        warmup_ms=preset.warmup_ms,
        window_ms=preset.window_ms,
        max_steps_per_window=preset.max_steps_per_window,
        least_steps=LEAST_CURVE_TO_LEARN,
    )
    costs = (sides[0].cost, sides[1].cost)
    share = 1.0 if reference_step_s is None else 1 - REFERENCE_SHARE
    left_ms = (purpose.budget_s - used_s) * 1000
    shape = fit(wishes, costs, BROWSER_MS, left_ms * share)
    if shape is None:
        need_s = used_s + least(wishes, costs, BROWSER_MS).estimated_ms / 1000 / share
        steps = ", ".join(f"{side.spec.name} {side.cost.step_ms:.0f} ms/step" for side in sides)
        raise BudgetError(
            f"a budget of {purpose.budget_s:.0f} s is too short for preset {preset.name} here "
            f"({steps}): even one block of single steps takes about {need_s:.0f} s in all. "
            f"Use --budget {int(need_s * 1.2) + 1}s or more, or a smaller preset"
        )
    if purpose.auto:
        shape = more_blocks(shape, PILOT_BLOCKS, MOST_BLOCKS, left_ms * share)
    if reference_step_s is None:
        return shape, 0, 0
    left_s, step_s = (left_ms - shape.estimated_ms) / 1000, max(reference_step_s, 1e-6)
    replicas_s = REPLICAS * step_s
    band_steps = 0
    if any(side.parity.applicable for side in sides):
        band_steps = int(BAND_SHARE * left_ms / 1000 / replicas_s) or int(replicas_s <= left_s / 2)
        if shape.longest > FIXED_LIMITS_STEPS:
            together = int(left_s / (step_s + replicas_s))
            band_steps = max(band_steps, min(together, shape.longest))
        explained = max(band_steps, FIXED_LIMITS_STEPS)
    else:
        explained = shape.longest
    affordable = int((left_s - band_steps * replicas_s) / step_s)
    reference_steps = max(1, min(shape.longest, affordable, explained))
    return shape, reference_steps, min(band_steps, reference_steps)


def check_spent(budget_s: float, used_s: float, arm: str) -> None:
    """Raises BudgetError where preparing the first arm has used up all there is."""
    if used_s > budget_s:
        raise BudgetError(
            f"a budget of {budget_s:.0f} s is used up before the run: the machine, the browser and "
            f"arm {arm} took {used_s:.0f} s, and the other arm is still to be prepared. "
            f"Use --budget {int(4 * used_s) + 1}s or more, or a smaller preset"
        )


def freeze(
    purpose: Purpose,
    workload: Workload,
    maker: JobMaker,
    sides: tuple[Prepared, Prepared],
    shape: Fit,
    reference: ReferenceFacts,
    probed: Probed,
    state: machine.MachineState,
    others: OthersCpu,
) -> Measured:
    """The plan, frozen and hashed, with everything that is known before the first slot."""
    _, tokens_sha256 = maker.tokens(workload.batches(shape.longest))
    a, b = (
        ArmPlan(
            side=side.side,
            name=side.spec.name,
            canonical=canonical(side.arm.name, side.arm.options),
            options=side.arm.options,
            expected=side.expected | {"tokens_sha256": tokens_sha256},
            warmup_steps=choice.warmup_steps,
            windows=choice.windows,
            steps_per_window=choice.steps_per_window,
            estimated_step_ms=side.cost.step_ms,
            readback_ms=side.cost.readback_ms,
            roofline=side.roofline,
            profile=side.profile,
            profile_reason=side.profile_reason,
            pinned=side.spec.pinned,
            variants=side.variants,
        )
        for side, choice in zip(sides, shape.choices, strict=True)
    )
    plan = Plan(
        question=purpose.question or _question(workload, a, b),
        tracking_url=purpose.tracking_url,
        frozen_utc=now_utc(),
        preset=workload.preset.model_dump(mode="json"),
        config=workload.config,
        seed=workload.seed,
        corpus=_corpus_facts(workload.corpus),
        state_sha256=workload.state_sha256,
        tokens_sha256=tokens_sha256,
        arms=(a, b),
        order=staged_orders(shape.pilot, shape.blocks, workload.seed)
        if shape.pilot
        else block_orders(shape.blocks, workload.seed),
        auto=AutoBlocks(
            pilot=shape.pilot,
            most=shape.blocks,
            difference=MARGIN,
            power=STEIN_POWER,
            rule=AUTO_RULE,
        )
        if shape.pilot
        else None,
        suspects=SUSPECTS,
        adapter_rule=adapter.RULE,
        gates=gate_plans(purpose.require_hardware, reference, (a, b), workload.config.n_layer),
        reference_steps=len(reference.losses),
        budget_s=purpose.budget_s,
        estimated_s=shape.estimated_ms / 1000,
        reductions=shape.reductions,
        budget_rule=BUDGET_RULE,
        stop_rule=STOP_RULE,
        allowed_decisions=DECISIONS,
        margin=MARGIN,
        require_hardware=purpose.require_hardware,
        evaluator=evaluator(),
    )
    environment = _environment(plan, probed, state, others)
    known = (store.load_calibration(calibration_key(plan, environment, i)) for i in (0, 1))
    a, b = (
        arm.model_copy(update={"calibration": calibration})
        for arm, calibration in zip(plan.arms, known, strict=True)
    )
    return Measured(
        plan=frozen(plan.model_copy(update={"arms": (a, b)})),
        subject=_subject(maker),
        environment=environment,
        reference=reference,
        parity=(sides[0].parity, sides[1].parity),
        slots=[],
    )


def evaluator() -> Evaluator:
    """This installation's evaluator."""
    return Evaluator(version=__version__, sha256=layout.evaluator_sha256())


def now_utc() -> str:
    """ISO 8601 with microseconds, so that times sort as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def announce(plan: Plan, used_s: float) -> str:
    """The plan in a few lines, for the person who waits."""
    most = f"{plan.auto.pilot} to " if plan.auto else ""
    lines = [
        f"plan {plan.sha256[:12]} frozen after {used_s:.0f} s: {most}"
        f"{counted(len(plan.order), 'block')} of four slots, "
        f"{'at most' if plan.auto else 'about'} {plan.estimated_s:.0f} s"
    ]
    if plan.reductions:
        lines.append(f"  to keep the budget: {', '.join(plan.reductions)}")
    if len(plan.order) < LEAST_BLOCKS or len(plan.order) % 2:
        lines.append(
            "  there will be no interval, and so no word on which is faster: that takes an even "
            f"number of at least {LEAST_BLOCKS} blocks"
        )
    lines += [
        f"  {arm.side}  {arm.canonical}: {arm.warmup_steps} warm-up steps, {arm.windows} windows "
        f"of {arm.steps_per_window}, about {arm.estimated_step_ms:.4g} ms/step"
        for arm in plan.arms
    ]
    return "\n".join(lines)


def _question(workload: Workload, a: ArmPlan, b: ArmPlan) -> str:
    # Here every choice is made: `wasm,wasm:threads=1` asks about two and one thread, say.
    one, other = (
        f"{arm.name} {own}".rstrip() for arm, own in zip((a, b), told_apart(a, b), strict=True)
    )
    return (
        f"How does the step time of {one} (A) compare with {other} (B) at preset "
        f"{workload.preset.name} on this machine?"
    )


def _corpus_facts(corpus: Corpus) -> CorpusFacts:
    return CorpusFacts(
        name=corpus.name,
        sha256=corpus.sha256,
        size_bytes=len(corpus.data),
        entropy_nats_per_byte=corpus.entropy_nats_per_byte,
        unigram_entropy_nats=unigram_entropy(corpus),
    )


def _subject(maker: JobMaker) -> Subject:
    revision, dirty = layout.revision()
    return Subject(
        driver_version=__version__, revision=revision, dirty=dirty, artifacts=maker.artifacts
    )


def _environment(
    plan: Plan,
    probed: Probed,
    state: machine.MachineState,
    others: OthersCpu,
) -> Environment:
    environment = Environment(
        machine=probed.host.machine,
        load_before=probed.host.state(state),
        load_after=None,
        others_cpu=probed.host.others(others),
        browser=probed.browser,
        page=probed.page,
        adapter=probed.adapter,
        cpu_roofline=probed.cpu_roofline,
        adapter_verdict="not-applicable",
        adapter_reasons=("no arm uses an adapter",),
        features=probed.features,
        threads=probed.threads,
    )
    if all(arm.name != "webgpu" for arm in plan.arms):
        return environment
    found = adapter.judge_run(plan, environment)
    judged = {"adapter_verdict": found.kind, "adapter_reasons": found.reasons}
    return environment.model_copy(update=judged)

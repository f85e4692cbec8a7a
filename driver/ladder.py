"""`driver ladder`: one dimension at a time, each rung against the one before it.

Two gains stand side by side and are never mixed: that of the step's products run apart from it, and
that of the whole step, from a run of its own for every pair of neighbouring rungs.
"""

import asyncio
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver import machine
from driver.apart import gain, no_gain, page_count, run_products, tiles_of
from driver.arms import TILE_OF, ArmSpec, Value, canonical, resolve, with_choices
from driver.axes import Step, axis_of, steps
from driver.browser import BrowserChoice, BrowserSession, ChosenBrowser
from driver.corpus import Corpus
from driver.errors import (
    ArmError,
    BudgetError,
    DriverError,
    Interrupted,
    SlotError,
    Unsupported,
    UsageError,
)
from driver.host import Host
from driver.jobs import ADDRESS
from driver.plan import Purpose, now_utc
from driver.precision import Evidence, Frozen, precision_report
from driver.prepare import probe
from driver.presets import Preset, check_memory
from driver.progress import Reporter
from driver.receipt import parse
from driver.records import (
    Apart,
    ArmJob,
    LadderPair,
    LadderReport,
    ModelConfig,
    Receipt,
    Rung,
    RungProduct,
    Side,
)
from driver.run import Request as RunRequest
from driver.run import exit_code, fresh, keep
from driver.run import run as run_pair
from driver.server import JobServer
from driver.tensors import State
from driver.variants import choose
from driver.wording import counted
from driver.workbench import Workbench

BUDGET_RULE = (
    "Choosing tiles and running the products apart comes first; the products get one pass instead "
    "of two where two would take more than a tenth of the budget. Of the time left each pair may "
    "use an equal part: what one leaves goes to those after it. Within its part a pair is cut as "
    "every run is, by the rule in its receipt."
)
APART_SHARE = 0.1
PRECISION = "precision"  # the axis whose ladder carries a report of its own
MORE_BUDGET = "--budget is for all pairs of the ladder together"
BENCH_S = 600.0  # a page of products that takes longer hangs


@dataclass(frozen=True)
class Request:
    """What is to be climbed, everything a person chose. Without a budget: the preset's a pair."""

    preset: Preset
    arm: ArmSpec
    axis: str
    corpus: Corpus
    seed: int
    blocks: int
    budget_s: float | None
    out: Path


@dataclass(frozen=True)
class Climb:
    """The rungs, those that run here with their arms, and what is known before the first pair."""

    rungs: tuple[Rung, ...]
    arms: dict[str, ArmJob]
    apart_reason: str | None
    browser: dict[str, Any]
    host: Host
    budget_s: float

    @property
    def usable(self) -> list[Rung]:
        """Rungs that run here."""
        return [rung for rung in self.rungs if rung.status == "ok"]

    def gain(self, before: Rung, after: Rung) -> Apart:
        """What the products gained apart, or why that is not known."""
        if self.apart_reason:
            return no_gain(self.apart_reason)
        arms = self.arms
        return gain((arms[before.label], before.products), (arms[after.label], after.products))


async def run(
    request: Request, choice: BrowserChoice, report: Reporter
) -> tuple[LadderReport, Path]:
    """Climbs the ladder, writes its file beside the receipts, and returns it with its path.

    A pair that fails is kept with its reason, and the next one runs. When cancelled between the
    first pair's start and the last one's end, what was measured is returned, marked interrupted.
    Raises Unsupported where fewer than two rungs run here, SlotError where tuning fails.
    """
    began = time.monotonic()
    state = machine.machine_state()
    if not choice.endpoint:
        check_memory(request.preset, state.memory_available_bytes)
    climb = await prepare(request, choice, report)
    frozen = None
    if request.axis == PRECISION:
        frozen = Frozen.of(climb.rungs, request.preset.model, now_utc())
        report.say(f"limits {frozen.sha256[:12]} of every precision frozen before the first run")
    neighbours = list(itertools.pairwise(climb.usable))
    evidence: list[Evidence] = []
    pairs: list[LadderPair] = []
    interrupted = False
    for index, (before, after) in enumerate(neighbours):
        used_s, to_go = time.monotonic() - began, len(neighbours) - index
        left_s = climb.budget_s - used_s
        blank = LadderPair(
            before=before.label,
            after=after.label,
            budget_s=max(0.0, left_s / to_go),
            exit_code=0,
            apart=climb.gain(before, after),
        )
        name = f"pair {index + 1}/{len(neighbours)}: {before.label} → {after.label}"
        if left_s <= 0:
            why = used_up(climb.budget_s, used_s, to_go, request.preset)
            report.say(f"{name}: {why}")
            pairs.append(_without(blank, why, UsageError.exit_code))
            continue
        report.part(f"{name}, at most {blank.budget_s:.0f} s")
        arms = (climb.arms[before.label], climb.arms[after.label])
        if frozen and pairs and pairs[-1].exit_code in (1, SlotError.exit_code):
            why = f"not run: the pair before it, {pairs[-1].before} → {before.label}, failed"
            pairs.append(_without(blank, why, pairs[-1].exit_code))
            continue
        try:
            await climb_pair(request, blank, arms, choice, report, pairs, evidence)
        except asyncio.CancelledError:
            interrupted = True
            break
    labels = [rung.label for rung in climb.usable]
    found = LadderReport(
        axis=request.axis,
        meaning=axis_of(request.arm, request.axis).meaning,
        arm=request.arm.canonical,
        preset=request.preset.model_dump(mode="json"),
        seed=request.seed,
        blocks=request.blocks,
        budget_s=climb.budget_s,
        budget_rule=BUDGET_RULE,
        machine=climb.host.machine,
        load_before=climb.host.state(state),
        load_after=climb.host.state(machine.machine_state()),
        browser=climb.browser,
        interrupted=interrupted,
        rungs=climb.rungs,
        pairs=tuple(pairs),
        fastest=fastest(labels, [pair.ratio if pair.claims else None for pair in pairs]),
        fastest_apart=fastest(labels, [climb.gain(*two).gain for two in neighbours]),
        precision=frozen
        and precision_report(frozen, climb.rungs, pairs, evidence, request.corpus.data),
    )
    stem = f"{request.preset.name}-{request.arm.name}-{request.axis}"
    path = fresh(request.out, stem, "ladder")
    return found, keep(path, json.loads(found.model_dump_json()), report)


# --------------------------------------------------------------------------- before the pairs


async def prepare(request: Request, choice: BrowserChoice, report: Reporter) -> Climb:
    """The rungs, every choice made: what runs here, one choice of tiles, the products apart."""
    config = request.preset.model
    async with JobServer(site=choice.site) as server, BrowserSession(choice) as session:
        report.phase("asking the browser what it can do", 1)
        # The threads' own ladder goes up to all of them, whatever number measures best.
        probed = await probe(session, server, () if request.axis == "threads" else (request.arm,))
        here = resolve(request.arm, probed.features)
        bench = Workbench(session, server, BENCH_S)
        offered = [
            (step, _resolved(step.spec, request.preset, probed.features))
            for step in steps(request.axis, request.arm, here)
        ]
        usable = [(step, arm) for step, arm in offered if isinstance(arm, ArmJob)]
        if len(usable) < 2:
            raise Unsupported(_too_few(request.axis, offered))
        report.phase("choosing tiles" if request.arm.is_wasm else "choosing variants", 1)
        specs = [step.spec for step, _ in usable]
        arms = [arm for _, arm in usable]
        if request.arm.name == "webgpu":
            pinned = await pin_variants(bench, specs, arms, config, probed.features)
        else:
            pinned = await pin_tiles(bench, specs, arms, config)
        budget_s = request.budget_s or request.preset.budget_s * (len(usable) - 1)
        products, apart_reason = await _apart(bench, pinned, config, budget_s, report)
    made = iter(zip(pinned, products, strict=True))
    return Climb(
        rungs=tuple(
            _missing(step, arm) if isinstance(arm, str) else _rung(step, *next(made))
            for step, arm in offered
        ),
        arms={step.label: arm for (step, _), arm in zip(usable, pinned, strict=True)},
        apart_reason=apart_reason,
        browser=probed.browser,
        host=probed.host,
        budget_s=budget_s,
    )


def _rung(step: Step, arm: ArmJob, products: tuple[RungProduct, ...]) -> Rung:
    return Rung(
        label=step.label,
        arm=canonical(arm.name, arm.options),
        status="ok",
        options=arm.options,
        products=products,
    )


def _missing(step: Step, reason: str) -> Rung:
    return Rung(
        label=step.label,
        arm=step.spec.canonical,
        status="unsupported",
        reason=reason,
        options=step.spec.options,
    )


def _resolved(spec: ArmSpec, preset: Preset, features: dict[str, Any]) -> ArmJob | str:
    """What runs here, or why it does not."""
    if preset.memory64 and spec.name == "wasm":
        return f"arm wasm: preset {preset.name} needs Memory64"
    try:
        return resolve(spec, features)
    except (ArmError, Unsupported) as error:
        return str(error)


def _too_few(axis: str, offered: Sequence[tuple[Step, ArmJob | str]]) -> str:
    runs = [step.label for step, arm in offered if isinstance(arm, ArmJob)]
    reasons = [f"{step.label}: {why}" for step, why in offered if isinstance(why, str)]
    return "; ".join(
        [
            f"axis {axis} has {counted(len(runs), 'rung')} here ({', '.join(runs)}), a pair needs "
            "two",
            *reasons,
        ]
    )


async def pin_variants(
    bench: Workbench,
    specs: Sequence[ArmSpec],
    arms: Sequence[ArmJob],
    config: ModelConfig,
    features: dict[str, Any],
) -> list[ArmJob]:
    """The webgpu arms with one choice of what they leave open, made on the last rung."""
    tuned, _ = await choose(bench, "tune", arms[-1], specs[-1], config, features)
    pairs = zip(specs, arms, strict=True)
    return [with_choices(arm, spec, tuned.options) for spec, arm in pairs]


async def pin_tiles(
    bench: Workbench, specs: Sequence[ArmSpec], arms: Sequence[ArmJob], config: ModelConfig
) -> list[ArmJob]:
    """The arms with one choice of tiles for all modules that have the same ones.

    Chosen by time where the arm left them open, on the last rung: else tuning would change two
    things at once.
    """
    chosen: dict[tuple[str, ...], dict[str, Value]] = {}
    for spec, arm in reversed(list(zip(specs, arms, strict=True))):
        if spec.is_wasm and tiles_of(arm) not in chosen:
            tuned = await bench.tune(f"tune-{len(chosen)}", arm, spec, config)
            chosen[tiles_of(arm)] = {option: tuned.options[option] for option in TILE_OF.values()}
    return [
        with_choices(arm, spec, chosen[tiles_of(arm)] if spec.is_wasm else {})
        for spec, arm in zip(specs, arms, strict=True)
    ]


async def _apart(
    bench: Workbench,
    arms: Sequence[ArmJob],
    config: ModelConfig,
    budget_s: float,
    report: Reporter,
) -> tuple[Sequence[tuple[RungProduct, ...]], str | None]:
    """Every rung's products apart from the step, or none and why."""
    nothing: list[tuple[RungProduct, ...]] = [() for _ in arms]
    if not all(arm.name in (*ADDRESS, "webgpu") for arm in arms):
        return nothing, f"arm {arms[0].name} has no kernels to run apart"
    report.phase("products apart", page_count(arms))
    try:
        share_s = APART_SHARE * budget_s
        return await run_products(bench, arms, config, report.step, share_s), None
    except (SlotError, Unsupported) as error:
        report.say(f"products apart: {error}")
        return nothing, str(error)


# --------------------------------------------------------------------------- pairs


def used_up(budget_s: float, used_s: float, to_go: int, preset: Preset) -> str:
    """Why nothing is left for the `to_go` pairs to come, and a budget that would do for them."""
    need_s = (used_s + to_go * preset.budget_s) / (1 - APART_SHARE)  # it grows with the budget
    return (
        f"the budget of {budget_s:.0f} s was used up before this pair ({used_s:.0f} s so far). Use "
        f"--budget {math.ceil(need_s)}s, which leaves every pair the {preset.budget} of preset "
        f"{preset.name}; with less, pairs are cut ({MORE_BUDGET})"
    )


async def climb_pair(
    request: Request,
    blank: LadderPair,
    arms: tuple[ArmJob, ArmJob],
    choice: BrowserChoice,
    report: Reporter,
    pairs: list[LadderPair],
    evidence: list[Evidence],
) -> None:
    """One run, whatever comes of it added to `pairs`, also when it is cancelled; what it measured
    to `evidence`."""
    specs = [ArmSpec(name=arm.name, options=arm.options) for arm in arms]
    question = (
        f"How much faster does a step get when {request.axis} goes from {blank.before} (A) to "
        f"{blank.after} (B) at preset {request.preset.name} on this machine?"
    )
    wanted = RunRequest(
        preset=request.preset,
        arms=(specs[0], specs[1]),
        corpus=request.corpus,
        seed=request.seed,
        purpose=Purpose(request.blocks, blank.budget_s, question=question),
        out=request.out,
    )
    partial: list[LadderPair] = []
    weights: dict[Side, State] = {}

    def on_partial(data: dict[str, Any], path: Path) -> None:
        partial.append(measured(blank, parse(data), path, Interrupted.exit_code))

    try:
        data, path = await run_pair(
            wanted, ChosenBrowser(choice), report, on_partial, weights.__setitem__
        )
        receipt = parse(data)
        evidence.append(Evidence(blank.before, blank.after, receipt, weights))
        pairs.append(measured(blank, receipt, path, exit_code(receipt)))
    except asyncio.CancelledError:
        pairs += partial or [_without(blank, "interrupted", Interrupted.exit_code)]
        raise
    except DriverError as error:
        why = f"{error} ({MORE_BUDGET})" if isinstance(error, BudgetError) else str(error)
        report.error(f"driver: {blank.before} → {blank.after}: {why}")
        pairs.append(_without(blank, why, error.exit_code))


def measured(blank: LadderPair, receipt: Receipt, path: Path, code: int) -> LadderPair:
    """The pair with what its receipt says."""
    estimate, (a, b) = receipt.comparison.estimate, receipt.comparison.arms
    return blank.model_copy(
        update={
            "exit_code": code,
            "before_step_ms": a.median_step_ms,
            "after_step_ms": b.median_step_ms,
            "ratio": estimate.ratio,
            "low": estimate.low,
            "high": estimate.high,
            "confidence": estimate.confidence,
            "word": estimate.word,
            "ratio_reason": estimate.reason,
            "blocks": estimate.blocks,
            "verdict": receipt.verdict.status,
            "reasons": receipt.verdict.reasons,
            "receipt": path.name,
            "receipt_digest": receipt.digest,
        }
    )


def _without(blank: LadderPair, reason: str, code: int) -> LadderPair:
    """The pair without a receipt."""
    return blank.model_copy(update={"exit_code": code, "reasons": (reason,)})


def fastest(labels: Sequence[str], gains: Sequence[float | None]) -> str | None:
    """The rung at which the product of the gains so far is largest; None where one is unknown."""
    if len(gains) != len(labels) - 1:
        return None
    at, best, found = 0.0, 0.0, labels[0]
    for label, gain_here in zip(labels[1:], gains, strict=True):
        if gain_here is None or not gain_here > 0:
            return None
        at += math.log(gain_here)
        if at > best:
            best, found = at, label
    return found

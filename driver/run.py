"""The pipeline: probe → prepare → freeze → blocks → receipt."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver import machine, store
from driver.arms import ArmSpec
from driver.aside import GoOn, aside
from driver.browser import Browser
from driver.corpus import Corpus
from driver.errors import UsageError
from driver.host import FAR, Host, state_record
from driver.jobs import JobMaker
from driver.plan import Measured, Purpose, announce, check_spent, fit_budget, freeze, now_utc
from driver.prepare import Preparation, probe, resolve_here
from driver.presets import Preset, check_memory
from driver.progress import Reporter
from driver.receipt import assemble, parse
from driver.records import OthersCpu, Receipt
from driver.reference import Tensors
from driver.replicas import REPLICAS
from driver.report import html
from driver.slots import Blocks, OnWeights
from driver.workload import Workload, reference_curve, with_band


@dataclass(frozen=True)
class Request:
    """One preset to run, everything a person chose."""

    preset: Preset
    arms: tuple[ArmSpec, ArmSpec]
    corpus: Corpus
    seed: int
    purpose: Purpose
    out: Path


OnReceipt = Callable[[dict[str, Any], Path], None]


async def run(
    request: Request,
    browser: Browser,
    report: Reporter,
    on_partial: OnReceipt = lambda *_: None,
    on_weights: OnWeights = lambda *_: None,
) -> tuple[dict[str, Any], Path]:
    """Measures one preset, writes the receipt, and returns it with its path.

    Raises Unsupported, SlotError or UsageError before the plan is frozen; afterwards whatever
    happens is in the receipt. The weights that a slot exports go to `on_weights`. When cancelled it
    writes a partial receipt, hands it to `on_partial` and goes on being cancelled.
    """
    began = time.monotonic()
    report.phase("looking at the machine", 1)
    machine.machine_facts()  # takes a second, once: not beside the browser
    others = await asyncio.to_thread(machine.others_cpu)  # before anything of ours runs
    state = machine.machine_state()
    if browser.here:
        check_memory(request.preset, state.memory_available_bytes)
    report.phase("drawing the weights", 1)
    workload = Workload.draw(request.preset, request.corpus, request.seed)

    async with browser.server() as server:
        maker = JobMaker(server, workload.config)
        async with browser.session() as session:
            report.phase("asking the browser what it can do", 1)
            probed = await probe(session, server, request.arms)
            for spec in request.arms:  # what is lacking for either is said before one is measured
                resolve_here(spec, probed.features, probed.host.cores)
            for remark in _remarks(probed.host, state, others):
                report.say(remark)
            preparation = Preparation(
                session, server, maker, workload, probed.features, probed.host.cores,
                request.purpose.budget_s, state.memory_available_bytes,
                lambda progress: report.step(progress.op, progress.loss),
                request.purpose.profile,
            )  # fmt: skip
            a_spec, b_spec = request.arms
            report.phase(f"checking and timing A {a_spec.name}", preparation.length)
            a = await preparation.arm("A", a_spec)
            check_spent(request.purpose.budget_s, time.monotonic() - began, a_spec.name)
            report.phase(f"checking and timing B {b_spec.name}", preparation.length)
            b = await preparation.arm("B", b_spec)
        shape, reference_steps, band_steps = fit_budget(
            request.purpose,
            workload,
            (a, b),
            await preparation.reference_step_s(),
            time.monotonic() - began,
        )
        checkpoints: dict[int, Tensors] = {}
        if preparation.forward_reason:
            reference = await preparation.forward_facts()
        else:
            report.phase("reference (NumPy float64)", reference_steps)
            # Where replicas end before the curves do, that end is all they tell of parameters.
            ends = {min(c.total_steps, reference_steps) for c in shape.choices} | {band_steps}
            ends.discard(0)
            reference, checkpoints = await aside(
                lambda go_on: reference_curve(
                    workload, reference_steps, frozenset(ends), _stepping(report, go_on)
                )
            )
            if band_steps:
                report.phase("float32 replicas of the reference", REPLICAS * band_steps)
                curve, first_step = reference, preparation.teacher.lessons[0]
                reference = await aside(
                    lambda go_on: with_band(
                        workload,
                        curve,
                        checkpoints,
                        first_step.undetermined(),
                        band_steps,
                        _stepping(report, go_on),
                    )
                )
        measured = freeze(
            request.purpose, workload, maker, (a, b), shape, reference, probed, state, others
        )
        report.say(announce(measured.plan, time.monotonic() - began))
        if measured.worth_running():
            tokens, _ = maker.tokens(workload.batches(shape.longest))
            blocks = Blocks(
                browser, report, server, maker, preparation.initial, tokens,
                (a.arm, b.arm), checkpoints,
                (preparation.undetermined(a.arm), preparation.undetermined(b.arm)), measured,
                on_weights,
            )  # fmt: skip
            try:
                with machine.awake():
                    await blocks.run()
            except asyncio.CancelledError:
                receipt, path = _write(request, measured, report)
                report.error(f"interrupted; what was measured is in {path}")
                on_partial(receipt, path)
                raise
    return _write(request, measured, report)


def _remarks(host: Host, state: machine.MachineState, others: OthersCpu) -> list[str]:
    """What a person should know of the machine before anything is measured."""
    if host.remote:
        return [f"{FAR}: times are measured there, and the verdict will be unqualified"]
    return [f"warning: {warning}" for warning in machine.warnings(state, others)]


def _stepping(report: Reporter, go_on: GoOn) -> Callable[[int], None]:
    """Reports a step done, and ends the work that nobody waits for any more."""

    def on_step(done: int) -> None:
        go_on()
        report.step(done)

    return on_step


def _write(request: Request, measured: Measured, report: Reporter) -> tuple[dict[str, Any], Path]:
    """Assembles the receipt and writes it into the output folder, its page beside it."""
    remote = measured.environment.machine.get("remote") is True
    environment = measured.environment.model_copy(
        update={"load_after": state_record(machine.machine_state(), remote)}
    )
    receipt = assemble(
        measured.plan,
        measured.subject,
        environment,
        measured.reference,
        measured.parity,
        measured.slots,
    )
    a, b = request.arms
    path = fresh(request.out, f"{request.preset.name}-{a.name}-{b.name}", "receipt")
    path = keep(path, receipt, report)
    try:
        store.write_text(store.page_path(path), html(parse(receipt)))
    except UsageError as error:
        report.error(f"{error}; `driver report {path} --html FILE` writes it elsewhere")
    return receipt, path


def fresh(folder: Path, stem: str, kind: str) -> Path:
    """`STEM-NOW.KIND.json`, numbered where that is there already."""
    stamp = now_utc()[:19].replace(":", "").replace("-", "")
    suffixes = itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    paths = (folder / f"{stem}-{stamp}{suffix}.{kind}.json" for suffix in suffixes)
    return next(path for path in paths if not path.exists())


def keep(path: Path, data: Any, report: Reporter) -> Path:
    """Writes JSON and returns where: what was measured must not be lost to a full disk."""
    try:
        store.write_json(path, data)
    except UsageError as error:
        spare = Path(tempfile.gettempdir()) / path.name
        report.error(f"{error}; it goes to {spare} instead")
        store.write_json(spare, data)
        return spare
    return path


def exit_code(receipt: Receipt) -> int:
    """4 when the run itself failed, 1 when a blocking gate failed, else 0."""
    if any(slot.status == "failed" for slot in receipt.slots):
        return 4
    return 1 if receipt.verdict.status == "failed" else 0

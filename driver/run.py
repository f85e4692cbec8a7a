"""The pipeline: probe → prepare → freeze → blocks → receipt."""

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driver import machine, store
from driver.arms import ArmSpec
from driver.browser import BrowserChoice, BrowserSession
from driver.corpus import Corpus
from driver.errors import UsageError
from driver.jobs import JobMaker
from driver.plan import Measured, Purpose, announce, fit_budget, freeze, now_utc
from driver.prepare import Preparation, probe
from driver.presets import Preset, check_memory
from driver.progress import Reporter
from driver.receipt import assemble
from driver.reference import Tensors
from driver.server import JobServer
from driver.slots import Blocks
from driver.workload import Workload, reference_curve


@dataclass(frozen=True)
class Request:
    """One preset to run, everything a person chose."""

    preset: Preset
    arms: tuple[ArmSpec, ArmSpec]
    corpus: Corpus
    seed: int
    purpose: Purpose
    out: Path
    headed: bool = False


async def run(
    request: Request, choice: BrowserChoice, report: Reporter
) -> tuple[dict[str, Any], Path]:
    """Measures one preset, writes the receipt, and returns it with its path.

    Raises Unsupported, SlotError or UsageError before the plan is frozen; afterwards whatever
    happens is in the receipt. When cancelled it writes a partial receipt first.
    """
    began = time.monotonic()
    state, facts = machine.machine_state(), machine.machine_facts()
    check_memory(request.preset, state.memory_available_bytes)
    report.phase("drawing the weights", 1)
    workload = Workload.draw(request.preset, request.corpus, request.seed)

    async with JobServer() as server:
        maker = JobMaker(server, workload.config)
        async with BrowserSession(choice, request.headed) as session:
            report.phase("asking the browser what it can do", 1)
            probed = await probe(session, server, request.arms)
            preparation = Preparation(
                session, server, maker, workload, probed.features, request.purpose.budget_s,
                state.memory_available_bytes,
                lambda progress: report.step(progress.op, progress.loss),
                request.purpose.profile,
            )  # fmt: skip
            a_spec, b_spec = request.arms
            report.phase(f"checking and timing A {a_spec.name}", preparation.length)
            a = await preparation.arm("A", a_spec)
            report.phase(f"checking and timing B {b_spec.name}", preparation.length)
            b = await preparation.arm("B", b_spec)
        shape, reference_steps = fit_budget(
            request.purpose,
            workload,
            (a, b),
            preparation.reference_step_s,
            time.monotonic() - began,
        )
        checkpoints: dict[int, Tensors] = {}
        if preparation.forward_reason:
            reference = await preparation.forward_facts()
        else:
            report.phase("reference (NumPy float64)", reference_steps)
            ends = frozenset(min(c.total_steps, reference_steps) for c in shape.choices)
            reference, checkpoints = await asyncio.to_thread(
                reference_curve, workload, reference_steps, ends, report.step
            )
        measured = freeze(
            request.purpose, workload, maker, (a, b), shape, reference, probed, facts, state
        )
        report.say(announce(measured.plan, time.monotonic() - began))
        if measured.parity_holds():
            tokens, _ = maker.tokens(workload.batches(shape.longest))
            blocks = Blocks(
                choice, request.headed, report, server, maker, preparation.initial, tokens,
                (a.arm, b.arm), checkpoints, measured,
            )  # fmt: skip
            try:
                with machine.awake():
                    await blocks.run()
            except asyncio.CancelledError:
                _, path = _write(request, measured, report)
                report.say(f"interrupted; what was measured is in {path}")
                raise
    return _write(request, measured, report)


def _write(request: Request, measured: Measured, report: Reporter) -> tuple[dict[str, Any], Path]:
    """Assembles the receipt and writes it into the output folder."""
    environment = measured.environment.model_copy(
        update={"load_after": machine.machine_state().model_dump(mode="json")}
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
    stamp = now_utc()[:19].replace(":", "").replace("-", "")
    path = request.out / f"{request.preset.name}-{a.name}-{b.name}-{stamp}.receipt.json"
    try:
        store.write_json(path, receipt)
    except UsageError as error:
        # What was measured must not be lost to a full disk.
        spare = Path(tempfile.gettempdir()) / path.name
        report.say(f"{error}; the receipt goes to {spare} instead")
        store.write_json(spare, receipt)
        path = spare
    return receipt, path

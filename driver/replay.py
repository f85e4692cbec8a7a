"""`driver replay`: a case, or a preset's own problem, on one arm; its result in a file.

For comparison with an oracle, or with a curve that somebody has published.
"""

from pathlib import Path

import numpy as np

from driver.arms import ArmSpec, resolve
from driver.browser import BrowserChoice, BrowserSession
from driver.cases import Case, Result, read_case
from driver.corpus import Corpus
from driver.errors import CaseError, SlotError, Unsupported
from driver.jobs import JobMaker, curve, open_op, read_op, train_op
from driver.measure import run_job
from driver.prepare import OnProgress, probe
from driver.presets import Preset
from driver.reference import Reference
from driver.server import JobServer
from driver.tensors import flatten
from driver.workload import Workload


def open_case(path: Path, steps: int | None) -> Case:
    """The case with its first `steps` batches; raises CaseError when it has fewer."""
    case = read_case(path)
    if steps is None:
        return case
    if not 1 <= steps <= case.steps:
        raise CaseError(f"--steps {steps}: {path} has {case.steps} steps")
    return Case(case.config, case.tokens[:steps], case.state)


def preset_case(preset: Preset, corpus: Corpus, steps: int | None, seed: int | None) -> Case:
    """The problem that a preset's slots train: weights and batches drawn from its seed, or `seed`.

    `steps` left open are those of its longest slot.
    """
    workload = Workload.draw(preset, corpus, preset.seed if seed is None else seed)
    longest = preset.warmup_steps + preset.windows * preset.max_steps_per_window
    return Case(workload.config, workload.batches(steps or longest), workload.state)


def on_numpy(case: Case, dtype: str) -> Result:
    """The case on the NumPy reference."""
    reference = Reference(case.config, case.state, np.dtype(dtype))
    results = [reference.step(tokens) for tokens in case.tokens]
    return Result(
        losses=np.array([r.loss for r in results]),
        grad_norms=np.array([r.grad_norm for r in results]),
        grads=results[0].grads,
        params=reference.params,
    )


async def in_browser(
    case: Case,
    spec: ArmSpec,
    choice: BrowserChoice,
    deadline_s: float,
    on_progress: OnProgress | None = None,
) -> Result:
    """The case on an arm of the page. Raises Unsupported and SlotError."""
    async with JobServer(site=choice.site) as server, BrowserSession(choice) as session:
        arm = resolve(spec, (await probe(session, server, [spec])).features)
        maker = JobMaker(server, case.config)
        initial, _ = maker.state("initial", {"param": flatten(case.config, case.state)})
        tokens, _ = maker.tokens(case.tokens)
        program = [open_op(), train_op(1, "step"), read_op("grad", "grad")]
        program += [train_op(1, "step")] * (case.steps - 1) + [read_op("param", "param")]
        job = maker.job("replay", arm, {"initial": initial}, tokens, program)
        outcome = await run_job(
            session, server, job, deadline_s=deadline_s, on_progress=on_progress
        )
    if outcome.failure or outcome.result is None:
        failure = outcome.failure
        message = f"arm {arm.name}: {failure.message if failure else 'no result'}"
        if failure and failure.kind == "unsupported":
            raise Unsupported(message)
        raise SlotError(f"{message} ({failure.kind})" if failure else message)
    losses, norms = curve(outcome.result.ops)
    return Result(
        losses=np.array(losses),
        grad_norms=np.array(norms),
        grads=maker.tensors_of(outcome.blobs["grad"]),
        params=maker.tensors_of(outcome.blobs["param"]),
    )

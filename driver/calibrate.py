"""`driver calibrate`: runs of an arm against itself, kept for this machine.

Later runs quote them in their plans; `compare` and `reproduce` take between-run noise from them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from driver import store
from driver.arms import ArmSpec
from driver.browser import BrowserChoice, ChosenBrowser
from driver.calibration import calibration_key, calibration_of, calibration_run
from driver.corpus import Corpus
from driver.errors import RunError
from driver.plan import MARGIN, Purpose
from driver.presets import Preset
from driver.progress import Reporter
from driver.receipt import parse
from driver.records import Calibration, CalibrationRun, Receipt
from driver.run import Request as RunRequest
from driver.run import run


@dataclass(frozen=True)
class Request:
    """What is to be calibrated. `fresh` forgets earlier runs of the same arm here."""

    preset: Preset
    arm: ArmSpec
    corpus: Corpus
    seed: int
    blocks: int
    runs: int
    budget_s: float
    out: Path
    fresh: bool = False


async def calibrate(
    request: Request, choice: BrowserChoice, report: Reporter
) -> tuple[Calibration, Path]:
    """Runs A/A, adds what they say to what is known, keeps it and returns it with its path.

    After every run what was measured so far is kept, so that an interruption costs one run. Raises
    RunError when a run fails its numeric gates: noise of wrong numbers is of no use.
    """
    began = time.monotonic()
    kept: tuple[Calibration, Path] | None = None
    for index in range(request.runs):
        left_s = request.budget_s - (time.monotonic() - began)
        report.part(f"calibration run {index + 1} of {request.runs}")
        wanted = RunRequest(
            preset=request.preset,
            arms=(request.arm, request.arm),
            corpus=request.corpus,
            seed=request.seed + index,  # other weights, batches and order of slots
            purpose=Purpose(
                request.blocks,
                max(1.0, left_s / (request.runs - index)),
                question=f"How noisy is {request.arm.name} against itself here?",
            ),
            out=request.out,
        )
        data, _ = await run(wanted, ChosenBrowser(choice), report)
        kept = add(parse(data), fresh=request.fresh and index == 0)
    if kept is None:
        raise RunError("no calibration run was made")
    return kept


def add(receipt: Receipt, fresh: bool = False) -> tuple[Calibration, Path]:
    """Adds one A/A receipt to what is kept of its arm. Raises RunError for one that cannot be."""
    if receipt.verdict.status == "failed":
        raise RunError(f"the calibration run failed: {'; '.join(receipt.verdict.reasons)}")
    found = calibration_run(receipt)
    if found is None:
        raise RunError(
            "the calibration run has no spread of blocks: it needs at least four "
            "finished ones; use a longer --budget or a smaller preset"
        )
    key = calibration_key(receipt.plan, receipt.environment, 0)
    earlier = None if fresh else store.load_calibration(key)
    runs: Sequence[CalibrationRun] = [*(earlier.runs if earlier else ()), found]
    calibration = calibration_of(key, MARGIN, runs)
    return calibration, store.save_calibration(calibration)

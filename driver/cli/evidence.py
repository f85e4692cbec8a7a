"""Commands that set receipts against each other: `compare`, `reproduce`, `calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from driver import calibrate, compare, history, presets, report, reproduce, store
from driver.browser import FOUND, ChosenBrowser, Wanted
from driver.cli import complete
from driver.cli.frame import (
    BlocksOption,
    CorpusOption,
    JsonOption,
    OutOption,
    PlainOption,
    PresetOption,
    QuietOption,
    arm_for,
    check_numbers,
    check_places,
    check_threads,
    corpus_for,
    duration_s,
    known_noise,
    measured,
    opens_browser,
    parse_margin,
    terminal,
)
from driver.errors import ArmError, PresetError, ReceiptError, UsageError
from driver.parity import LEAST_BLOCKS, SIDES
from driver.receipt import parse
from driver.records import HistoryReceipt
from driver.run import exit_code
from driver.run import run as run_preset


def compare_command(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The earlier receipt.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The later receipt.")],
    margin: Annotated[
        str, typer.Option(metavar="PART", help="A change within it is none: 2% or 0.02.")
    ] = "2%",
    db: Annotated[
        Path | None,
        typer.Option("--db", metavar="FILE", help="The history; default in the data folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What changed between two receipts, arm by arm, and whether that is proved.

    regression: the whole 95% interval of the change lies beyond the margin
    (code 1). Runs differ by more than their blocks show: `driver calibrate`
    measures how much, three earlier runs in `driver history` tell it too,
    and without either the answer is `unsure`. Receipts
    that cannot be compared are refused with the reasons (code 2). The
    strong form is one run of both: --arms wasm:source=REV,wasm.

    Example: driver compare base.receipt.json new.receipt.json --margin 3%
    """
    limit = parse_margin(margin)
    (one, _), (two, rows) = history.read_one(base), history.read_one(new)
    spreads = _spreads(db or history.default_path(), rows.receipt, (one.digest, two.digest))
    noise = [compare.larger(*pair) for pair in zip(known_noise(two, one), spreads, strict=True)]
    found = compare.compare_receipts(one, two, limit, noise)
    print(found.model_dump_json(indent=1) if as_json else report.comparison(found, terminal()[0]))
    raise typer.Exit(1 if found.regressed else 0)


@opens_browser
def reproduce_command(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="The receipt to repeat.")],
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time: 90s, 20m, 1h; default the receipt's own."),
    ] = None,
    margin: Annotated[
        str, typer.Option(metavar="PART", help="A change within it is none: 2% or 0.02.")
    ] = "2%",
    corpus_file: CorpusOption = None,
    browser: Wanted = FOUND,
    out: OutOption = Path("receipts"),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    plain: PlainOption = False,
) -> None:
    """Run a receipt's plan again here, and say what agrees.

    agree (code 0): losses and times are what the receipt has. disagree
    (code 1): something proves otherwise. not comparable (code 2): another
    browser, adapter, machine, corpus or source; losses are compared even so.

    Example: driver reproduce small-wasm-webgpu.receipt.json --budget 5m
    """
    limit, base = parse_margin(margin), history.read_one(receipt)[0]
    budget_s = duration_s("--budget", budget) if budget is not None else None
    try:
        request = reproduce.request_for(base, out, corpus_file, budget_s)
    except (ReceiptError, PresetError, ArmError) as error:  # of what stands in its plan
        raise ReceiptError(f"{receipt}: {error}") from error
    check_threads(request.arms)
    check_places(out)
    data, path = measured(
        browser,
        quiet,
        plain,
        lambda choice, reporter: run_preset(request, ChosenBrowser(choice), reporter),
    )
    new = parse(data)
    found = reproduce.judge(base, new, path.name, limit, known_noise(new, base))
    print(found.model_dump_json(indent=1) if as_json else report.reproduction(found, terminal()[0]))
    codes = {"agree": 0, "disagree": 1, "not comparable": 2}
    raise typer.Exit(max(codes[found.outcome], 4 if exit_code(new) == 4 else 0))


@opens_browser
def calibrate_command(
    preset: PresetOption = "small",
    arm: Annotated[
        str,
        typer.Option(
            metavar="ARM", help="The arm that runs against itself.", autocompletion=complete.arm
        ),
    ] = "wasm",
    runs: Annotated[
        int, typer.Option(metavar="N", help="Runs of the arm against itself.", min=1, max=100)
    ] = 6,
    blocks: BlocksOption = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time for all runs: 90s, 20m, 1h; default the preset's for each."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget earlier calibration runs of this arm here.")
    ] = False,
    browser: Wanted = FOUND,
    out: OutOption = Path("receipts"),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    plain: PlainOption = False,
) -> None:
    """Measure this machine's noise: an arm against itself, several times.

    Runs add up over calls (other days show more noise than one hour does)
    and are kept per machine, browser, preset and arm; DRIVER_DATA moves
    them. Later runs quote them in their plans.

    Example: driver calibrate --preset small --runs 6 --budget 20m
    """
    check_numbers(blocks, None)
    spec, loaded = arm_for(arm), presets.load(preset)
    if (blocks or loaded.blocks) < LEAST_BLOCKS:
        given = (
            f"--blocks {blocks}" if blocks else f"preset {loaded.name}: blocks = {loaded.blocks}"
        )
        raise UsageError(
            f"{given}: a calibration needs at least {LEAST_BLOCKS} blocks in a run; give them "
            "with --blocks"
        )
    request = calibrate.Request(
        preset=loaded,
        arm=spec,
        corpus=corpus_for(loaded, (spec,), None),
        seed=loaded.seed,
        blocks=blocks or loaded.blocks,
        runs=runs,
        budget_s=duration_s("--budget", budget) if budget is not None else runs * loaded.budget_s,
        out=out,
        fresh=fresh,
    )
    check_places(out)
    store.check_data()
    found, path = measured(
        browser,
        quiet,
        plain,
        lambda choice, reporter: calibrate.calibrate(request, choice, reporter),
    )
    print(found.model_dump_json(indent=1) if as_json else report.calibration(found, terminal()[0]))
    if not as_json:
        print(f"\ncalibration: {path}", flush=True)


def _spreads(
    db: Path, new: HistoryReceipt, leave_out: tuple[str, str]
) -> list[compare.Spread | None]:
    """What the history says of noise between runs of either arm, where there is a history."""
    if not db.exists():
        return [None, None]
    with history.opened(db) as connection:
        return [history.spread_of(connection, new, side, leave_out) for side in SIDES]

"""`driver run` and `driver replay`."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from driver import (
    presets,
    report,
    sources,
    store,
)
from driver import replay as replays
from driver.arms import ArmSpec, parse_arms
from driver.browser import FOUND, ChosenBrowser, Wanted
from driver.cases import Case, write_result
from driver.cli import complete
from driver.cli.frame import (
    CorpusOption,
    JsonOption,
    OutOption,
    PlainOption,
    QuietOption,
    RunBlocksOption,
    SeedOption,
    arm_for,
    browser_for,
    check_numbers,
    check_places,
    check_threads,
    corpus_for,
    duration_s,
    interruptible,
    opens_browser,
    parse_blocks,
    terminal,
)
from driver.errors import DriverError, Interrupted, UsageError
from driver.pin import pin_arms
from driver.plan import Purpose
from driver.progress import Reporter
from driver.receipt import parse
from driver.run import Request, exit_code
from driver.run import run as run_preset
from driver.tensors import parameter_count


@opens_browser
def run(
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE,...",
            help="A preset: a name that `driver presets` lists, or a file. Several give one "
            "receipt each.",
            autocompletion=complete.preset_names,
        ),
    ],
    arms: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Two arms with options, as `driver arms` lists them; the same arm twice is an A/A "
            "run.",
            autocompletion=complete.arms,
        ),
    ] = "wasm,webgpu",
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time for each preset: 90s, 20m, 1h; default from the preset."
        ),
    ] = None,
    blocks: RunBlocksOption = None,
    seed: SeedOption = None,
    corpus_file: CorpusOption = None,
    browser: Wanted = FOUND,
    out: OutOption = Path("receipts"),
    pin: Annotated[
        Path | None,
        typer.Option(
            metavar="RECEIPT", help="Take what the arms leave open from this receipt's plan."
        ),
    ] = None,
    require: Annotated[
        str | None, typer.Option(metavar="hardware", help="A software adapter is a failure.")
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the run is to answer; stands in the plan."),
    ] = None,
    tracking_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the question is discussed.")
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Also say where a step's time goes, op by op, and what asking costs."
        ),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    plain: PlainOption = False,
) -> None:
    """Train two arms in turn, check every number, write a receipt.

    Example: driver run --preset small --arms wasm,webgpu --budget 3m
    """
    requests = requests_for(
        preset, arms, pin, blocks, seed, corpus_file, out, require,
        Purpose(0, 0.0, require == "hardware", question, tracking_url, profile), budget,
    )  # fmt: skip
    check_places(out)
    codes, rows, documents = [0], [], []
    with Reporter(quiet, plain) as reporter:
        chosen = ChosenBrowser(browser_for(browser, reporter.say))
        for index, request in enumerate(requests):
            receipt = None
            if len(requests) > 1:
                reporter.part(f"preset {request.preset.name}, {index + 1} of {len(requests)}")
            try:
                data, path = interruptible(run_preset(request, chosen, reporter))
                receipt = parse(data)
                documents.append(data)
                codes.append(exit_code(receipt))
                if not as_json:
                    reporter.result(f"{report.text(receipt, *terminal())}\n\nreceipt: {path}\n")
            except Interrupted:
                raise
            except DriverError as error:
                if len(requests) == 1:
                    raise
                reporter.error(f"driver: {request.preset.name}: {error}")
                codes.append(error.exit_code)
            rows.append((request.preset.name, parameter_count(request.preset.model), receipt))
    if as_json:
        print(json.dumps(documents[0] if len(requests) == 1 else documents, indent=1))
    elif len(rows) > 1:
        print(report.curve_over_presets(rows, terminal()[0]))
    raise typer.Exit(max(codes))


@opens_browser
def replay(
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE|PRESET",
            help="A *.case.safetensors file, or a preset: its name or *.toml file.",
        ),
    ],
    arm: Annotated[
        str,
        typer.Option(
            metavar="ARM",
            help="numpy, numpy:dtype=float32, wasm, wasm64, webgpu, with options.",
            autocompletion=complete.arm,
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the result goes.")],
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Only the first N steps; a preset has those of its longest slot."
        ),
    ] = None,
    seed: SeedOption = None,
    corpus_file: CorpusOption = None,
    browser: Wanted = FOUND,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="When a page without an answer counts as hung.")
    ] = "15m",
    quiet: QuietOption = False,
    plain: PlainOption = False,
) -> None:
    """Train a case or a preset's problem on one arm; write losses, norms, gradients, parameters.

    Example: driver replay tiny.case.safetensors --arm wasm:threads=2 --out result.safetensors
    """
    spec, limit_s = arm_for(arm), duration_s("--timeout", timeout)
    if spec.name == "null":
        raise UsageError("arm null does not train, so it has nothing to replay")
    problem = _problem(case, spec, steps, seed, corpus_file)
    store.check_target(out.resolve())
    if spec.name == "numpy":
        result = replays.on_numpy(problem, str(spec.options["dtype"]))
    else:
        with Reporter(quiet, plain) as reporter:
            choice = browser_for(browser, reporter.say)
            reporter.phase(f"{Path(case).name} on {spec.name}", problem.steps)
            result = interruptible(
                replays.in_browser(
                    problem, spec, choice, limit_s,
                    lambda progress: reporter.step(progress.steps_done, progress.loss),
                )
            )  # fmt: skip
    write_result(out, result)
    print(f"{problem.steps} steps, last loss {result.losses[-1]:.6f}: {out}")


def _problem(
    case: str, spec: ArmSpec, steps: int | None, seed: int | None, corpus_file: str | None
) -> Case:
    """What to replay: a case file's problem, or a preset's; raises UsageError."""
    if case not in presets.names() and not case.endswith(".toml"):
        if seed is not None or corpus_file is not None:
            raise UsageError(
                f"{case} is a case file: it has its own weights and batches, so --seed and "
                "--corpus do not apply"
            )
        if not presets.exists(case):
            raise UsageError(
                f"{case}: no such file, and no preset of that name; presets are "
                f"{', '.join(presets.names())}, or a *.toml file"
            )
        return replays.open_case(Path(case), steps)
    check_numbers(None, seed)
    if steps is not None and not 1 <= steps <= 100_000:
        raise UsageError(f"--steps {steps}: expected 1 to 100000")
    preset = presets.load(case)
    return replays.preset_case(preset, corpus_for(preset, (spec,), corpus_file), steps, seed)


def requests_for(
    preset_names: str,
    arms: str,
    pin: Path | None,
    blocks_text: str | None,
    seed: int | None,
    corpus_file: str | None,
    out: Path,
    require: str | None,
    purpose: Purpose,
    budget: str | None,
) -> list[Request]:
    """One request per preset; raises UsageError before anything has started."""
    if require not in (None, "hardware"):
        raise UsageError(f"--require {require}: only `hardware` can be required")
    blocks, auto = parse_blocks(blocks_text)
    check_numbers(blocks, seed)
    first, second = parse_arms(arms)
    specs = (sources.located(first), sources.located(second))
    if pin:
        specs = pin_arms(specs, pin)
    check_threads(specs)
    names = [name.strip() for name in preset_names.split(",")]
    if not all(names):
        raise UsageError(
            f"--preset {preset_names!r} has an empty name; `driver presets` lists the names"
        )
    url = purpose.tracking_url
    if url is not None and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        raise UsageError(f"--tracking-url {url!r}: expected http://… or https://…")
    limit_s = duration_s("--budget", budget) if budget is not None else None
    requests = []
    for preset in map(presets.load, names):
        requests.append(
            Request(
                preset=preset,
                arms=specs,
                corpus=corpus_for(preset, specs, corpus_file),
                seed=preset.seed if seed is None else seed,
                purpose=replace(
                    purpose,
                    blocks=blocks or preset.blocks,
                    auto=auto,
                    budget_s=limit_s or preset.budget_s,
                ),
                out=out,
            )
        )
    return requests

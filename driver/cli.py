"""Commands → exit codes. Progress goes to stderr, results to stdout."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from driver import (
    __version__,
    build,
    corpus,
    doctor,
    kernels,
    ladder,
    layout,
    presets,
    report,
    store,
)
from driver import replay as replays
from driver.arms import MEANINGS, OPTIONS, ArmSpec, parse_arm, parse_arms
from driver.axes import AXES, axis_of
from driver.browser import BrowserChoice, find_browser, setup_browser
from driver.cases import write_result
from driver.errors import DriverError, Interrupted, UsageError
from driver.pin import pin_arms
from driver.plan import Purpose, evaluator
from driver.presets import parse_duration
from driver.progress import Reporter
from driver.receipt import parse
from driver.receipt import verify as verify_receipt
from driver.records import KernelReport, LadderReport, Receipt, Record
from driver.run import Request, exit_code
from driver.run import run as run_preset
from driver.tensors import model_flops, parameter_count

T = TypeVar("T")
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
BrowserOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="Browser to use; else DRIVER_BROWSER, else one that is found."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
BlocksOption = Annotated[
    int | None, typer.Option(help="Blocks of four slots; default from the preset.")
]
SeedOption = Annotated[
    int | None, typer.Option(help="Seed of weights, batches and order; default from the preset.")
]
CorpusOption = Annotated[
    str | None, typer.Option("--corpus", metavar="FILE", help="Train on these bytes.")
]
HeadedOption = Annotated[bool, typer.Option(help="Show the browser's window.")]
OutOption = Annotated[Path, typer.Option(help="Folder for receipts.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.")
    ] = False,
) -> None:
    """Trains the same GPT in a browser on two arms, alternated, checked and receipted."""
    if version:
        print(f"driver {__version__}")
        raise typer.Exit


@app.command()
def run(
    preset: Annotated[
        str, typer.Option(help="Name or file; several, separated by commas, give one receipt each.")
    ],
    arms: Annotated[
        str, typer.Option(help="Two arms A,B; the same arm twice is an A/A run.")
    ] = "wasm,webgpu",
    blocks: BlocksOption = None,
    seed: SeedOption = None,
    corpus_file: CorpusOption = None,
    browser: BrowserOption = None,
    headed: HeadedOption = False,
    out: OutOption = Path("receipts"),
    budget: Annotated[
        str | None,
        typer.Option(help="Time for each preset: 90s, 20m, 1h; default from the preset."),
    ] = None,
    pin: Annotated[
        Path | None,
        typer.Option(
            metavar="RECEIPT", help="Take what the arms leave open from this receipt's plan."
        ),
    ] = None,
    require: Annotated[
        str | None, typer.Option(help="`hardware` makes a software adapter a failure.")
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="What the run is to answer; stands in the plan.")
    ] = None,
    tracking_url: Annotated[
        str | None, typer.Option(help="Where the question is discussed.")
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Also say where a step's time goes, op by op, and what asking costs."
        ),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train two arms in turn, check every number, write a receipt.

    Example: driver run --preset small --arms wasm,webgpu --budget 3m
    """
    requests = _requests(
        preset, arms, pin, blocks, seed, corpus_file, out, headed, require,
        Purpose(0, 0.0, require == "hardware", question, tracking_url, profile), budget,
    )  # fmt: skip
    store.check_writable(out)
    layout.check_cache()
    codes, rows, documents = [0], [], []
    with Reporter(quiet) as reporter:
        choice = _browser(browser, reporter)
        for request in requests:
            receipt = None
            try:
                data, path = _interruptible(run_preset(request, choice, reporter))
                receipt = parse(data)
                documents.append(data)
                codes.append(exit_code(receipt))
                if not as_json:
                    print(report.text(receipt, *_terminal()), f"\nreceipt: {path}\n", flush=True)
            except Interrupted:
                raise
            except DriverError as error:
                if len(requests) == 1:
                    raise
                reporter.say(f"driver: {request.preset.name}: {error}")
                codes.append(error.exit_code)
            rows.append((request.preset.name, parameter_count(request.preset.model), receipt))
    if as_json:
        print(json.dumps(documents[0] if len(requests) == 1 else documents, indent=1))
    elif len(rows) > 1:
        print(report.curve_over_presets(rows))
    raise typer.Exit(max(codes))


@app.command()
def replay(
    case: Annotated[Path, typer.Argument(help="A *.case.safetensors file.")],
    arm: Annotated[
        str, typer.Option(help="numpy, numpy:dtype=float32, wasm, wasm64, webgpu, with options.")
    ],
    out: Annotated[Path, typer.Option(help="Where the result goes.")],
    steps: Annotated[int | None, typer.Option(help="Only the first N steps.")] = None,
    browser: BrowserOption = None,
    timeout: Annotated[
        str, typer.Option(help="When a page without an answer counts as hung.")
    ] = "15m",
    quiet: QuietOption = False,
) -> None:
    """Train a case file on one arm and write losses, norms, gradients and parameters.

    Example: driver replay tiny.case.safetensors --arm wasm:threads=2 --out result.safetensors
    """
    spec, limit_s = parse_arm(arm), parse_duration(timeout)
    if spec.name == "null":
        raise UsageError("arm null does not train, so it has nothing to replay")
    problem = replays.open_case(case, steps)
    store.check_target(out.resolve())
    if spec.name == "numpy":
        result = replays.on_numpy(problem, str(spec.options["dtype"]))
    else:
        with Reporter(quiet) as reporter:
            choice = _browser(browser, reporter)
            reporter.phase(f"{case.name} on {spec.name}", problem.steps)
            result = _interruptible(
                replays.in_browser(
                    problem, spec, choice, limit_s,
                    lambda progress: reporter.step(progress.steps_done, progress.loss),
                )
            )  # fmt: skip
    write_result(out, result)
    print(f"{problem.steps} steps, last loss {result.losses[-1]:.6f}: {out}")


@app.command("kernels")
def kernels_command(
    arm: Annotated[str, typer.Option(help="wasm or wasm64, with options.")] = "wasm",
    op: Annotated[str, typer.Option(help=" | ".join(kernels.OPS))] = "matmul",
    shapes: Annotated[
        str, typer.Option(help=f"Joined by commas: {kernels.GRAMMAR}.")
    ] = "preset:large",
    samples: Annotated[int, typer.Option(help="Samples of each kernel.", min=1, max=1000)] = 15,
    browser: BrowserOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check single kernels against float64, then time them beside the roofline.

    One thread unless the arm's option `threads` says more; every tile
    unless `tile` names one.

    Shapes: `preset:small` is every shape of that preset's step. The step of
    a model of any size is `B=2+T=17+C=15+H=3+V=11`: B sequences,
    T positions, C channels, H heads (1), V tokens (256), F inner channels
    of the MLP (4·C), L layers (1). `MxNxK` is the three products of that size.

    `--op layernorm_backward` runs one direction, `layernorm` both, `all`
    everything but `fork`: forks and joins without work in which all
    threads take part.

    Example: driver kernels --arm wasm:tile=4x8 --op matmul --shapes preset:large,512x512x512
    """
    kernels.check_op(op)
    spec = parse_arm(arm)
    if not spec.is_wasm:
        raise UsageError(f"--arm {arm}: only wasm and wasm64 have kernels to run apart")
    work = kernels.Work() if op == "fork" else kernels.parse_shapes(shapes, op)
    request = kernels.Request(spec, op, work, samples)
    with Reporter(quiet) as reporter:
        choice = _browser(browser, reporter)
        found = _interruptible(kernels.run(request, choice, reporter.say))
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        print(report.kernels(found, *_terminal()))
    raise typer.Exit(0 if found.holds else 1)


@app.command("ladder")
def ladder_command(
    preset: Annotated[str, typer.Option(help="Name or file.")],
    arm: Annotated[
        str, typer.Option(help="The arm, with options that stay the same on every rung.")
    ] = "wasm",
    axis: Annotated[
        str,
        typer.Option(
            help=" | ".join(dict.fromkeys(axis for found in AXES.values() for axis in found))
        ),
    ] = "kernels",
    blocks: BlocksOption = None,
    seed: SeedOption = None,
    corpus_file: CorpusOption = None,
    browser: BrowserOption = None,
    headed: HeadedOption = False,
    out: OutOption = Path("receipts"),
    budget: Annotated[
        str | None,
        typer.Option(help="Time in all: 90s, 20m, 1h; default the preset's for every pair."),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Change one thing at a time: each rung against the one before it, a receipt for each pair.

    The gain of the step's products run apart stands beside that of the whole step; what lost is
    listed too.

    Example: driver ladder --preset small --axis simd --budget 10m
    """
    _check_numbers(blocks, seed)
    spec, loaded = parse_arm(arm), presets.load(preset)
    axis_of(spec, axis)
    request = ladder.Request(
        preset=loaded,
        arm=spec,
        axis=axis,
        corpus=_corpus_for(loaded, (spec,), corpus_file),
        seed=loaded.seed if seed is None else seed,
        blocks=blocks or loaded.blocks,
        budget_s=parse_duration(budget) if budget else None,
        out=out,
        headed=headed,
    )
    store.check_writable(out)
    layout.check_cache()
    with Reporter(quiet) as reporter:
        choice = _browser(browser, reporter)
        found, path = _interruptible(ladder.run(request, choice, reporter))
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        print(report.ladder(found, *_terminal()), f"\nladder: {path}", flush=True)
    raise typer.Exit(found.exit_code)


@app.command()
def verify(
    receipts: Annotated[list[Path], typer.Argument(help="Receipt files.")],
    as_json: JsonOption = False,
) -> None:
    """Check receipts offline: schema, digests, and every derived number computed again.

    Example: driver verify receipts/*.receipt.json
    """
    answers, failed, unreadable = [], False, False
    for path in receipts:
        try:
            faults, remarks = verify_receipt(store.read_json(path), evaluator())
        except DriverError as error:
            faults, remarks, unreadable = [str(error)], [], True
        failed = failed or bool(faults)
        answers.append(
            {"receipt": str(path), "valid": not faults, "faults": faults, "remarks": remarks}
        )
        if not as_json:
            print(f"{path}: {'INVALID' if faults else 'valid'}")
            for line in faults[:20]:
                print(f"  {line}")
            if len(faults) > 20:
                print(f"  and {len(faults) - 20} more")
            for line in remarks:
                print(f"  note: {line}")
    if as_json:
        print(json.dumps(answers, indent=1))
    raise typer.Exit(2 if unreadable else 1 if failed else 0)


@app.command("report")
def report_command(
    receipt: Annotated[Path, typer.Argument(help="A receipt file.")],
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of it instead.")
    ] = None,
) -> None:
    """Show a receipt as text.

    Example: driver report receipts/small-wasm-webgpu.receipt.json
    """
    data = store.read_json(receipt)
    found = parse(data)
    if svg:
        store.write_text(svg, report.svg(found))
        return
    faults, _ = verify_receipt(data, evaluator())
    if faults:
        print(f"INVALID receipt ({len(faults)} faults, see driver verify): {faults[0]}\n")
    print(report.text(found, *_terminal()))
    if faults:
        raise typer.Exit(1)


@app.command("build")
def build_command(as_json: JsonOption = False) -> None:
    """Compile every WebAssembly module and gather the WGSL kernels.

    Example: driver build
    """
    artifacts = [*build.build_all(), *build.gather_wgsl().values()]
    if as_json:
        rows = [
            {"name": a.name, "sha256": a.sha256, "size_bytes": a.bytes, "path": str(a.path)}
            for a in artifacts
        ]
        print(json.dumps(rows, indent=1))
        return
    for artifact in artifacts:
        print(f"{artifact.sha256[:16]}  {artifact.bytes:>8,}  {artifact.name}")


@app.command("presets")
def presets_command(as_json: JsonOption = False) -> None:
    """List the presets.

    Example: driver presets
    """
    loaded = [presets.load(name) for name in presets.names()]
    if as_json:
        print(json.dumps([preset.model_dump(mode="json") for preset in loaded], indent=1))
        return
    print(
        f"{'preset':10} {'L':>3} {'H':>3} {'C':>5} {'T':>4} {'B':>3} {'parameters':>12} "
        f"{'GFLOP/step':>11}  budget"
    )
    for p in loaded:
        print(
            f"{p.name:10} {p.n_layer:3} {p.n_head:3} {p.d_model:5} {p.ctx:4} {p.batch:3} "
            f"{parameter_count(p.model):12,} {model_flops(p.model) / 1e9:11.2f}  {p.budget:6}  "
            f"{p.description}"
        )


@app.command("arms")
def arms_command(as_json: JsonOption = False) -> None:
    """List the arms and their options.

    Example: driver arms
    """
    if as_json:
        tree = {
            name: {
                "meaning": MEANINGS[name],
                "options": {
                    key: {"default": o.default, "choices": list(o.choices), "meaning": o.meaning}
                    for key, o in options.items()
                },
            }
            for name, options in OPTIONS.items()
        }
        print(json.dumps(tree, indent=1))
        return
    for name, options in OPTIONS.items():
        print(f"{name}: {MEANINGS[name]}")
        for key, option in options.items():
            choices = " | ".join((*option.choices, *(["auto"] if option.auto else [])))
            if not option.choices:
                choices = "a number | auto" if option.auto else "a number"
            print(f"    {key}={option.default}  {option.meaning} ({choices})")
    print("\nwasm and wasm64: kernels=naive | forward | forward-dA | forward-dA-dB sets the three")
    print("products together; an mm_ option beside it wins.")
    print("Arms are separated by `,`; options follow `:` and are joined by `+`:")
    print("    wasm:threads=1+simd=scalar,webgpu:matmul=naive")


@app.command("doctor")
def doctor_command(browser: BrowserOption = None, as_json: JsonOption = False) -> None:
    """What this machine and its browser can do, and what to do about what is missing.

    Example: driver doctor
    """
    found = _interruptible(doctor.examine(find_browser(browser)))
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        print(report.machine_checks(found, *_terminal()))
    raise typer.Exit(0 if found.ready else 3)


@app.command()
def setup(browser: BrowserOption = None) -> None:
    """Find a browser, or install one.

    Example: driver setup
    """
    choice = setup_browser(browser, lambda text: print(text, file=sys.stderr, flush=True))
    print(f"{choice.path} ({choice.source})")


@app.command()
def schema(
    of: Annotated[str, typer.Argument(help="receipt | kernels | ladder")] = "receipt",
) -> None:
    """Print the JSON Schema of a receipt, or of what `driver kernels` or `ladder` print as JSON.

    Example: driver schema > receipt.schema.json
    """
    records: dict[str, type[Record]] = {
        "receipt": Receipt, "kernels": KernelReport, "ladder": LadderReport,
    }  # fmt: skip
    if of not in records:
        raise UsageError(f"schema {of}: expected one of {', '.join(records)}")
    print(json.dumps(records[of].model_json_schema(), indent=1))


# --------------------------------------------------------------------------- helpers


def _requests(
    preset_names: str,
    arms: str,
    pin: Path | None,
    blocks: int | None,
    seed: int | None,
    corpus_file: str | None,
    out: Path,
    headed: bool,
    require: str | None,
    purpose: Purpose,
    budget: str | None,
) -> list[Request]:
    """One request per preset; raises UsageError before anything has started."""
    if require not in (None, "hardware"):
        raise UsageError(f"--require {require}: only `hardware` can be required")
    _check_numbers(blocks, seed)
    specs = parse_arms(arms)
    if pin:
        specs = pin_arms(specs, pin)
    names = [name.strip() for name in preset_names.split(",")]
    if not all(names):
        raise UsageError(
            f"--preset {preset_names!r} has an empty name; `driver presets` lists the names"
        )
    url = purpose.tracking_url
    if url is not None and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        raise UsageError(f"--tracking-url {url!r}: expected http://… or https://…")
    limit_s = parse_duration(budget) if budget else None
    requests = []
    for preset in map(presets.load, names):
        requests.append(
            Request(
                preset=preset,
                arms=specs,
                corpus=_corpus_for(preset, specs, corpus_file),
                seed=preset.seed if seed is None else seed,
                purpose=replace(
                    purpose,
                    blocks=blocks or preset.blocks,
                    budget_s=limit_s or preset.budget_s,
                ),
                out=out,
                headed=headed,
            )
        )
    return requests


def _check_numbers(blocks: int | None, seed: int | None) -> None:
    if blocks is not None and not 1 <= blocks <= 10_000:
        raise UsageError(
            f"--blocks {blocks}: expected 1 to 10000 (4 or more, even, for an interval)"
        )
    if seed is not None and not 0 <= seed < 2**53:
        raise UsageError(f"--seed {seed}: expected 0 to 2^53 − 1")


def _corpus_for(
    preset: presets.Preset, specs: Sequence[ArmSpec], corpus_file: str | None
) -> corpus.Corpus:
    """What the preset trains on; raises UsageError where it cannot train on that or these arms."""
    if preset.memory64 and any(spec.name == "wasm" for spec in specs):
        raise UsageError(f"preset {preset.name} needs Memory64; use the arm wasm64 instead of wasm")
    text = corpus.load(corpus_file)
    corpus.check(text, preset.model, preset.corpus_sha256)
    return text


def _browser(explicit: str | None, reporter: Reporter) -> BrowserChoice:
    return setup_browser(explicit, reporter.say)


def _terminal() -> tuple[int, bool]:
    """Width and colour of stdout."""
    console = Console()
    return (console.width if console.is_terminal else 110), console.is_terminal


def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`; Ctrl-C and SIGTERM cancel it, so that it can tidy up, and raise Interrupted."""

    async def supervised() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # A browser that is being closed leaves answers that nobody waits for any more.
            loop.set_exception_handler(lambda *_: None)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        try:
            return await task
        except asyncio.CancelledError:
            raise Interrupted("interrupted; nothing more is measured") from None

    return asyncio.run(supervised())


def main() -> None:
    """Entry point: errors become one message and an exit code."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        # Stdout is closed or full. The interpreter would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"driver: stdout cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    except DriverError as error:
        print(f"driver: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("driver: interrupted", file=sys.stderr)
        sys.exit(Interrupted.exit_code)

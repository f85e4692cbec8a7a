"""`driver kernels`, `driver geometry` and `driver ladder`."""

from pathlib import Path
from typing import Annotated

import typer

from driver import (
    axes,
    geometry,
    kernels,
    ladder,
    presets,
    report,
)
from driver.axes import AXES
from driver.browser import FOUND, Wanted
from driver.cli import complete
from driver.cli.frame import (
    BlocksOption,
    CorpusOption,
    JsonOption,
    OutOption,
    PlainOption,
    PresetOption,
    QuietOption,
    SeedOption,
    arm_for,
    check_numbers,
    check_places,
    corpus_for,
    duration_s,
    measured,
    opens_browser,
    terminal,
)
from driver.errors import UsageError

_AXES = tuple(dict.fromkeys(axis for found in AXES.values() for axis in found))


@opens_browser
def kernels_command(
    arm: Annotated[
        str,
        typer.Option(
            metavar="ARM", help="wasm, wasm64 or webgpu, with options.", autocompletion=complete.arm
        ),
    ] = "wasm",
    op: Annotated[
        str,
        typer.Option(
            metavar="NAME", help=" | ".join(kernels.OPS), autocompletion=complete.among(kernels.OPS)
        ),
    ] = "matmul",
    shapes: Annotated[
        str, typer.Option(metavar="SHAPES", help=f"Joined by commas: {kernels.GRAMMAR}.")
    ] = "preset:large",
    samples: Annotated[
        int, typer.Option(metavar="N", help="Samples of each kernel.", min=1, max=1000)
    ] = 15,
    browser: Wanted = FOUND,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    plain: PlainOption = False,
) -> None:
    """Check single kernels against float64, then time them beside the roofline.

    One thread (`--op fork`: all) unless the arm's option `threads` says
    otherwise; every tile unless `tile` names one. On webgpu every variant
    unless `matmul` names one, on the adapter's only queue, beside
    multiply-adds in WGSL.

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
    spec = arm_for(arm)
    kernels.check_arm(spec, op)
    work = kernels.Work() if op == "fork" else kernels.parse_shapes(shapes, op, not spec.is_wasm)
    request = kernels.Request(spec, op, work, samples)
    found = measured(
        browser, quiet, plain, lambda choice, reporter: kernels.run(request, choice, reporter.say)
    )
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        print(report.kernels(found, *terminal()))
    raise typer.Exit(0 if found.holds else 1)


@opens_browser
def geometry_command(
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Names or files, joined by commas; all of them if not given.",
            autocompletion=complete.preset_names,
        ),
    ] = "",
    arm: Annotated[str, typer.Option(metavar="ARM", help="webgpu, with options.")] = "webgpu",
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Run no step, count nothing.")
    ] = False,
    browser: Wanted = FOUND,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    plain: PlainOption = False,
) -> None:
    """What a step dispatches to the GPU: kernels, workgroups, submits, objects created.

    The plan is this adapter's. One real step of each preset that the adapter can hold is run, and
    what it asks of WebGPU counted. Exit code 1 where a step needs more than 22 dispatches per layer
    and 15 besides, or creates anything.

    Example: driver geometry --preset small,large
    """
    spec = arm_for(arm)
    if spec.name != "webgpu":
        raise UsageError(f"--arm {arm}: only webgpu dispatches to a GPU")
    loaded = [presets.load(name) for name in (preset.split(",") if preset else presets.names())]
    request = geometry.Request(spec, loaded, not plan_only)
    found = measured(
        browser, quiet, plain, lambda choice, reporter: geometry.run(request, choice, reporter.say)
    )
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        print(report.geometry(found, *terminal()))
    raise typer.Exit(0 if found.holds else 1)


@opens_browser
def ladder_command(
    preset: PresetOption,
    arm: Annotated[
        str,
        typer.Option(
            metavar="ARM",
            help="The arm, with options that stay the same on every rung.",
            autocompletion=complete.arm,
        ),
    ] = "wasm",
    axis: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What changes: " + " | ".join(_AXES),
            autocompletion=complete.among(_AXES),
        ),
    ] = "kernels",
    blocks: BlocksOption = None,
    seed: SeedOption = None,
    corpus_file: CorpusOption = None,
    browser: Wanted = FOUND,
    out: OutOption = Path("receipts"),
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time in all: 90s, 20m, 1h; default the preset's for every pair."
        ),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    plain: PlainOption = False,
) -> None:
    """Change one thing at a time: each rung against the one before it, a receipt for each pair.

    The gain of the step's products run apart stands beside that of the whole step; what lost is
    listed too.

    Example: driver ladder --preset small --axis simd --budget 10m
    """
    check_numbers(blocks, seed)
    spec, loaded = arm_for(arm), presets.load(preset)
    axes.check(axis, spec)
    request = ladder.Request(
        preset=loaded,
        arm=spec,
        axis=axis,
        corpus=corpus_for(loaded, (spec,), corpus_file),
        seed=loaded.seed if seed is None else seed,
        blocks=blocks or loaded.blocks,
        budget_s=duration_s("--budget", budget) if budget is not None else None,
        out=out,
    )
    check_places(out)
    found, path = measured(
        browser, quiet, plain, lambda choice, reporter: ladder.run(request, choice, reporter)
    )
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        print(report.ladder(found, *terminal()), f"\nladder: {path}", flush=True)
    raise typer.Exit(found.exit_code)

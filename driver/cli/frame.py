"""The command line's frame: application, shared options, what several commands do."""

import asyncio
import functools
import inspect
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from driver import (
    compare,
    corpus,
    layout,
    machine,
    presets,
    sources,
    store,
    threads,
    versions,
)
from driver.arms import ArmSpec, parse_arm
from driver.browser import NAMES, BrowserChoice, Wanted, elsewhere, setup_browser
from driver.calibration import calibration_key
from driver.cli import complete
from driver.errors import Interrupted, UsageError
from driver.faults import in_words
from driver.progress import Reporter
from driver.records import Receipt

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
WIDE_HELP = 72  # columns from which help has panels
LEAST_COLUMNS = 40  # of a report: with fewer its tables come apart


class _Help:
    """Help as a person reads it: paragraphs flow, and a flag has no value to be named."""

    params: list[Any]
    help: str | None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if self.help:
            self.help = _flowed(self.help)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Refuses an empty value by name, before a type makes the folder `.` or a default of it."""
        # The parser keeps the list, and a context may be resilient: help and completion go on.
        if not ctx.resilient_parsing and any(not one.rpartition("=")[2].strip() for one in args):
            given, _, _ = self.make_parser(ctx).parse_args(args=[*args])  # type: ignore[attr-defined]
            for param in self.get_params(ctx):
                value = given.get(param.name)
                values = value if isinstance(value, list | tuple) else (value,)
                if any(isinstance(one, str) and not one.strip() for one in values):
                    raise typer.BadParameter("an empty value", ctx=ctx, param=param)
        return super().parse_args(ctx, args)  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # Typer's panels have four columns, for which a narrow terminal has no room.
        if Console().width < WIDE_HELP:
            command: Any = self
            command.rich_markup_mode = None
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in found:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return found


def _flowed(text: str) -> str:
    """A docstring with a line for every paragraph, for the terminal to wrap."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


class _Command(_Help, TyperCommand):
    """One command."""


class _Group(_Help, TyperGroup):
    """All commands. A value that an option's or an argument's type refuses is named."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                fault = cause.errors()[0]
                given = str(fault["input"])
                shown = given if given and given.isprintable() else ascii(given)
                error.message = f"{shown:.60} {in_words(fault)}"
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Without panels: what each command does, in full."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (one.help or "").partition("\n")[0]) for name, one in found if one]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class App(typer.Typer):
    """A group of commands with this project's way of help and errors."""

    def __init__(self, **named: Any) -> None:
        super().__init__(
            cls=_Group,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode="rich",
            context_settings={"help_option_names": ["-h", "--help"]},
            **named,
        )

    def command(self, name: str | None = None, **named: Any) -> Callable[[F], F]:
        return super().command(name, cls=_Command, **named)


app = App()
# What every command that opens a browser offers; `opens_browser` gives them to it.
BROWSER_PANEL, OUTPUT_PANEL = "Which browser", "Output"
_BROWSER_OPTIONS: dict[str, tuple[Any, object]] = {
    "browser": (
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME|PATH",
                rich_help_panel=BROWSER_PANEL,
                help=f"{' | '.join(NAMES)}, or an executable; else DRIVER_BROWSER, else one "
                "that is found.",
            ),
        ],
        None,
    ),
    "headed": (
        Annotated[
            bool,
            typer.Option(
                "--headed", rich_help_panel=BROWSER_PANEL, help="Show the browser's window."
            ),
        ],
        False,
    ),
    "connect": (
        Annotated[
            str | None,
            typer.Option(
                metavar="ws://HOST:PORT/",
                rich_help_panel=BROWSER_PANEL,
                help="A Playwright server that starts the browser.",
            ),
        ],
        None,
    ),
    "cdp": (
        Annotated[
            str | None,
            typer.Option(
                metavar="http://HOST:PORT",
                rich_help_panel=BROWSER_PANEL,
                help="A browser of Chromium's family that runs already, also on a phone.",
            ),
        ],
        None,
    ),
    "server_port": (
        Annotated[
            int,
            typer.Option(
                "--server-port",
                metavar="N",
                rich_help_panel=BROWSER_PANEL,
                min=0,
                max=65535,
                help="Port of the driver's page on loopback, for `adb reverse`; 0 is any.",
            ),
        ],
        0,
    ),
}
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", rich_help_panel=OUTPUT_PANEL, help="Print JSON and nothing else on stdout."
    ),
]
PresetOption = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        help="A preset: a name that `driver presets` lists, or a file.",
        autocompletion=complete.preset_names,
    ),
]
BlocksOption = Annotated[
    int | None, typer.Option(metavar="N", help="Blocks of four slots; default from the preset.")
]
RunBlocksOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="Blocks of four slots; auto: 6, then what their variance asks for within the budget. "
        "Default from the preset.",
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Seed of weights, batches and order; default from the preset."),
]
CorpusOption = Annotated[
    str | None,
    typer.Option(
        "--corpus", metavar="FILE", help="Train on this file's bytes, not on generated text."
    ),
]
OutOption = Annotated[
    Path,
    typer.Option(metavar="FOLDER", rich_help_panel=OUTPUT_PANEL, help="Folder for receipts."),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", rich_help_panel=OUTPUT_PANEL, help="Nothing but the result and errors."
    ),
]
PlainOption = Annotated[
    bool,
    typer.Option(
        "--plain",
        rich_help_panel=OUTPUT_PANEL,
        help="Progress as lines, as it is anyway where stderr is no terminal.",
    ),
]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print this version, its source and its tools' versions."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --version: print JSON.")] = False,
) -> None:
    """Trains the same GPT in a browser on two arms, alternated, checked and receipted.

    Begin with `driver doctor` and `driver run --preset small`. Each command says more with --help.
    """
    if version:
        found = versions.versions()
        print(found.model_dump_json(indent=1) if as_json else versions.text(found))
        raise typer.Exit
    if as_json or context.invoked_subcommand is None:
        raise UsageError(
            "--json before a command goes with --version only; write it after the command, as in "
            "driver presets --json"
        )


def arm_for(text: str) -> ArmSpec:
    """One arm as a person writes it, its source in the cache; raises ArmError and LackError."""
    spec = sources.located(parse_arm(text))
    check_threads([spec])
    return spec


def check_threads(specs: Iterable[ArmSpec]) -> None:
    """Raises Unsupported where an arm asks for far more threads than this machine has cores."""
    for spec in specs:
        threads.check_count(spec, machine.usable_cores())


def parse_blocks(text: str | None) -> tuple[int | None, bool]:
    """Number of blocks, where one is given, and whether it is `auto`. Raises UsageError."""
    if text is None or text == "auto":
        return None, text == "auto"
    try:
        return int(text), False
    except ValueError:
        raise UsageError(f"--blocks {text}: expected a number, or auto") from None


def parse_margin(text: str) -> float:
    """A part as a person writes it, 2% or 0.02. Raises UsageError."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(f"--margin {text!r:.40}: expected a part such as 2% or 0.02")
    return value


def duration_s(option: str, text: str) -> float:
    """Seconds in the value of an option. Raises UsageError, which names the option."""
    try:
        return presets.parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def check_numbers(blocks: int | None, seed: int | None) -> None:
    if blocks is not None and not 1 <= blocks <= 10_000:
        raise UsageError(
            f"--blocks {blocks}: expected 1 to 10000 (4 or more, even, for an interval)"
        )
    if seed is not None and not 0 <= seed < 2**53:
        raise UsageError(f"--seed {seed}: expected 0 to 2^53 − 1")


def corpus_for(
    preset: presets.Preset, specs: Sequence[ArmSpec], corpus_file: str | None
) -> corpus.Corpus:
    """What the preset trains on; raises UsageError where it cannot train on that or these arms."""
    if preset.memory64 and any(spec.name == "wasm" for spec in specs):
        raise UsageError(f"preset {preset.name} needs Memory64; use the arm wasm64 instead of wasm")
    if preset.corpus_sha256 and corpus_file is None:
        raise UsageError(corpus.demand(preset.corpus_sha256, preset.corpus_hint))
    text = corpus.load(corpus_file)
    corpus.check(text, preset.model, preset.corpus_sha256, preset.corpus_hint)
    return text


Command = Callable[..., None]


def gathers(
    name: str, options: Mapping[str, tuple[Any, Any]], value_of: Callable[..., Any]
) -> Callable[[Command], Command]:
    """Gives a command options that several commands share.

    They stand where its parameter `name` is, which gets what `value_of` makes of them all.
    `options` hold the annotation and the default of each.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)

        def parameters() -> Iterator[inspect.Parameter]:
            for parameter in signature.parameters.values():
                if parameter.name != name:
                    yield parameter
                    continue
                for option, (annotation, default) in options.items():
                    yield parameter.replace(name=option, annotation=annotation, default=default)

        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            value = value_of(**{option: given.pop(option) for option in options})
            command(**{name: value}, **given)

        found = [*parameters()]
        del wrapped.__wrapped__  # Typer is to see these options, not the command's own parameters
        wrapped.__signature__ = signature.replace(parameters=found)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {one.name: one.annotation for one in found}
        return wrapped

    return decorate


# The options that say which browser a command opens, as one `Wanted`.
opens_browser = gathers("browser", _BROWSER_OPTIONS, Wanted)


def browser_for(wanted: Wanted, say: Callable[[str], None]) -> BrowserChoice:
    """The browser that was asked for; raises UsageError and BrowserMissing."""
    far = elsewhere(wanted)
    if far:
        say(f"Browser: {far.label}")
        return far
    return on_this_machine(wanted, setup_browser(wanted.browser, say))


def on_this_machine(wanted: Wanted, choice: BrowserChoice) -> BrowserChoice:
    """A browser that is started here, in the way that was asked for."""
    return choice.model_copy(update={"headed": wanted.headed, "server_port": wanted.server_port})


def known_noise(new: Receipt, *others: Receipt) -> list[compare.Noise | None]:
    """Of either arm the calibration that knows of most noise: quoted by a receipt, or kept here."""
    return [
        compare.larger(
            *(receipt.plan.arms[i].calibration for receipt in (*others, new)),
            store.load_calibration(calibration_key(new.plan, new.environment, i)),
        )
        for i in (0, 1)
    ]


def check_places(out: Path) -> None:
    """Raises UsageError or LackError where what a run is to write has no place."""
    store.check_writable(out)
    layout.check_cache()


def measured(
    browser: Wanted,
    quiet: bool,
    plain: bool,
    work: Callable[[BrowserChoice, Reporter], Coroutine[Any, Any, T]],
) -> T:
    """What `work` returns, in the browser that was asked for; progress on stderr."""
    with Reporter(quiet, plain) as reporter:
        return interruptible(work(browser_for(browser, reporter.say), reporter))


def terminal() -> tuple[int, bool]:
    """Width of stdout, COLUMNS if that is set, 110 for a file; and whether it may have colours."""
    console = Console()
    known = console.is_terminal or os.environ.get("COLUMNS", "").isdigit()
    colour = console.is_terminal and not console.no_color and not console.is_dumb_terminal
    return (max(LEAST_COLUMNS, console.width) if known else 110), colour


def interruptible(work: Coroutine[Any, Any, T]) -> T:
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

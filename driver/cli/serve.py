"""`driver serve`."""

import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from driver import presets, report
from driver import serve as hand
from driver.arms import parse_arms
from driver.cli import complete
from driver.cli.frame import (
    CorpusOption,
    OutOption,
    PlainOption,
    QuietOption,
    check_places,
    corpus_for,
    interruptible,
    terminal,
)
from driver.cli.run import requests_for
from driver.errors import Interrupted, UsageError
from driver.plan import Purpose
from driver.progress import Reporter
from driver.records import Receipt
from driver.run import Request


def serve(
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="What the page proposes; a file's path is offered beside the names.",
            autocompletion=complete.preset_names,
        ),
    ] = "small",
    arms: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Two arms that the page proposes.", autocompletion=complete.arms
        ),
    ] = "wasm,webgpu",
    port: Annotated[
        int,
        typer.Option(metavar="N", help="Port of the page; 0 takes a free one.", min=0, max=65535),
    ] = 0,
    lan: Annotated[
        bool, typer.Option("--lan", help="For other devices: HTTPS on this machine's addresses.")
    ] = False,
    corpus_file: CorpusOption = None,
    out: OutOption = Path("receipts"),
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the page in the default browser.")
    ] = False,
    quiet: QuietOption = False,
    plain: PlainOption = False,
) -> None:
    """The same bench by hand, in any browser: Safari, Firefox, Edge, a phone.

    Prints an address. Whoever opens it chooses preset and arms there, starts, and watches; the
    receipt is kept here. One browser for each session, as many runs as one likes; Ctrl-C ends it.

    Example: driver serve --lan --preset small
    """
    on_open = _stay if no_open or lan or not _has_screen() else _open
    settings = settings_for(preset, arms, corpus_file, out, port, lan, on_open)
    with Reporter(quiet, plain) as reporter:
        try:
            interruptible(hand.serve(settings, reporter))
        except Interrupted:
            # The usual end of a session.
            reporter.say("driver serve: ended")


def settings_for(
    preset: str,
    arms: str,
    corpus_file: str | None,
    out: Path,
    port: int,
    lan: bool,
    on_open: Callable[[str], None],
) -> hand.Settings:
    """What the command line says; raises UsageError before anything has started."""
    specs, given = parse_arms(arms), [text.strip() for text in arms.split(",")]
    offered = {name: presets.load(name) for name in presets.names()}
    places, proposed = {name: name for name in offered}, preset
    if preset not in offered:
        # By its name: the page has no use for a place on this machine, and must not learn it.
        found = presets.load(preset)
        proposed = found.name if found.name not in offered else f"{found.name} (from a file)"
        offered[proposed], places[proposed] = found, preset
    corpus_for(offered[proposed], specs, corpus_file)
    check_places(out)
    (a, _, a_options), (b, _, b_options) = (text.partition(":") for text in given)

    def request_for(wish: hand.Wish) -> Request:
        if wish.preset not in offered:
            raise UsageError(f"preset {wish.preset!r:.80} is not offered here")
        _check_sources(wish.arms, given)
        (found,) = requests_for(
            places[wish.preset], wish.arms, None, wish.blocks.strip() or None, None, corpus_file,
            out, None, Purpose(0, 0.0), wish.budget.strip() or None,
        )  # fmt: skip
        return found

    return hand.Settings(
        presets=tuple(offered.items()),
        wish=hand.Wish(preset=proposed, a=a, b=b, a_options=a_options, b_options=b_options),
        has_corpus=corpus_file is not None,
        out=out,
        port=port,
        lan=lan,
        request_for=request_for,
        on_open=on_open,
        told=_told,
    )


def _open(address: str) -> None:
    webbrowser.open(address)


def _stay(_: str) -> None:
    """A person opens the address by hand."""


def _told(receipt: Receipt, path: Path) -> str:
    return f"{report.text(receipt, *terminal())}\n\nreceipt: {path}\n"


def _check_sources(wished: str, given: Sequence[str]) -> None:
    """A page may choose arms, not folders of this machine: what was given here may name them."""
    for text in wished.split(","):
        if "source" in text and text.strip() not in given:
            raise UsageError(
                f"arm {text[:100]!r}: a source is named on the command line: "
                "driver serve --arms wasm:source=REV,wasm"
            )


def _has_screen() -> bool:
    """A default browser can show itself; else a text browser might take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

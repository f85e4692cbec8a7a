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
from driver.arms import parse_arm
from driver.cli.frame import (
    CorpusOption,
    OutOption,
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
        str, typer.Option(help="What the page proposes; a file's path is offered beside the names.")
    ] = "small",
    arms: Annotated[str, typer.Option(help="Two arms A,B that the page proposes.")] = "wasm,webgpu",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
    lan: Annotated[
        bool, typer.Option("--lan", help="For other devices: HTTPS on this machine's addresses.")
    ] = False,
    corpus_file: CorpusOption = None,
    out: OutOption = Path("receipts"),
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the page in the default browser.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """The same bench by hand, in any browser: Safari, Firefox, Edge, a phone.

    Prints an address. Whoever opens it chooses preset and arms there, starts, and watches; the
    receipt is kept here. One browser for each session, as many runs as one likes; Ctrl-C ends it.

    Example: driver serve --lan --preset small
    """
    settings = settings_for(preset, arms, corpus_file, out, port, lan, _opens(no_open or lan))
    with Reporter(quiet) as reporter:
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
    on_open: Callable[[str, str], None],
) -> hand.Settings:
    """What the command line says; raises UsageError before anything has started."""
    given = arms.split(",")
    if len(given) != 2:
        raise UsageError(f"--arms {arms!r}: expected two arms A,B")
    specs = [parse_arm(text) for text in given]
    offered = {name: presets.load(name) for name in presets.names()}
    offered.setdefault(preset, presets.load(preset))
    corpus_for(offered[preset], specs, corpus_file)
    check_places(out)
    (a, _, a_options), (b, _, b_options) = (text.strip().partition(":") for text in given)

    def request_for(wish: hand.Wish) -> Request:
        if wish.preset not in offered:
            raise UsageError(f"preset {wish.preset!r:.80} is not offered here")
        _check_sources(wish.arms, given)
        (found,) = requests_for(
            wish.preset, wish.arms, None, wish.blocks.strip() or None, None, corpus_file, out,
            False, None, Purpose(0, 0.0), wish.budget.strip() or None,
        )  # fmt: skip
        return found

    return hand.Settings(
        presets=tuple(offered.items()),
        wish=hand.Wish(preset=preset, a=a, b=b, a_options=a_options, b_options=b_options),
        has_corpus=corpus_file is not None,
        out=out,
        port=port,
        lan=lan,
        request_for=request_for,
        on_open=on_open,
        on_receipt=_print_receipt,
    )


def _opens(stay_closed: bool) -> Callable[[str, str], None]:
    def on_open(greeting: str, address: str) -> None:
        print(greeting, flush=True)
        if not stay_closed and _has_screen():
            webbrowser.open(address)

    return on_open


def _print_receipt(receipt: Receipt, path: Path) -> None:
    print(report.text(receipt, *terminal()), f"\nreceipt: {path}\n", flush=True)


def _check_sources(wished: str, given: Sequence[str]) -> None:
    """A page may choose arms, not folders of this machine: what was given here may name them."""
    for text in wished.split(","):
        if "source" in text and text.strip() not in [allowed.strip() for allowed in given]:
            raise UsageError(
                f"arm {text[:100]!r}: a source is named on the command line: "
                "driver serve --arms wasm:source=REV,wasm"
            )


def _has_screen() -> bool:
    """A default browser can show itself; else a text browser might take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

"""A picture of the terminal: a real run's live view in its middle, and what it ended with.

    python .github/scripts/terminal_picture.py .github/terminal.svg --preset tiny

makes that run, and draws what its display drew. Run it in the checkout.
"""

import asyncio
import io
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from driver import report, store
from driver.browser import ChosenBrowser, Wanted
from driver.cli.frame import browser_for
from driver.cli.run import requests_for
from driver.errors import DriverError
from driver.plan import Purpose
from driver.progress import Reporter, Silent, State
from driver.progress.view import lines
from driver.receipt import parse
from driver.report.terminal import picture_of
from driver.run import run

COLUMNS = 92


class Middle(Silent):
    """The view of a slot in the middle, as it was when that slot's loss was last told."""

    def __init__(self) -> None:
        self.view: list[Text] = []

    def step(self, state: State) -> None:
        if state.slot and state.slot.number == state.slot.slots // 2 + 2:
            self.view = lines(state, COLUMNS)


def main(
    out: Path,
    preset: str = "tiny",
    arms: str = "wasm,webgpu",
    budget: str = "4m",
    receipts: Path = Path("receipts"),
) -> None:
    """Makes the run, keeps its receipt in the folder RECEIPTS, and writes the picture."""
    middle = Middle()
    try:
        (request,) = requests_for(
            preset, arms, None, None, None, None, receipts, None, Purpose(0, 0.0), budget
        )
        store.check_writable(receipts)
        with Reporter() as reporter, reporter.beside(middle):
            browser = ChosenBrowser(browser_for(Wanted(), reporter.say))
            data, path = asyncio.run(run(request, browser, reporter))
    except DriverError as error:
        sys.exit(f"no picture: {error}")

    console = Console(file=io.StringIO(), width=COLUMNS, record=True, force_terminal=True)
    shown = [
        Text.assemble(
            ("$ ", "dim"), (f"driver run --preset {preset} --arms {arms} --budget {budget}", "bold")
        ),
        *middle.view,
        Text("\n⋮  and at its end\n", style="dim"),
        *beginning(report.text(parse(data), COLUMNS, True)),
        Text("⋮  every slot and every gate", style="dim"),
    ]
    for line in shown:
        console.print(line)
    store.write_text(out, picture_of(console, "driver run"))
    print(f"{out}: of {path}", file=sys.stderr)


def beginning(page: str) -> list[Text]:
    """The report's lines up to the table of slots."""
    found = [Text.from_ansi(line) for line in page.splitlines()]
    return found[
        : next(i for i, line in enumerate(found) if line.plain.split()[:2] == ["slot", "block"])
    ]


if __name__ == "__main__":
    typer.run(main)

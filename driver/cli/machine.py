"""Commands about this machine: what is there, what is missing, what is built."""

import json
import sys

import typer

from driver import (
    build,
    doctor,
    report,
)
from driver.browser import FOUND, Wanted, elsewhere, find_browser
from driver.cli.frame import (
    JsonOption,
    browser_for,
    interruptible,
    on_this_machine,
    opens_browser,
    terminal,
)
from driver.errors import DriverError


@opens_browser
def doctor_command(browser: Wanted = FOUND, as_json: JsonOption = False) -> None:
    """What this machine and its browser can do, and what to do about what is missing.

    Example: driver doctor
    """
    choice, lack = elsewhere(browser), None
    try:
        if choice is None and (here := find_browser(browser.browser)):
            choice = on_this_machine(browser, here)
    except DriverError as error:
        lack = str(error)
    found = interruptible(doctor.examine(choice, lack))
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        print(report.machine_checks(found, *terminal()))
    raise typer.Exit(0 if found.ready else 3)


@opens_browser
def setup(browser: Wanted = FOUND) -> None:
    """Find a browser, or install one.

    Example: driver setup
    """
    choice = browser_for(browser, lambda text: print(text, file=sys.stderr, flush=True))
    print(choice.label)


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

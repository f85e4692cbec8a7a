"""Commands about this machine: what is there, what is missing, what is built."""

import json
import sys

import typer

from driver import (
    build,
    doctor,
    report,
)
from driver.browser import find_browser, setup_browser
from driver.cli.frame import BrowserOption, JsonOption, interruptible, terminal


def doctor_command(browser: BrowserOption = None, as_json: JsonOption = False) -> None:
    """What this machine and its browser can do, and what to do about what is missing.

    Example: driver doctor
    """
    found = interruptible(doctor.examine(find_browser(browser)))
    if as_json:
        print(found.model_dump_json(indent=1))
    else:
        print(report.machine_checks(found, *terminal()))
    raise typer.Exit(0 if found.ready else 3)


def setup(browser: BrowserOption = None) -> None:
    """Find a browser, or install one.

    Example: driver setup
    """
    choice = setup_browser(browser, lambda text: print(text, file=sys.stderr, flush=True))
    print(f"{choice.path} ({choice.source})")


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

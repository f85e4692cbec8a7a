"""Finding a browser, or getting one.

Order: an explicit path or `DRIVER_BROWSER`; an installed Chromium, Chrome or Edge; Playwright's own
full Chromium. Chromium's `headless-shell` build is never taken, since it has no WebGPU.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import sync_playwright

from driver.browser.session import BrowserChoice
from driver.errors import BrowserMissing, UsageError

ENVIRONMENT = "DRIVER_BROWSER"

_LINUX_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "chrome",
    "microsoft-edge-stable",
    "microsoft-edge",
)
_LINUX_PLACES = (
    "/usr/lib/chromium/chromium",
    "/usr/lib/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
    "/opt/microsoft/msedge/msedge",
    "/snap/bin/chromium",
)
_MAC_APPS = (
    "Chromium.app/Contents/MacOS/Chromium",
    "Google Chrome.app/Contents/MacOS/Google Chrome",
    "Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)


def find_browser(explicit: str | None) -> BrowserChoice | None:
    """The first browser in the order above, or None.

    Raises:
        UsageError: a browser was named, and it is not an executable file.
    """
    named = _named(explicit)
    if named:
        return named
    for path in _installed():
        if _executable(path):
            return BrowserChoice(path=str(path), source="installed")
    own = _playwright_path()
    if _executable(own):
        return BrowserChoice(path=str(own), source="Playwright's own")
    return None


def setup_browser(explicit: str | None, say: Callable[[str], None]) -> BrowserChoice:
    """A browser, installed where none was found; `say` hears what was done.

    Raises:
        UsageError: a browser was named, and it is not an executable file.
        BrowserMissing: there is none and none could be installed; the message has the command.
    """
    found = find_browser(explicit)
    if found:
        say(f"Browser: {found.path} ({found.source})")
        return found
    failures = []
    for words, commands in _installers():
        say(f"No browser found; {words}: {' && '.join(' '.join(c) for c in commands)}")
        failure = _run_all(commands)
        found = find_browser(None)
        if found:
            say(f"Browser: {found.path} ({found.source}, just installed)")
            return found
        failures.append(failure or "the command succeeded, but no browser is there")
        say(f"That did not work: {failures[-1]}")
    raise BrowserMissing(
        "no Chromium, Chrome or Edge was found and none could be installed.\n"
        f"Install one with:  {_advice()}\n"
        f"or name one with --browser PATH or {ENVIRONMENT}=PATH.\n"
        + "\n".join(f"Tried: {failure}" for failure in failures)
    )


def _named(explicit: str | None) -> BrowserChoice | None:
    given, source = (explicit, "--browser") if explicit else (os.environ.get(ENVIRONMENT), "")
    source = source or ENVIRONMENT
    if not given:
        return None
    place = Path(given).expanduser()
    if sys.platform == "darwin" and place.suffix == ".app":
        place = place / "Contents" / "MacOS" / place.stem
    on_path = shutil.which(given) if os.sep not in given else None
    path = Path(on_path) if on_path else place
    if not _executable(path):
        state = "does not exist" if not path.exists() else "is not an executable file"
        raise UsageError(
            f"browser {given!r} (from {source}) {state}; "
            "give the path of a Chromium, Chrome or Edge executable"
        )
    return BrowserChoice(path=str(path), source=source, named=True)


def _installed() -> Iterator[Path]:
    if sys.platform == "darwin":
        for app in _MAC_APPS:
            yield Path("/Applications") / app
            yield Path.home() / "Applications" / app
        return
    for name in _LINUX_NAMES:
        found = shutil.which(name)
        if found:
            yield Path(found)
    for place in _LINUX_PLACES:
        yield Path(place)


def _playwright_path() -> Path:
    """Where Playwright's full Chromium is or would be."""

    def ask() -> Path:
        with sync_playwright() as playwright:
            return Path(playwright.chromium.executable_path)

    # In a thread of its own, since the synchronous API refuses to run beside an event loop.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _installers() -> Iterator[tuple[str, list[list[str]]]]:
    yield "installing Playwright's Chromium", [_playwright_command()]
    if _is_root() and shutil.which("apt-get"):
        yield (
            "installing Debian's",
            [["apt-get", "update"], ["apt-get", "install", "-y", "chromium"]],
        )


def _playwright_command() -> list[str]:
    command = [sys.executable, "-m", "playwright", "install", "chromium", "--no-shell"]
    if _is_root() and sys.platform == "linux":
        command.append("--with-deps")
    return command


def _advice() -> str:
    if sys.platform == "linux" and shutil.which("apt-get"):
        return "sudo apt-get update && sudo apt-get install -y chromium"
    return " ".join(_playwright_command())


def _run_all(commands: list[list[str]]) -> str | None:
    """Run commands in order; the last lines of the first that fails, or None."""
    for command in commands:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
        if done.returncode:
            tail = (done.stderr or done.stdout).strip().splitlines()[-3:]
            return f"{' '.join(command)}: exit {done.returncode}: {' '.join(tail)[:500]}"
    return None

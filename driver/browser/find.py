"""Finding a browser, or getting one; and where one runs that this machine does not start.

A name (chromium, chrome, chrome-beta, msedge) means the installed browser of that name, at the
places where its installer puts it. `firefox` and `webkit` mean Playwright's own builds: it drives
patched ones only, never an installed Firefox or Safari. Without a name or path, `DRIVER_BROWSER`
counts; without that an installed Chromium, Chrome or Edge; then Playwright's own full Chromium.
Chromium's `headless-shell` build is never taken, since it has no WebGPU.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

from driver.errors import BrowserMissing, UsageError
from driver.records import Record
from driver.server import Site

ENVIRONMENT = "DRIVER_BROWSER"
Engine = Literal["chromium", "firefox", "webkit"]

# Chromium's family: commands on PATH, and places that need not be on it.
_LINUX_NAMES = {
    "chromium": ("chromium", "chromium-browser"),
    "chrome": ("google-chrome-stable", "google-chrome", "chrome"),
    "msedge": ("microsoft-edge-stable", "microsoft-edge"),
    "chrome-beta": ("google-chrome-beta",),
}
_LINUX_PLACES: dict[str, tuple[str, ...]] = {
    "chromium": (
        "/usr/lib/chromium/chromium",
        "/usr/lib/chromium-browser/chromium-browser",
        "/snap/bin/chromium",
    ),
    "chrome": ("/opt/google/chrome/chrome",),
    "msedge": ("/opt/microsoft/msedge/msedge",),
    "chrome-beta": ("/opt/google/chrome-beta/chrome",),
}
_MAC_APPS: dict[str, tuple[str, ...]] = {
    "chromium": ("Chromium.app/Contents/MacOS/Chromium",),
    "chrome": ("Google Chrome.app/Contents/MacOS/Google Chrome",),
    "msedge": ("Microsoft Edge.app/Contents/MacOS/Microsoft Edge",),
    "chrome-beta": ("Google Chrome Beta.app/Contents/MacOS/Google Chrome Beta",),
}
CHANNELS = tuple(_LINUX_NAMES)
ENGINES: tuple[Engine, ...] = ("firefox", "webkit")
NAMES = (*CHANNELS, *ENGINES)
# Looked for when nobody named one; a beta only when it is asked for.
_DEFAULT = ("chromium", "chrome", "msedge")


class Wanted(Record):
    """What a person asked for, as it stands on the command line."""

    browser: str | None = None
    headed: bool = False
    connect: str | None = None
    cdp: str | None = None
    server_port: int = 0


class BrowserChoice(Record):
    """Which browser is used, how it was found, and how it is reached."""

    path: str
    """Its executable; empty where the other side of a connection knows it."""
    source: str
    named: bool = False
    engine: Engine = "chromium"
    channel: str | None = None
    """What a Playwright server is to start."""
    connect: str | None = None
    """Address of a Playwright server that starts it."""
    cdp: str | None = None
    """Address of the Chromium-family browser that runs already."""
    headed: bool = False
    server_port: int = 0
    """Port on which the driver serves its page; 0 is any free one."""

    @property
    def site(self) -> Site:
        """Where the driver serves its page."""
        return Site(port=self.server_port)

    @property
    def endpoint(self) -> str | None:
        """Where it is reached, where it is not started here."""
        return self.connect or self.cdp

    @property
    def host(self) -> str | None:
        """The endpoint's host: all of it that may be shown, as its path may be a secret."""
        return urlsplit(self.endpoint).hostname if self.endpoint else None

    @property
    def label(self) -> str:
        """For messages: the executable, or the way to it, and how it was found."""
        if self.endpoint:
            place = urlsplit(self.endpoint)
            port = f":{place.port}" if place.port else ""
            return f"{self.channel or self.engine} at {self.host}{port} ({self.source})"
        return f"{self.path} ({self.source})"


FOUND = Wanted()


def find_browser(explicit: str | None) -> BrowserChoice | None:
    """The first browser in the order above, or None.

    Raises:
        UsageError: the browser that was named cannot be driven.
        BrowserMissing: it is not there: one of the names above that is not installed, for which the
            message has the command that gets it, or a path that is no executable file.
    """
    named = _named(explicit)
    if named:
        return named
    path = _installed(_DEFAULT)
    if path:
        return BrowserChoice(path=str(path), source="installed")
    own = _playwright_path()
    if _executable(own):
        return BrowserChoice(path=str(own), source="Playwright's own")
    return None


def setup_browser(explicit: str | None, say: Callable[[str], None]) -> BrowserChoice:
    """A browser, installed where none was found; `say` hears what was done.

    Raises:
        UsageError: as `find_browser`.
        BrowserMissing: likewise, or there is none at all and none could be installed.
    """
    found = find_browser(explicit)
    if found:
        say(f"Browser: {found.label}")
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


def elsewhere(wanted: Wanted) -> BrowserChoice | None:
    """The browser behind `--connect` or `--cdp`; None where it is to be started here.

    Nothing is asked over the network yet. Raises UsageError for an address that is none, and for
    options that exclude each other.
    """
    if wanted.connect and wanted.cdp:
        raise UsageError("--connect and --cdp are two ways to a browser; give one of them")
    if wanted.connect:
        _check_address("--connect", wanted.connect, ("ws", "wss"), "ws://HOST:3000/")
        return _on_server(wanted, wanted.connect)
    if not wanted.cdp:
        return None
    _check_address("--cdp", wanted.cdp, ("http", "https", "ws", "wss"), "http://127.0.0.1:9222")
    for option, given in (("--browser", wanted.browser), ("--headed", wanted.headed)):
        if given:
            raise UsageError(
                f"--cdp uses the browser that runs there, as it runs; leave out {option}"
            )
    return BrowserChoice(
        path="", source="--cdp", named=True, cdp=wanted.cdp, server_port=wanted.server_port
    )


def _on_server(wanted: Wanted, address: str) -> BrowserChoice:
    """What a Playwright server is asked to start. A path is one of its own machine."""
    name = wanted.browser or "chromium"
    here = BrowserChoice(
        path="", source="--connect", named=True, connect=address, headed=wanted.headed,
        server_port=wanted.server_port,
    )  # fmt: skip
    if name in ENGINES:
        return here.model_copy(update={"engine": name})
    if name in CHANNELS:
        return here.model_copy(update={"channel": name})
    if "/" in name or "\\" in name:
        return here.model_copy(update={"path": name})
    raise UsageError(
        f"--browser {name!r:.200} with --connect: expected {', '.join(NAMES)}, or the path of a "
        "Chromium-family executable on the server's machine"
    )


def _check_address(option: str, address: str, schemes: Sequence[str], example: str) -> None:
    try:
        parts = urlsplit(address)
        fits = parts.scheme in schemes and parts.hostname and (parts.port or True)
    except ValueError:  # a port that is no number, half an IPv6 address
        fits = False
    if not fits:
        raise UsageError(
            f"{option} {address!r:.200}: expected {' or '.join(f'{s}://…' for s in schemes)}, such "
            f"as {example}"
        )


# --------------------------------------------------------------------------- by name or path


def _named(explicit: str | None) -> BrowserChoice | None:
    given, source = (explicit, "--browser") if explicit else (os.environ.get(ENVIRONMENT), "")
    source = source or ENVIRONMENT
    if not given:
        return None
    for engine in ENGINES:
        if given == engine:
            return _playwright_build(engine, source)
    if given in CHANNELS:
        return _of_channel(given, source)
    place = Path(given).expanduser()
    if sys.platform == "darwin" and place.suffix == ".app":
        place = place / "Contents" / "MacOS" / place.stem
    on_path = shutil.which(given) if os.sep not in given else None
    path = Path(on_path) if on_path else place
    if not _executable(path):
        state = "does not exist" if not path.exists() else "is not an executable file"
        raise BrowserMissing(
            f"browser {given!r} (from {source}) {state}.\n"
            "Give the path of a Chromium, Chrome or Edge executable, or one of "
            f"{', '.join(NAMES)}; `driver setup` gets one."
        )
    return BrowserChoice(path=str(path), source=source, named=True, engine=_engine_of(path, given))


def _of_channel(name: str, source: str) -> BrowserChoice:
    """An installed browser of that name; Playwright's own build where that is what is meant."""
    path = _installed((name,))
    if path is None and name == "chromium" and _executable(own := _playwright_path()):
        path = own
    if path is None:
        raise BrowserMissing(
            f"browser {name} (from {source}) is not installed here.\n"
            f"Get it with:  {_channel_command(name)}\n"
            "or give its path with --browser PATH."
        )
    return BrowserChoice(path=str(path), source=source, named=True)


def _playwright_build(engine: Engine, source: str) -> BrowserChoice:
    """Playwright's own build of Firefox or WebKit."""
    path = _playwright_path(engine)
    if not _executable(path):
        raise BrowserMissing(
            f"browser {engine} (from {source}): Playwright's own build of it is not installed. It "
            f"drives only that one: an installed {_PUBLIC[engine]} cannot be automated this way.\n"
            f"Get it with:  {' '.join(_playwright_command(engine))}"
        )
    return BrowserChoice(path=str(path), source=source, named=True, engine=engine)


_PUBLIC = {"firefox": "Firefox", "webkit": "Safari"}
_PATTERNS = {
    "firefox": re.compile("firefox|nightly|iceweasel", re.IGNORECASE),
    "webkit": re.compile("safari|pw_run|minibrowser", re.IGNORECASE),
}


def _engine_of(path: Path, given: str) -> Engine:
    """What an executable is, by its name; raises UsageError for what Playwright cannot drive."""
    for engine in ENGINES:
        if not _PATTERNS[engine].search(path.resolve().name):
            continue
        if path.resolve() == _playwright_path(engine).resolve():
            return engine
        raise UsageError(
            f"browser {given!r} is an installed {_PUBLIC[engine]}, which Playwright cannot drive: "
            f"it needs its own patched build. Use --browser {engine}, and get it with:  "
            f"{' '.join(_playwright_command(engine))}"
        )
    return "chromium"


def _installed(names: Sequence[str]) -> Path | None:
    """The first installed browser of these names: on PATH, then at the usual places."""
    return next(filter(_executable, _places(names)), None)


def _places(names: Sequence[str]) -> Iterator[Path]:
    if sys.platform == "darwin":
        for name in names:
            for app in _MAC_APPS.get(name, ()):
                yield Path("/Applications") / app
                yield Path.home() / "Applications" / app
        return
    for name in names:
        yield from (Path(found) for word in _LINUX_NAMES[name] if (found := shutil.which(word)))
    for name in names:
        yield from map(Path, _LINUX_PLACES.get(name, ()))


def _playwright_path(engine: Engine = "chromium") -> Path:
    """Where Playwright's own build is or would be; of Chromium the full one."""

    def ask() -> Path:
        with sync_playwright() as playwright:
            return Path(getattr(playwright, engine).executable_path)

    # In a thread of its own, since the synchronous API refuses to run beside an event loop.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


# --------------------------------------------------------------------------- getting one


def _installers() -> Iterator[tuple[str, list[list[str]]]]:
    yield "installing Playwright's Chromium", [_playwright_command()]
    if _is_root() and shutil.which("apt-get"):
        yield (
            "installing Debian's",
            [["apt-get", "update"], ["apt-get", "install", "-y", "chromium"]],
        )


def _playwright_command(what: str = "chromium") -> list[str]:
    command = [sys.executable, "-m", "playwright", "install", what]
    if what == "chromium":
        command.append("--no-shell")
    if _is_root() and sys.platform == "linux":
        command.append("--with-deps")
    return command


def _channel_command(name: str) -> str:
    """How a person gets a browser of Chromium's family."""
    return _advice() if name == "chromium" else " ".join(_playwright_command(name))


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

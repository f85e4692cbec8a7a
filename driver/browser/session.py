"""One browser process, its facts, and fresh pages in it; every flag is here."""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from playwright.async_api import (
    Browser,
    ConsoleMessage,
    Error,
    Playwright,
    Request,
    Response,
    async_playwright,
)
from playwright.async_api import Page as PlaywrightPage

from driver.browser.pages import BrowserFacts
from driver.errors import BrowserMissing, DriverError, SlotError, Unsupported, UsageError
from driver.machine import Host
from driver.records import PageEvent, Record

_FLAGS = (
    # WebGPU on Linux and on adapters that Chromium does not trust yet.
    "--enable-unsafe-webgpu",
    # Nothing of its own accord on the network while measuring. Playwright adds what keeps hidden
    # and occluded pages at full speed; --disable-features is its own, since the last one wins.
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--mute-audio",
)
_LAUNCH_MS = 30_000
_CLOSE_S = 6.0
_PROFILE = "playwright_chromiumdev_profile-"
MAX_EVENTS = 200


class BrowserChoice(Record):
    """Which browser to start, and how it was found."""

    path: str
    source: str
    named: bool = False

    @property
    def host(self) -> Host:
        """A browser that is started here runs on this machine."""
        return Host()

    def session(self, headed: bool = False) -> "BrowserSession":
        """A fresh process of it."""
        return BrowserSession(self, headed)


class BrowserSession:
    """A fresh browser process with a fresh profile; an async context manager.

    Both are gone when it ends, however it ends.

    Raises:
        BrowserMissing: on entry, when the browser does not start.
        UsageError: likewise, when the person named it.
        Unsupported: on entry, when it is to be headed and there is no display.
    """

    def __init__(self, choice: BrowserChoice, headed: bool = False) -> None:
        self._choice = choice
        self._headed = headed
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._process: psutil.Process | None = None
        self._profile: Path | None = None
        self._facts: BrowserFacts | None = None

    @property
    def facts(self) -> BrowserFacts:
        """What was started; known while the session is open and after it."""
        if self._facts is None:
            raise RuntimeError("the browser was not started")
        return self._facts

    @property
    def host(self) -> Host:
        """The machine that it runs on."""
        return self._choice.host

    async def __aenter__(self) -> Self:
        try:
            await _finish(self._start())
        except BaseException:
            await _finish(self._tidy())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _finish(self._tidy())

    @asynccontextmanager
    async def page(self) -> AsyncIterator["Page"]:
        """A fresh context with one page."""
        if self._browser is None:
            raise RuntimeError("the browser was not started")
        try:
            context = await self._browser.new_context(service_workers="block")
            page = Page(self._browser, await context.new_page())
        except Error as error:
            raise SlotError(f"the browser opens no page: {_first_line(error.message)}") from error
        try:
            yield page
        finally:
            await page.close()

    async def _start(self) -> None:
        if self._headed and sys.platform == "linux" and not _has_display():
            raise Unsupported(
                "a headed browser needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set; "
                "leave out --headed, or run under xvfb-run"
            )
        as_root = hasattr(os, "geteuid") and os.geteuid() == 0
        self._playwright = await async_playwright().start()
        try:
            self._browser = await self._playwright.chromium.launch(
                executable_path=self._choice.path,
                # Playwright's own headless mode may pick the build without WebGPU.
                headless=False,
                args=[*_FLAGS, *([] if self._headed else ["--headless=new"])],
                # Chromium's sandbox refuses to run as root on Linux.
                chromium_sandbox=not (as_root and sys.platform == "linux"),
                # Signals are the command's business: it ends this session, which ends the browser.
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
                timeout=_LAUNCH_MS,
            )
        except Error as error:
            raise _did_not_start(self._choice, error.message) from error
        await self._learn(self._browser)

    async def _learn(self, browser: Browser) -> None:
        cdp = await browser.new_browser_cdp_session()
        version = await cdp.send("Browser.getVersion")
        gpu = (await cdp.send("SystemInfo.getInfo"))["gpu"]
        processes = (await cdp.send("SystemInfo.getProcessInfo"))["processInfo"]
        await cdp.detach()
        pid = next(item["id"] for item in processes if item["type"] == "browser")
        self._process = psutil.Process(pid)
        argv = self._process.cmdline()
        self._profile = next(
            (Path(word.partition("=")[2]) for word in argv if word.startswith("--user-data-dir=")),
            None,
        )
        executable = Path(self._process.exe())
        attributes = gpu.get("auxAttributes") or {}
        self._facts = BrowserFacts(
            name=version["product"].split("/")[0],
            version=version["product"].split("/")[-1],
            source=self._choice.source,
            executable=str(executable),
            executable_sha256=await asyncio.to_thread(_digest, executable),
            argv=tuple(argv),
            headless=not self._headed,
            user_agent=version["userAgent"],
            gpu_devices=tuple(gpu.get("devices", ())),
            gl_renderer=attributes.get("glRenderer"),
            gl_vendor=attributes.get("glVendor"),
        )

    async def _tidy(self) -> None:
        """Closes politely, then makes sure of the process, its children and its profile."""
        family = _family(self._process)
        for close in (
            self._browser.close if self._browser else None,
            self._playwright.stop if self._playwright else None,
        ):
            # Whatever goes wrong with a connection that may be dead already, the rest must happen.
            with contextlib.suppress(Exception):
                if close:
                    await asyncio.wait_for(close(), _CLOSE_S)
        await asyncio.to_thread(_end_processes, family)
        if self._profile and self._profile.name.startswith(_PROFILE):
            shutil.rmtree(self._profile, ignore_errors=True)
        self._browser = self._playwright = self._process = None


class Page:
    """One page: its events, and a future that resolves when it can answer no more."""

    def __init__(self, browser: Browser, page: PlaywrightPage) -> None:
        self.events: list[PageEvent] = []
        self.troubled = asyncio.Event()
        """Set when something happened that may keep the page from ever answering."""
        self.failed: asyncio.Future[PageEvent] = asyncio.get_running_loop().create_future()
        self._browser = browser
        self._page = page
        self._closing = False
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._trouble("page-error", str(error)))
        page.on("requestfailed", self._request_failed)
        page.on("response", self._response)
        page.on("crash", lambda _: self._end("crash", "the page's process crashed"))
        browser.on("disconnected", self._disconnected)

    async def open(self, url: str) -> None:
        """Load the page; its job runs from then on.

        Raises:
            SlotError: it could not be loaded.
        """
        try:
            await self._page.goto(url, wait_until="commit")
        except Error as error:
            raise SlotError(f"the page could not be opened: {error.message}") from error

    async def close(self) -> None:
        """Close the page with its context; what its console still says is heard."""
        self._closing = True
        # A crashed renderer or a dead browser cannot close its page; the session's end can.
        with contextlib.suppress(Error, TimeoutError):
            await asyncio.wait_for(self._page.context.close(), _CLOSE_S)
        self._browser.remove_listener("disconnected", self._disconnected)

    def _note(self, kind: Any, message: str) -> PageEvent:
        event = PageEvent(kind=kind, message=message[:2000])
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        return event

    def _trouble(self, kind: str, message: str) -> None:
        self._note(kind, message)
        self.troubled.set()

    def _end(self, kind: str, message: str) -> None:
        if not self.failed.done() and not self._closing:
            self.failed.set_result(self._note(kind, message))

    def _disconnected(self, _: Browser) -> None:
        self._end("disconnected", "the browser went away")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            where = _local(message.location.get("url", ""))
            self._note(f"console-{message.type}", f"{message.text} ({where})")

    def _request_failed(self, request: Request) -> None:
        if not self._closing:  # closing cuts off whatever is still on its way
            what = f"{request.method} {_local(request.url)}: {request.failure}"
            self._trouble("request-failed", what)

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self._trouble("http-error", f"{response.status} {_local(response.url)}")


def _local(url: str) -> str:
    """A URL of the loopback server without host, port and token, which differ on every run."""
    return url.split("/", 4)[-1]


@lru_cache
def _digest(path: Path) -> str | None:
    """SHA-256 of an executable; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _did_not_start(choice: BrowserChoice, message: str) -> DriverError:
    # What the process itself said is in the log that follows Playwright's own first line.
    said = dict.fromkeys(re.findall(r"\[err\] (.*\S)", message))
    reason = " | ".join([*said][-3:])[:600] or _first_line(message)
    words = f"the browser {choice.path} ({choice.source}) did not start: {reason}"
    if choice.named:
        return UsageError(f"{words}\nIs it a Chromium, Chrome or Edge for this system?")
    return BrowserMissing(f"{words}\nInstall one with: driver setup, or name one: --browser PATH")


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end also when this task is cancelled meanwhile; then it is cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    failure = None if task.cancelled() else task.exception()
    if cancelled:
        raise cancelled
    if failure:
        raise failure


def _family(process: psutil.Process | None) -> list[psutil.Process]:
    if process is None:
        return []
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def _end_processes(family: list[psutil.Process]) -> None:
    """Kills what is still there of a browser that was asked to close."""
    _, alive = psutil.wait_procs(family, timeout=2)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)

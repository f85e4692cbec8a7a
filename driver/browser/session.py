"""One browser, its facts, and fresh pages in it."""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
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

from driver.browser.facts import BrowserFacts, learn
from driver.browser.find import BrowserChoice
from driver.browser.opening import open_browser, unreachable
from driver.errors import SlotError
from driver.records import PageEvent
from driver.server import JobServer

_CLOSE_S = 6.0
_PROFILE = re.compile(r"playwright_(chromium|firefox|webkit)dev_profile-")
_LOCK = re.compile(r"\.?(org\.chromium\.Chromium|com\.google\.Chrome)\.\w+")
MAX_EVENTS = 200


class BrowserSession:
    """A browser for a while; an async context manager.

    One that is started here is a fresh process with a fresh profile, and both are gone when this
    ends, however it ends. One that a Playwright server starts is the server's to end. One that was
    running goes on: only the pages opened in it are closed.

    Raises, on entry:
        BrowserMissing: the browser does not start, or nothing answers at its address.
        UsageError: it does not start, and the person named its executable.
        Unsupported: it is to be headed and there is no display.
        SlotError: it went away before it could be asked what it is.
    """

    def __init__(self, choice: BrowserChoice) -> None:
        self._choice = choice
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._process: psutil.Process | None = None  # of our own making, so ours to end
        self._profile: Path | None = None
        self._lock: Path | None = None  # a folder beside it, that Chromium itself makes
        self._facts: BrowserFacts | None = None
        self._elsewhere: psutil.Process | None = None  # started by somebody else, on this machine

    @property
    def processes(self) -> tuple[psutil.Process, ...] | None:
        """Of the browser, beside those that this process started; None where they are unknown."""
        if not self._choice.endpoint:
            return ()
        return (self._elsewhere,) if self._elsewhere else None

    @property
    def facts(self) -> BrowserFacts:
        """What was opened; known while the session is open and after it."""
        if self._facts is None:
            raise RuntimeError("the browser was not started")
        return self._facts

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
            page = await self._new_page(self._browser)
        except Error as error:
            raise SlotError(f"the browser opens no page: {_first_line(error.message)}") from error
        try:
            yield page
        finally:
            await page.close()

    async def reach(self, url: str) -> None:
        """Makes sure that a browser which was not started here gets to the driver's server.

        Raises:
            Unsupported: it does not; the message has what leads it here.
            SlotError: it opens no page.
        """
        if not self._choice.endpoint:
            return
        async with self.page() as page:
            try:
                await page.open(url)
            except SlotError as error:
                raise unreachable(self._choice, url, str(error)) from error

    async def _new_page(self, browser: Browser) -> "Page":
        try:
            context = await browser.new_context(service_workers="block")
        except Error:
            # Chrome on a phone has no contexts beside the person's own.
            if not self._choice.cdp or not browser.contexts:
                raise
            return Page(browser, await browser.contexts[0].new_page(), alone=False)
        return Page(browser, await context.new_page())

    async def _start(self) -> None:
        self._playwright = await async_playwright().start()
        before = _children()
        self._browser = await open_browser(self._playwright, self._choice)
        own = not self._choice.endpoint
        started = _started(before, self._choice.path) if own else None
        try:
            self._facts, process = await learn(self._browser, self._choice, started)
        except Error as error:
            why = _first_line(error.message)
            raise SlotError(
                f"the browser went away at once, {self._choice.label}: {why}"
            ) from error
        if own:
            self._process, self._profile = process, _profile_of(self._facts.argv)
            self._lock = _lock_of(self._profile) if self._profile else None
        else:
            self._elsewhere = process

    async def _tidy(self) -> None:
        """Closes politely, then makes sure of what was started here: processes and profile."""
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
        if self._profile and _PROFILE.match(self._profile.name):
            shutil.rmtree(self._profile, ignore_errors=True)
        if self._lock:  # left by one that was killed
            shutil.rmtree(self._lock, ignore_errors=True)
        self._browser = self._playwright = self._process = None


@dataclass(frozen=True)
class ChosenBrowser:
    """A run's browser that the driver starts, or connects to: a new session for every block."""

    choice: BrowserChoice

    @property
    def here(self) -> bool:
        """Whether it surely takes this machine's memory."""
        return not self.choice.endpoint

    def server(self) -> JobServer:
        """The run's own."""
        return JobServer(site=self.choice.site)

    def session(self) -> BrowserSession:
        """A fresh process of it where it is started here."""
        return BrowserSession(self.choice)


class Page:
    """One page: its events, and a future that resolves when it can answer no more."""

    def __init__(self, browser: Browser, page: PlaywrightPage, alone: bool = True) -> None:
        """`alone`: its context is its own, and closes with it."""
        self.events: list[PageEvent] = []
        self.troubled = asyncio.Event()
        """Set when something happened that may keep the page from ever answering."""
        self.failed: asyncio.Future[PageEvent] = asyncio.get_running_loop().create_future()
        self._browser = browser
        self._page = page
        self._alone = alone
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
        """Close the page, with its context where that is its own.

        What its console still says is heard.
        """
        self._closing = True
        # A crashed renderer or a dead browser cannot close its page; the session's end can.
        with contextlib.suppress(Error, TimeoutError):
            ends = self._page.context if self._alone else self._page
            await asyncio.wait_for(ends.close(), _CLOSE_S)
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


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _started(before: set[int], path: str) -> psutil.Process | None:
    """The process that came forth meanwhile and runs a file of that executable's folder."""
    folder = Path(path).resolve().parent
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.pid not in before and Path(child.exe()).is_relative_to(folder):
                return child
    return None


def _profile_of(argv: tuple[str, ...]) -> Path | None:
    """The folder that Playwright made, as the browser was told it."""
    for word in argv:
        path = Path(word.partition("=")[2] if word.startswith("--user-data-dir=") else word)
        if _PROFILE.match(path.name):
            return path
    return None


def _lock_of(profile: Path) -> Path | None:
    """Chromium's folder outside the profile, with the socket by which a second start finds it."""
    try:
        folder = (profile / "SingletonSocket").readlink().parent
    except OSError:
        return None
    return folder if _LOCK.fullmatch(folder.name) else None


def _family(process: psutil.Process | None) -> list[psutil.Process]:
    if process is None:
        return []
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def _end_processes(family: list[psutil.Process]) -> None:
    """Kills what is still there of a browser that was closed, and waits until none of it runs.

    Nothing of it has anything left to do: its profile goes too. One that has ended and that whoever
    inherited it has not asked for yet runs no more.
    """
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    until = time.monotonic() + _CLOSE_S
    while any(map(_runs, family)) and time.monotonic() < until:
        time.sleep(0.01)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False

"""The person's tab as a browser: every job runs in a fresh frame of it.

The tab keeps one stream of events open. Through it the driver asks for a frame, or for none; the
page answers when a frame is gone. A tab that is closed, reloaded or out of reach ends its job.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal
from urllib.parse import urlsplit

from driver.browser import BrowserFacts
from driver.errors import SlotError
from driver.records import BY_HAND, PageEvent
from driver.serve.state import Hello

# A stream that breaks off is opened again by the browser itself within a few seconds.
LOST_S = 8.0
CLOSE_S = 6.0
# A device that sleeps or has left its network breaks nothing off: it just does not answer.
ANSWER_S = 10.0

# Why facts are missing of a browser that a person opened.
_NO_PAGE_TELLS = "a person opened the browser, and no page tells"
_NOT_READ = "warnings that the browser prints, about its GPU for example, are not seen from a page"

# Names that a user agent gives itself, the more special first.
_AGENTS = (
    (r"\bEdgA?/([\d.]+)", "Edge"),
    (r"\bEdgiOS/([\d.]+)", "Edge (iOS)"),
    (r"\bOPR/([\d.]+)", "Opera"),
    (r"\bSamsungBrowser/([\d.]+)", "Samsung Internet"),
    (r"\bFxiOS/([\d.]+)", "Firefox (iOS)"),
    (r"\bCriOS/([\d.]+)", "Chrome (iOS)"),
    (r"\bFirefox/([\d.]+)", "Firefox"),
    (r"\b(?:Headless)?Chrom(?:e|ium)/([\d.]+)", "Chrome"),
    (r"\bVersion/([\d.]+).*\bSafari/", "Safari"),
)
_ENGINES: tuple[tuple[str, Literal["chromium", "firefox", "webkit"]], ...] = (
    (r"\bFirefox/", "firefox"),
    (r"\b(?:Headless)?Chrom(?:e|ium)/", "chromium"),
    (r"\bAppleWebKit/", "webkit"),
)
_SYSTEMS = (
    (r"\biPhone\b", "iPhone"),
    (r"\biPad\b", "iPad"),
    (r"\bAndroid\b", "Android"),
    (r"\bCrOS\b", "ChromeOS"),
    (r"\bWindows\b", "Windows"),
    (r"\bMac OS X\b|\bMacintosh\b", "Darwin"),
    (r"\bLinux\b|\bX11\b", "Linux"),
)


def browser_of(user_agent: str, hello: Hello) -> tuple[str, str]:
    """Name and version; some pages know the version more exactly than the user agent says."""
    name, version = "unknown browser", "unknown"
    for pattern, called in _AGENTS:
        if found := re.search(pattern, user_agent):
            name, version = called, found.group(1)
            break
    full = {brand.brand: brand.version for brand in hello.brands}
    for brand in (f"Microsoft {name}", f"Google {name}", name, "Chromium"):
        given = full.get(brand, "")
        if re.fullmatch(r"\d[\d.]{0,39}", given) and given.split(".")[0] == version.split(".")[0]:
            return name, given
    return name, version


def system_of(user_agent: str) -> str:
    """The system that a user agent names: Linux, Darwin, Windows, Android, iPhone, …"""
    return next((s for pattern, s in _SYSTEMS if re.search(pattern, user_agent)), "unknown system")


def engine_of(user_agent: str) -> Literal["chromium", "firefox", "webkit", "unknown"]:
    """What renders behind a user agent; on an iPhone or iPad that is WebKit under every name."""
    if re.search(r"\biPhone\b|\biPad\b", user_agent):
        return "webkit"
    return next((e for pattern, e in _ENGINES if re.search(pattern, user_agent)), "unknown")


def facts_of(user_agent: str, hello: Hello, elsewhere: bool) -> BrowserFacts:
    """What is known of a browser that a person opened, here or on another device."""
    name, version = browser_of(user_agent, hello)
    dark = ("executable", "executable_sha256", "argv", "preferences", "headless", "gpu_devices",
            "gl_renderer", "gl_vendor")  # fmt: skip
    return BrowserFacts(
        name=name,
        version=version,
        engine=engine_of(user_agent),
        source=BY_HAND,
        executable=None,
        executable_sha256=None,
        argv=(),
        headless=None,
        user_agent=user_agent[:500],
        gpu_devices=(),
        gl_renderer=None,
        gl_vendor=None,
        remote=elsewhere,
        process="kept",
        unknown=dict.fromkeys(dark, _NO_PAGE_TELLS) | {"console": _NOT_READ},
    )


# Whether the page is open, as far as is known: it does not answer, or nothing of it is left.
Standing = Literal["there", "silent", "gone"]
# Name and data of events for the page; None is the end.
Stream = asyncio.Queue[tuple[str, str] | None]


class Tab:
    """What the driver knows of the tab, and its way to it."""

    def __init__(self) -> None:
        self.facts: BrowserFacts | None = None
        self.connected = asyncio.Event()
        self.load = ""
        """The page load that the stream belongs to; a reload is another one."""
        self.tab = ""
        self.standing: Standing = "there"
        self.on_standing: Callable[[], None] = lambda: None
        """Called whenever `standing` has changed."""
        self._stream: Stream | None = None
        self._page: TabPage | None = None
        self._serial = 0
        self._path: str | None = None
        self._gone = asyncio.Event()
        self._lost: asyncio.TimerHandle | None = None
        self._unanswered: asyncio.TimerHandle | None = None

    def introduce(self, user_agent: str, hello: Hello, elsewhere: bool) -> None:
        """The browser has claimed the session."""
        self.facts = facts_of(user_agent, hello, elsewhere)

    # ----------------------------------------------------------------------- the stream

    def attach(self, tab: str, load: str) -> Stream:
        """A stream has been opened; what is to be sent through it comes in the queue, None ends it.

        Raises SlotError when another tab of the same browser holds the session, and answers.
        """
        if self._stream and tab != self.tab and self.standing == "there":
            raise SlotError(
                "this session is open in another tab of this browser: go on there, or close that "
                "tab and reload this one"
            )
        if self._stream:
            self._stream.put_nowait(None)
        # A job that still waits for its frame is served by whichever page comes.
        if load != self.load and self._path is not None:
            self._fail("the page was reloaded while a job ran in it")
            self._path = None
        self._forget_timers()
        self.tab, self.load = tab, load
        self._stream = asyncio.Queue()
        self._tell_frame()
        self.connected.set()
        self._stand("there")
        return self._stream

    def detach(self, stream: Stream) -> None:
        """A stream is over; the tab has some seconds to open another."""
        if stream is not self._stream:
            return
        self._stream = None
        self.connected.clear()
        self._forget_timers()
        self._lost = asyncio.get_running_loop().call_later(LOST_S, self._leave)

    def ask(self) -> None:
        """Ask the page for a sign of life; a page that gives none is `silent`."""
        self.send("ask", "{}")
        if self._unanswered is None:
            self._unanswered = asyncio.get_running_loop().call_later(
                ANSWER_S, self._stand, "silent"
            )

    def answered(self) -> None:
        """The page has said something."""
        if self._stream:
            self._forget_timers()
            self._stand("there")

    def send(self, event: str, data: str) -> None:
        """Send an event, if a tab is there to hear it."""
        if self._stream:
            self._stream.put_nowait((event, data))

    def end(self) -> None:
        """No more events."""
        self._forget_timers()
        if self._stream:
            self._stream.put_nowait(None)

    def _forget_timers(self) -> None:
        for timer in (self._lost, self._unanswered):
            if timer:
                timer.cancel()
        self._lost = self._unanswered = None

    def _stand(self, standing: Standing) -> None:
        if standing != self.standing:
            self.standing = standing
            self.on_standing()

    def _leave(self) -> None:
        self._fail("the tab was closed, or its connection was lost")
        self._stand("gone")

    def _fail(self, reason: str) -> None:
        self._gone.set()
        if self._page:
            self._page.end(reason)

    # ----------------------------------------------------------------------- frames

    @asynccontextmanager
    async def page(self) -> AsyncIterator["TabPage"]:
        """A fresh frame, once it is opened."""
        page = self._page = TabPage(self)
        try:
            yield page
        finally:
            page.closing = True
            self._page = None
            self._show(None)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), CLOSE_S)

    async def show(self, path: str) -> None:
        """Put a frame with this path into the tab. Raises SlotError when there is none."""
        try:
            await asyncio.wait_for(self.connected.wait(), LOST_S)
        except TimeoutError:
            raise SlotError("no tab is open: the page of `driver serve` was closed") from None
        self._show(path)

    def _show(self, path: str | None) -> None:
        self._serial += 1
        if path is None and self._path is None:
            self._gone.set()
            return
        self._path = path
        self._gone.clear()
        if not self.connected.is_set():
            self._gone.set()
        self._tell_frame()

    def _tell_frame(self) -> None:
        path = "null" if self._path is None else f'"{self._path}"'
        self.send("frame", f'{{"serial": {self._serial}, "path": {path}}}')

    def frame_gone(self, serial: int) -> None:
        """The page says that there is no frame any more."""
        if serial == self._serial and self._path is None:
            self._gone.set()


class TabPage:
    """One frame of the tab, as `measure` sees a page."""

    def __init__(self, tab: Tab) -> None:
        self.events: list[PageEvent] = []
        self.troubled = asyncio.Event()
        self.failed: asyncio.Future[PageEvent] = asyncio.get_running_loop().create_future()
        self.closing = False
        self._tab = tab

    async def open(self, url: str) -> None:
        """Load the job's page in a frame. Raises SlotError when no tab is there."""
        # Relative: the tab may call this machine by another name than the driver does.
        await self._tab.show("./?" + urlsplit(url).query)

    def end(self, reason: str) -> None:
        """The frame can answer no more."""
        if not self.failed.done() and not self.closing:
            event = PageEvent(kind="disconnected", message=reason)
            self.events.append(event)
            self.failed.set_result(event)


class TabSession:
    """The tab for as long as a block lasts: it was open before, and stays so."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab

    @property
    def facts(self) -> BrowserFacts:
        """What is known of the browser."""
        if self._tab.facts is None:
            raise RuntimeError("no browser has opened the page")
        return self._tab.facts

    @property
    def processes(self) -> None:
        """A person's browser does not tell which are its own."""

    async def reach(self, url: str) -> None:
        """It came from there."""

    def page(self) -> AbstractAsyncContextManager[TabPage]:
        """A fresh frame."""
        return self._tab.page()

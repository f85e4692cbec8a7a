"""One browser process, its facts, and fresh pages in it; every flag is here."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
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

from driver.browser.find import BrowserChoice
from driver.errors import BrowserMissing, SlotError
from driver.records import PageEvent, Record

_FLAGS = (
    # WebGPU on Linux and on adapters that Chromium does not trust yet.
    "--enable-unsafe-webgpu",
    # A hidden or occluded page must not be slowed down; Playwright sets the rest of this family.
    "--disable-features=CalculateNativeWinOcclusion,IntensiveWakeUpThrottling",
    # Nothing of its own accord on the network or the disk while measuring.
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--mute-audio",
)
_LAUNCH_MS = 60_000
_PROFILE = "playwright_chromiumdev_profile-"
MAX_EVENTS = 200


class BrowserFacts(Record):
    """What was really started."""

    name: str
    version: str
    source: str
    executable: str
    executable_sha256: str | None
    argv: tuple[str, ...]
    headless: bool
    user_agent: str
    gpu_devices: tuple[dict[str, Any], ...]
    gl_renderer: str | None
    gl_vendor: str | None
    gpu_driver: str | None


class BrowserSession:
    """A fresh browser process with a fresh profile; an async context manager.

    Both are gone when it ends, however it ends.

    Raises:
        BrowserMissing: on entry, when the browser does not start.
    """

    def __init__(self, choice: BrowserChoice, headed: bool = False) -> None:
        self._choice = choice
        self._headed = headed
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._process: psutil.Process | None = None
        self._facts: BrowserFacts | None = None

    @property
    def facts(self) -> BrowserFacts:
        """What was started; known while the session is open and after it."""
        if self._facts is None:
            raise RuntimeError("the browser was not started")
        return self._facts

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    @asynccontextmanager
    async def page(self) -> AsyncIterator["Page"]:
        """A fresh context with one page."""
        assert self._browser is not None
        context = await self._browser.new_context(service_workers="block")
        try:
            yield Page(self._browser, await context.new_page())
        finally:
            with contextlib.suppress(Error):
                await context.close()

    async def _start(self) -> None:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        self._playwright = await async_playwright().start()
        try:
            self._browser = await self._playwright.chromium.launch(
                executable_path=self._choice.path,
                # Playwright's own headless mode may pick the build without WebGPU.
                headless=False,
                args=[*_FLAGS, *([] if self._headed else ["--headless=new"])],
                # Chromium's sandbox refuses to run as root on Linux.
                chromium_sandbox=not (root and sys.platform == "linux"),
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
                timeout=_LAUNCH_MS,
            )
        except Error as error:
            reason = next((line for line in error.message.splitlines() if line.strip()), "")
            raise BrowserMissing(
                f"the browser {self._choice.path} ({self._choice.source}) did not start: {reason}\n"
                "Name another one with --browser PATH, or install one with: driver setup"
            ) from error
        await self._learn()

    async def _learn(self) -> None:
        assert self._browser is not None
        cdp = await self._browser.new_browser_cdp_session()
        version = await cdp.send("Browser.getVersion")
        info = await cdp.send("SystemInfo.getInfo")
        processes = (await cdp.send("SystemInfo.getProcessInfo"))["processInfo"]
        await cdp.detach()
        pid = next(item["id"] for item in processes if item["type"] == "browser")
        self._process = psutil.Process(pid)
        executable = Path(self._process.exe())
        gpu = info["gpu"]
        auxiliary = gpu.get("auxAttributes") or {}
        self._facts = BrowserFacts(
            name=version["product"].split("/")[0],
            version=version["product"].split("/")[-1],
            source=self._choice.source,
            executable=str(executable),
            executable_sha256=await asyncio.to_thread(_digest, executable),
            argv=tuple(self._process.cmdline()),
            headless=not self._headed,
            user_agent=version["userAgent"],
            gpu_devices=tuple(gpu.get("devices", ())),
            gl_renderer=auxiliary.get("glRenderer"),
            gl_vendor=auxiliary.get("glVendor"),
            gpu_driver=" ".join(
                part
                for device in gpu.get("devices", ())[:1]
                for part in (device.get("driverVendor"), device.get("driverVersion"))
                if part
            )
            or None,
        )

    async def _stop(self) -> None:
        # A second cancellation must not cut the tidying short.
        await asyncio.shield(asyncio.ensure_future(self._tidy()))

    async def _tidy(self) -> None:
        if self._browser:
            with contextlib.suppress(Error, TimeoutError):
                await asyncio.wait_for(self._browser.close(), 10)
        if self._playwright:
            with contextlib.suppress(Error, TimeoutError):
                await asyncio.wait_for(self._playwright.stop(), 10)
        self._browser = self._playwright = None


class Page:
    """One page: its events, and a future that resolves when it can answer no more."""

    def __init__(self, browser: Browser, page: PlaywrightPage) -> None:
        self._page = page
        self.events: list[PageEvent] = []
        self.failed: asyncio.Future[PageEvent] = asyncio.get_running_loop().create_future()
        self.troubled = asyncio.Event()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._trouble("page-error", str(error)))
        page.on("requestfailed", self._request_failed)
        page.on("response", self._response)
        page.on("crash", lambda _: self._end("crash", "the page's process crashed"))
        browser.on("disconnected", lambda _: self._end("disconnected", "the browser went away"))

    async def open(self, url: str) -> None:
        """Load the page; its job runs from then on.

        Raises:
            SlotError: it could not be loaded.
        """
        try:
            await self._page.goto(url, wait_until="commit")
        except Error as error:
            raise SlotError(f"the page could not be opened: {error.message}") from error

    def _note(self, kind: Any, message: str) -> PageEvent:
        event = PageEvent(kind=kind, message=message[:2000])
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        return event

    def _trouble(self, kind: str, message: str) -> None:
        self._note(kind, message)
        self.troubled.set()

    def _end(self, kind: str, message: str) -> None:
        if not self.failed.done():
            self.failed.set_result(self._note(kind, message))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note(f"console-{message.type}", message.text)

    def _request_failed(self, request: Request) -> None:
        self._trouble("request-failed", f"{request.method} {request.url}: {request.failure}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self._trouble("http-error", f"{response.status} {response.url}")


@lru_cache
def _digest(path: Path) -> str | None:
    """SHA-256 of an executable; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None

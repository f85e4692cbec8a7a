"""What a run asks of a browser, whoever opened it: facts about it, and fresh pages."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from driver.machine import Host
from driver.records import PageEvent, Record


class BrowserFacts(Record):
    """What was really started, or found open. None or empty where nobody can tell."""

    name: str
    version: str
    source: str
    executable: str | None
    executable_sha256: str | None
    argv: tuple[str, ...]
    headless: bool
    user_agent: str
    gpu_devices: tuple[dict[str, Any], ...]
    gl_renderer: str | None
    gl_vendor: str | None
    notes: tuple[str, ...] = ()
    """What is measured otherwise than in a browser that the driver starts."""


class OpenPage(Protocol):
    """One fresh page."""

    events: list[PageEvent]
    troubled: asyncio.Event
    """Set when something happened that may keep the page from ever answering."""
    failed: asyncio.Future[PageEvent]
    """Done when the page can answer no more."""

    async def open(self, url: str) -> None:
        """Load the page; its job runs from then on. Raises SlotError."""


class Session(Protocol):
    """A browser that is open."""

    @property
    def facts(self) -> BrowserFacts:
        """What it is."""

    @property
    def host(self) -> Host:
        """The machine that it runs on."""

    def page(self) -> AbstractAsyncContextManager[OpenPage]:
        """A fresh page. Raises SlotError when none can be opened."""


class Browser(Protocol):
    """Where a run's pages are opened: a browser to start, or a person's own."""

    @property
    def host(self) -> Host:
        """The machine that it runs on."""

    def session(self, headed: bool = False) -> AbstractAsyncContextManager[Session]:
        """As fresh a browser as there can be."""

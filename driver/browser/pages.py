"""What a run asks of a browser, whoever opened it: facts about it, and fresh pages."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import psutil

from driver.browser.facts import BrowserFacts
from driver.records import PageEvent
from driver.server import JobServer


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
    def processes(self) -> tuple[psutil.Process, ...] | None:
        """Of the browser, beside those that this process started; None where they are unknown."""

    async def reach(self, url: str) -> None:
        """Makes sure that it gets to the driver's server. Raises Unsupported or SlotError."""

    def page(self) -> AbstractAsyncContextManager[OpenPage]:
        """A fresh page. Raises SlotError when none can be opened."""


class Browser(Protocol):
    """Where a run's pages come from and are opened: the driver's own, or a person's."""

    @property
    def here(self) -> bool:
        """Whether it surely takes this machine's memory, so that a run must fit beside it."""

    def server(self) -> AbstractAsyncContextManager[JobServer]:
        """What serves its pages, for one run."""

    def session(self) -> AbstractAsyncContextManager[Session]:
        """As fresh a browser as there can be."""

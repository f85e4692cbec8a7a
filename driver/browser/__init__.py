"""Finding, installing and driving a browser: the only package that knows browser flags."""

from driver.browser.facts import BrowserFacts
from driver.browser.find import (
    FOUND,
    NAMES,
    BrowserChoice,
    Wanted,
    elsewhere,
    find_browser,
    setup_browser,
)
from driver.browser.pages import Browser, OpenPage, Session
from driver.browser.session import BrowserSession, ChosenBrowser, Page

__all__ = [
    "FOUND",
    "NAMES",
    "Browser",
    "BrowserChoice",
    "BrowserFacts",
    "BrowserSession",
    "ChosenBrowser",
    "OpenPage",
    "Page",
    "Session",
    "Wanted",
    "elsewhere",
    "find_browser",
    "setup_browser",
]

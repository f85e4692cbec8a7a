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
from driver.browser.session import BrowserSession, Page

__all__ = [
    "FOUND",
    "NAMES",
    "BrowserChoice",
    "BrowserFacts",
    "BrowserSession",
    "Page",
    "Wanted",
    "elsewhere",
    "find_browser",
    "setup_browser",
]

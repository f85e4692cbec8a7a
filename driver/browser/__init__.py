"""Finding, installing and driving a browser: the only package that knows browser flags."""

from driver.browser.find import BrowserChoice, find_browser, setup_browser
from driver.browser.session import BrowserFacts, BrowserSession, Page

__all__ = [
    "BrowserChoice",
    "BrowserFacts",
    "BrowserSession",
    "Page",
    "find_browser",
    "setup_browser",
]

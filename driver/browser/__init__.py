"""Finding, installing and driving a browser: the only package that knows browser flags."""

from driver.browser.find import find_browser, setup_browser
from driver.browser.pages import Browser, BrowserFacts, OpenPage, Session
from driver.browser.session import BrowserChoice, BrowserSession, Page

__all__ = [
    "Browser",
    "BrowserChoice",
    "BrowserFacts",
    "BrowserSession",
    "OpenPage",
    "Page",
    "Session",
    "find_browser",
    "setup_browser",
]

"""The three ways to a browser: started here, by a Playwright server, or running already.

Every flag and preference is here.
"""

import json
import os
import re
import sys
from importlib.metadata import version
from typing import Any

from playwright.async_api import Browser, BrowserType, Error, Playwright

from driver.browser.find import BrowserChoice
from driver.errors import BrowserMissing, Unsupported

FLAGS = (
    # WebGPU on Linux and on adapters that Chromium does not trust yet.
    "--enable-unsafe-webgpu",
    # Nothing of its own accord on the network while measuring. Playwright adds what keeps hidden
    # and occluded pages at full speed; --disable-features is its own, since the last one wins.
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--mute-audio",
)
# Firefox releases WebGPU system by system; where it is not yet, these turn it on, also in workers.
PREFERENCES = {
    "dom.webgpu.enabled": True,
    "dom.webgpu.workers.enabled": True,
    "gfx.webgpu.ignore-blocklist": True,
}
_OPEN_MS = 30_000
# The page is served on this machine's loopback; the far browser gets there through the connection.
_EXPOSED = "<loopback>"


async def open_browser(playwright: Playwright, choice: BrowserChoice) -> Browser:
    """The browser of that choice, ready for pages.

    Raises:
        Unsupported: it is to be headed here, and there is no display.
        BrowserMissing: it does not start, or nothing answers at its address.
    """
    kind: BrowserType = getattr(playwright, choice.engine)
    if choice.cdp:
        return await _attached(kind, choice, choice.cdp)
    if choice.connect:
        return await _on_server(kind, choice, choice.connect)
    if choice.headed and sys.platform == "linux" and not _has_display():
        raise Unsupported(
            "a headed browser needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set; "
            "leave out --headed, or run under xvfb-run"
        )
    try:
        return await kind.launch(
            executable_path=choice.path,
            # Signals are the command's business: it ends this session, which ends the browser.
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            timeout=_OPEN_MS,
            **_launch_options(choice),
        )
    except Error as error:
        raise _did_not_start(choice, error.message) from error


def preferences(choice: BrowserChoice) -> dict[str, bool]:
    """What is set in the browser's profile."""
    return dict(PREFERENCES) if choice.engine == "firefox" and not choice.cdp else {}


def _launch_options(choice: BrowserChoice) -> dict[str, Any]:
    if choice.engine == "chromium":
        as_root = hasattr(os, "geteuid") and os.geteuid() == 0
        return {
            # Playwright's own headless mode may pick the build without WebGPU.
            "headless": False,
            "args": [*FLAGS, *([] if choice.headed else ["--headless=new"])],
            # Chromium's sandbox refuses to run as root on Linux.
            "chromium_sandbox": not (as_root and sys.platform == "linux"),
        }
    options: dict[str, Any] = {"headless": not choice.headed}
    if choice.engine == "firefox":
        options["firefox_user_prefs"] = PREFERENCES
    return options


async def _on_server(kind: BrowserType, choice: BrowserChoice, address: str) -> Browser:
    """A Playwright server starts the browser; one that has started it already gives that one.

    Servers without `--unsafe` leave out arguments, preferences and paths in silence; what the
    browser then lacks, its pages say.
    """
    asked: dict[str, Any] = {"headless": not choice.headed, "timeout": _OPEN_MS}
    if choice.engine == "chromium":
        asked["args"] = list(FLAGS)
    if choice.engine == "firefox":
        asked["firefoxUserPrefs"] = PREFERENCES
    if choice.channel:
        asked["channel"] = choice.channel
    if choice.path:
        asked["executablePath"] = choice.path
    try:
        return await kind.connect(
            address,
            expose_network=_EXPOSED,
            headers={"x-playwright-launch-options": json.dumps(asked)},
            timeout=2 * _OPEN_MS,
        )
    except Error as error:
        raise BrowserMissing(
            f"the Playwright server gives no browser, {choice.label}: {_reason(error.message)}\n"
            "On its machine:  python -m playwright run-server --host 127.0.0.1 --port 3000 "
            "--unsafe\n"
            "and here, since its port lets whoever reaches it start any program there:  "
            "ssh -L 3000:127.0.0.1:3000 HOST, then --connect ws://127.0.0.1:3000/\n"
            f"It needs Playwright {version('playwright')} as here, and the browser installed there."
        ) from error


async def _attached(kind: BrowserType, choice: BrowserChoice, address: str) -> Browser:
    """The person's own browser: nothing in it is changed, and it goes on when we leave."""
    try:
        return await kind.connect_over_cdp(address, timeout=_OPEN_MS, no_defaults=True)
    except Error as error:
        raise BrowserMissing(
            f"no browser answers, {choice.label}: {_reason(error.message)}\n"
            "Start one with:  chromium --remote-debugging-port=9222 --user-data-dir=NEW_FOLDER "
            "--enable-unsafe-webgpu\n"
            f"or reach Chrome on an Android phone:  adb forward tcp:{_port(address)} "
            "localabstract:chrome_devtools_remote"
        ) from error


def unreachable(choice: BrowserChoice, url: str, message: str) -> Unsupported:
    """A browser that is there, and does not get to the page that the driver serves."""
    port = re.sub(r"^\w+://[^/:]+:?(\d*).*", r"\1", url)
    words = f"{choice.label} does not reach the driver's page: {_first_line(message)}"
    if choice.cdp:
        words += (
            f"\nThe driver serves it on this machine's 127.0.0.1:{port}, and the browser looks for "
            "it at that address of its own. For an Android phone choose a port and lead it here:"
            "  adb reverse tcp:8123 tcp:8123, then --server-port 8123; for another computer:  "
            "ssh -R 8123:127.0.0.1:8123 HOST"
        )
    elif choice.connect:
        words += (
            "\nA server that has started its browser itself (launch-server) leads it here only "
            "with the driver on the same machine; run-server does it anywhere"
        )
    return Unsupported(words)


def _port(address: str) -> str:
    found = re.search(r":(\d+)(?:/|$)", address)
    return found.group(1) if found else "9222"


def _did_not_start(choice: BrowserChoice, message: str) -> BrowserMissing:
    words = f"the browser {choice.label} did not start: {_reason(message)}"
    if choice.engine != "chromium":
        return BrowserMissing(
            f"{words}\nIt may lack libraries of the system, which this gets:  {sys.executable} -m "
            f"playwright install --with-deps {choice.engine}"
        )
    if choice.named:
        return BrowserMissing(f"{words}\nIs it a Chromium, Chrome or Edge for this system?")
    return BrowserMissing(f"{words}\nInstall one with: driver setup, or name one: --browser PATH")


def _reason(message: str) -> str:
    """What the process itself said, else Playwright's first line that says something."""
    said = dict.fromkeys(re.findall(r"\[err\] (.*\S)", message))
    return " | ".join([*said][-3:])[:600] or _first_line(message)


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

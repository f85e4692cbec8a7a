"""What was really opened, in the browser's own words and its process's."""

import asyncio
import contextlib
import hashlib
import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import psutil
from playwright.async_api import Browser, CDPSession, Error

from driver.browser.find import BrowserChoice, Engine
from driver.browser.opening import preferences
from driver.records import Record

_NAMES = {"firefox": "Firefox", "webkit": "WebKit"}
_ASKS = 3  # a list of processes may be old by the time it is compared
NO_CDP = "only browsers of Chromium's family tell"
FAR = "the browser's process is not one of this machine"


class BrowserFacts(Record):
    """What was really started, or was running."""

    name: str
    version: str
    engine: Engine | Literal["unknown"] = "chromium"
    source: str
    executable: str | None
    executable_sha256: str | None
    argv: tuple[str, ...]
    preferences: dict[str, bool] = {}
    headless: bool | None
    user_agent: str
    gpu_devices: tuple[dict[str, Any], ...]
    gl_renderer: str | None
    gl_vendor: str | None
    remote: bool = False
    """Whether it runs on another machine, or could not be shown to run on this one."""
    host: str | None = None
    """Name of that machine, where its address gives one."""
    process: Literal["fresh", "kept", "unknown"] = "fresh"
    """Started for this session alone; running before and after it; or a server decides."""
    unknown: dict[str, str] = {}
    """Why a field is null or empty, or what else could not be seen."""


async def learn(
    browser: Browser, choice: BrowserChoice, started: psutil.Process | None
) -> tuple[BrowserFacts, psutil.Process | None]:
    """The facts, and the browser's process where it is one of this machine.

    `started` is the process that a launch here brought forth, where it was seen.
    """
    unknown: dict[str, str] = {}
    if choice.engine == "chromium":
        told, pids = await _over_cdp(browser, unknown)
        if choice.endpoint:
            process = await _here(browser, choice)
        else:
            process = _process(pids) or started
    else:
        unknown["gpu_devices"] = unknown["gl_renderer"] = unknown["gl_vendor"] = NO_CDP
        told, process = {"user_agent": await _user_agent(browser)}, started
    remote = bool(choice.endpoint) and process is None
    place = await asyncio.to_thread(_of_process, process, unknown)
    argv = place.pop("argv") or told.pop("argv", ())
    if not argv:
        unknown["argv"] = FAR
    facts = BrowserFacts.model_validate(
        {
            "name": _NAMES.get(choice.engine, choice.engine),
            "version": browser.version,
            "engine": choice.engine,
            "source": choice.source,
            "argv": argv,
            "preferences": {} if remote else preferences(choice),
            "headless": _headless(choice, argv, told["user_agent"]),
            "gpu_devices": (),
            "gl_renderer": None,
            "gl_vendor": None,
            "remote": remote,
            "host": None if not remote or loopback(choice.host) else choice.host,
            "process": "kept" if choice.cdp else "unknown" if choice.connect else "fresh",
            "unknown": unknown,
            **place,
            **{key: value for key, value in told.items() if key != "argv"},
        }
    )
    return facts, process


def loopback(host: str | None) -> bool:
    """Whether an address is this machine's own: what answers there may still be a tunnel."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


async def _over_cdp(browser: Browser, unknown: dict[str, str]) -> tuple[dict[str, Any], list[int]]:
    """What a Chromium tells of itself, and its processes, the browser's first."""
    cdp = await browser.new_browser_cdp_session()
    version = await _ask(cdp, "Browser.getVersion")
    product = str(version.get("product") or f"Chromium/{browser.version}")
    system = await _ask(cdp, "SystemInfo.getInfo")
    pids = await _pids(cdp)
    command = await _ask(cdp, "Browser.getBrowserCommandLine")
    await cdp.detach()
    gpu = system.get("gpu") or {}
    if not gpu:
        unknown["gpu_devices"] = f"the browser does not tell: {system.get('error')}"
    attributes = gpu.get("auxAttributes") or {}
    return {
        "name": product.partition("/")[0],
        "version": product.rpartition("/")[2],
        "user_agent": str(version.get("userAgent") or ""),
        "argv": tuple(command.get("arguments") or ()),
        "gpu_devices": tuple(gpu.get("devices") or ()),
        "gl_renderer": attributes.get("glRenderer"),
        "gl_vendor": attributes.get("glVendor"),
    }, pids


async def _ask(cdp: CDPSession, method: str) -> dict[str, Any]:
    """The answer; where a browser has no such method (on a phone), only `error`."""
    try:
        return dict(await cdp.send(method))
    except Error as error:
        return {"error": error.message[:200]}


async def _pids(cdp: CDPSession) -> list[int]:
    listed = (await _ask(cdp, "SystemInfo.getProcessInfo")).get("processInfo") or ()
    ordered = sorted(listed, key=lambda item: item.get("type") != "browser")
    return [int(item["id"]) for item in ordered]


async def _here(browser: Browser, choice: BrowserChoice) -> psutil.Process | None:
    """The process of a browser that this machine did not start, if it runs on it all the same.

    An address does not tell: a tunnel or a phone's cable ends at loopback too. What tells is that
    every process which the browser lists is one of this machine, of one family, and a browser's.
    """
    if not loopback(choice.host):
        return None
    cdp = await browser.new_browser_cdp_session()
    try:
        for _ in range(_ASKS):
            found = _family_of(await _pids(cdp))
            if found:
                return found
    finally:
        await cdp.detach()
    return None


def _process(pids: Sequence[int]) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):  # it may have died meanwhile
        return psutil.Process(pids[0]) if pids else None
    return None


def _family_of(pids: Sequence[int]) -> psutil.Process | None:
    if len(pids) < 2:  # one number alone may be anybody's
        return None
    try:
        process = psutil.Process(pids[0])
        children = {child.pid: child for child in process.children(recursive=True)}
        told = [children[pid].cmdline() for pid in pids[1:] if pid in children]
    except psutil.Error:
        return None
    # Chromium's own processes say what they are for.
    typed = [words for words in told if any("--type=" in word for word in words)]
    return process if len(typed) == len(pids) - 1 else None


async def _user_agent(browser: Browser) -> str:
    """Asked in a page of its own: these browsers say it nowhere else."""
    context = await browser.new_context()
    try:
        return str(await (await context.new_page()).evaluate("navigator.userAgent"))
    finally:
        await context.close()


def _of_process(process: psutil.Process | None, unknown: dict[str, str]) -> dict[str, Any]:
    argv, executable, why = (), None, FAR
    try:
        if process:
            argv, executable = tuple(process.cmdline()), Path(process.exe())
    except psutil.Error as error:
        why = str(error)
    if executable is None:
        unknown["executable"] = unknown["executable_sha256"] = why
        return {"argv": (), "executable": None, "executable_sha256": None}
    return {
        "argv": argv,
        "executable": str(executable),
        "executable_sha256": _digest(executable),
    }


def _headless(choice: BrowserChoice, argv: Sequence[str], user_agent: str) -> bool | None:
    if not choice.endpoint:
        return not choice.headed
    if "Headless" in user_agent or any(word.startswith("--headless") for word in argv):
        return True
    return False if argv else None


@lru_cache
def _digest(path: Path) -> str | None:
    """SHA-256 of an executable; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None

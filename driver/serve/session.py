"""`driver serve`: a session in which a person's own browser runs one bench after another."""

import asyncio
import contextlib
import re
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from driver import __version__, machine
from driver.adapter import judge_page
from driver.arms import MEANINGS, OPTIONS, parse_arm, resolve
from driver.corpus import demand
from driver.errors import DriverError, PresetError, Unsupported
from driver.host import FAR_LOAD
from driver.later import later
from driver.prepare import Probed, probe
from driver.presets import Preset, check_memory
from driver.progress import Reporter
from driver.receipt import parse
from driver.records import Receipt
from driver.report import how_opened
from driver.run import Request, run
from driver.serve.live import PageDisplay, result_of, stopped_words
from driver.serve.site import ServePage
from driver.serve.state import BrowserView, Offer, Presence, PresetOffer, State, Wish
from driver.serve.tab import Standing, TabSession, system_of
from driver.server import JobServer, Site
from driver.tensors import parameter_count

if TYPE_CHECKING:
    from driver.serve import certificate
else:  # what makes certificates takes a while to import, and only `--lan` needs it
    certificate = later("driver.serve.certificate")

LOCAL = ("127.0.0.1", "localhost")
_GONE = "The page is not open any more: its tab was closed, or its connection is lost."
_SILENT = (
    "The page does not answer: it may be frozen in the background, asleep with its device, or out "
    "of the network."
)
_BACK = "the page is there again"
_AGAIN = "To go on, open the address again, in the same browser:"
_END = "Ctrl-C ends the session; receipts that were written stay."
_OTHER_PORT = "take another one, or leave it out for any that is free"


@dataclass(frozen=True)
class Settings:
    """What a person chose on the command line."""

    presets: tuple[tuple[str, Preset], ...]
    """By the name that a wish may give."""
    wish: Wish
    """What the page proposes."""
    has_corpus: bool
    out: Path
    port: int
    lan: bool
    request_for: Callable[[Wish], Request]
    """A wish as a run; raises DriverError."""
    on_open: Callable[[str], None]
    """Called with the address as soon as it can be opened."""
    told: Callable[[Receipt, Path], str]
    """What the terminal says of a receipt."""


async def serve(settings: Settings, report: Reporter) -> None:
    """Runs until it is cancelled. Raises UsageError and LackError before the address is known."""
    made = None
    site = Site(port=settings.port, names=LOCAL, option="--port", advice=_OTHER_PORT)
    if settings.lan:
        names = (*certificate.lan_names(), *LOCAL)
        made = await asyncio.to_thread(certificate.make_certificate, names)
        site = replace(site, address="0.0.0.0", names=names, tls=made.tls)
    state = State(
        phase="meeting", driver=__version__, folder=str(settings.out.resolve()), wish=settings.wish
    )
    async with ServePage(site, state, is_here) as page:
        report.result(greeting(page.addresses, made))
        report.rest("waiting for a browser to open the page")
        settings.on_open(page.addresses[0])
        try:
            await Bench(settings, page, report).run()
        finally:
            page.state = page.state.model_copy(update={"phase": "ended"})
            await page.aclose()


@dataclass(frozen=True)
class TabBrowser:
    """The tab as the place of a run."""

    page: ServePage

    @property
    def here(self) -> bool:
        """Whether the tab takes this machine's memory."""
        return not TabSession(self.page.tab).facts.remote

    def server(self) -> AbstractAsyncContextManager[JobServer]:
        """The one that has served the page."""
        return contextlib.nullcontext(self.page)

    def session(self) -> AbstractAsyncContextManager[TabSession]:
        """The same tab again: there is no fresher browser."""
        return contextlib.nullcontext(TabSession(self.page.tab))


class Bench:
    """The session's one browser: looked at once, then run after run."""

    def __init__(self, settings: Settings, page: ServePage, report: Reporter) -> None:
        self.settings = settings
        self.page = page
        self.report = report
        self.browser = TabBrowser(page)
        self.hidden = False
        self.awaited = ""
        self.told: Standing = "there"
        page.on_presence = self.presence
        page.tab.on_standing = self.standing

    async def run(self) -> None:
        """Without end: it is cancelled."""
        await self.page.claimed.wait()
        await self.meet()
        while True:
            self.wait_for("waiting for a start in the page")
            await self.bench(await self.wished())

    async def meet(self) -> None:
        """What this browser can do. Where the page that asks fails, a reload tries again."""
        session = TabSession(self.page.tab)
        facts = session.facts
        self.report.say(f"opened in {facts.name} {facts.version} ({system_of(facts.user_agent)})")
        while True:
            self.wait_for("looking at the browser")
            load = self.page.tab.load
            try:
                probed = await probe(session, self.page)
                break
            except DriverError as error:
                self.report.error(f"driver: {error}")
                self.page.show(problem=f"{error}. Reload this page to try again.")
            self.wait_for("waiting for a reload of the page")
            while load == self.page.tab.load:
                await asyncio.sleep(0.2)
        self.page.show(
            phase="ready",
            problem=None,
            browser=browser_view(probed),
            arms=tuple(arm_offers(probed.features)),
            presets=tuple(preset_offers(self.settings, self.browser.here)),
        )

    async def wished(self) -> Request:
        """The next run that the person asks for."""
        asked: asyncio.Future[Request] = asyncio.get_running_loop().create_future()

        async def take(wish: Wish) -> None:
            request = await asyncio.to_thread(self.settings.request_for, wish)
            if not asked.done():
                asked.set_result(request)
                self.page.on_wish = None
                self.page.show(phase="running", wish=wish, problem=None, result=None, run=None)

        self.page.on_wish = take
        try:
            return await asked
        finally:
            self.page.on_wish = None

    async def bench(self, request: Request) -> None:
        """One run; its receipt, also a partial one, is the page's result."""
        page, kept = self.page, list[tuple[dict[str, Any], Path]]()
        display = PageDisplay(request, lambda now: page.show(now, run=display.view))
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            page.on_stop = None
            page.show(phase="stopping")
            task.cancel()

        task = asyncio.ensure_future(
            run(
                request,
                self.browser,
                self.report,
                on_partial=lambda receipt, path: kept.append((receipt, path)),
            )
        )
        page.on_stop = stop
        problem = None
        try:
            with self.report.beside(display):
                kept.append(await task)
        except DriverError as error:
            problem = _by_fields(str(error))
            self.report.error(f"driver: {error}")
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not stopped or (current and current.cancelling()):
                raise
            if not kept:
                problem = "Stopped before the plan was frozen: nothing had been measured yet."
        finally:
            page.on_stop = None
            page.clear()
        self.finish(kept, stopped, problem)

    def finish(
        self, kept: list[tuple[dict[str, Any], Path]], stopped: bool, problem: str | None
    ) -> None:
        """Show what came of a run, here and there."""
        page, result = self.page, None
        for data, path in kept:
            receipt = parse(data)
            result = result_of(receipt, path.resolve(), len(page.receipts), stopped)
            page.receipts.append(path)
            if stopped:
                words = stopped_words(result.slots, result.slots_planned)
                self.report.error(f"{words}: the verdict holds what ran against the whole plan")
            self.report.result(self.settings.told(receipt, path))
        earlier = (result, *page.state.earlier) if result else page.state.earlier
        page.show(phase="ready", result=result, earlier=earlier, problem=problem)

    # ----------------------------------------------------------------------- is it there

    def wait_for(self, what: str) -> None:
        """Nothing is measured; `what` is waited for, as long as there is a page."""
        self.awaited = what
        self.say_standing()

    def standing(self) -> None:
        """The page has gone, does not answer, or is back. A run that this ends says so itself."""
        now = self.page.tab.standing
        if self.page.state.phase not in ("running", "stopping"):
            self.say_standing()
        elif now == "there":
            self.report.say(_BACK)
        elif now == "silent":
            self.report.error(
                f"{_SILENT} If it does not come back, its slot fails when its time is up; Ctrl-C "
                "ends the session now, and what was measured is kept"
            )

    def say_standing(self) -> None:
        """What is waited for; and once what a person has to do where that is the page itself."""
        now, before = self.page.tab.standing, self.told
        self.told = now
        if now == "there":
            if before != "there":
                self.hidden = False
                self.report.say(_BACK)
            self.report.rest(self.awaited)
            return
        if now != before:
            what = _GONE if now == "gone" else f"{_SILENT} Bring it to the front there."
            addresses = shown_addresses(self.page.addresses, self.settings.lan)
            self.report.say("\n".join([what, _AGAIN, *(f"  {url}" for url in addresses), _END]))
        self.report.rest("waiting for the page to come back (Ctrl-C ends)")

    def presence(self, presence: Presence) -> None:
        """The page was hidden or is seen again: said where a person may look."""
        if presence.visible == (not self.hidden):
            return
        self.hidden = not presence.visible
        if self.hidden and self.page.state.phase == "running":
            self.report.error(
                "the page is hidden: browsers slow hidden pages down, so the slots that are hit "
                "will be marked; bring it to the front"
            )


def _by_fields(message: str) -> str:
    """A message with the page's fields in the place of the command line's options."""
    for option, field in (("--budget", "Time"), ("--blocks", "Blocks")):
        message = re.sub(rf"{option}(?=:? )", f"“{field}”", message)
    return message


# --------------------------------------------------------------------------- what is offered


def browser_view(probed: Probed) -> BrowserView:
    """The browser as the page shows it."""
    facts, features, host = probed.browser, probed.features, probed.host
    adapter, kind = probed.adapter, None
    name = None
    if adapter:
        words = (adapter.get("vendor"), adapter.get("architecture"), adapter.get("description"))
        name = " ".join(dict.fromkeys(str(word) for word in words if word)) or "an adapter"
        kind = judge_page(features, ()).kind
    cores = features.get("hardware_concurrency")
    return BrowserView(
        name=str(facts["name"]),
        version=str(facts["version"]),
        source=str(facts["source"]),
        elsewhere=host.remote,
        isolated=features.get("cross_origin_isolated") is True,
        cores=cores if isinstance(cores, int) else None,
        machine=host.machine["cpu"],
        adapter=name and name[:200],
        adapter_kind=kind,
        notes=(*how_opened(facts), *([f"{FAR_LOAD}: no claim about time"] if host.remote else ())),
    )


def arm_offers(features: dict[str, Any]) -> list[Offer]:
    """Every arm that a page can run, and why this browser cannot."""
    offers = []
    for name in OPTIONS:
        if name == "numpy":
            continue
        reason = None
        try:
            resolve(parse_arm(name), features)
        except Unsupported as error:
            reason = str(error).removeprefix(f"arm {name}: ")
        offers.append(Offer(name=name, meaning=MEANINGS[name], reason=reason))
    return offers


def preset_offers(settings: Settings, here: bool) -> list[PresetOffer]:
    """Every preset, and why it cannot be run now in a browser that runs `here`, or elsewhere."""
    available = machine.machine_state().memory_available_bytes
    offers = []
    for name, preset in settings.presets:
        reason = None
        try:
            if here:
                check_memory(preset, available)
        except PresetError as error:
            reason = str(error)
        if preset.corpus_sha256 and not settings.has_corpus:
            reason = demand(preset.corpus_sha256, preset.corpus_hint)
        offers.append(
            PresetOffer(
                name=name, meaning=preset.description, reason=reason, budget=preset.budget,
                parameters=parameter_count(preset.model), blocks=preset.blocks,
            )
        )  # fmt: skip
    return offers


# --------------------------------------------------------------------------- the way in


def is_here(peer: str, agent: str) -> bool:
    """Does a request come from a browser on this machine?

    The peer's address must be one of this machine's, and the browser's system this one's: a phone
    on a cable (`adb reverse`) calls from loopback as well.
    """
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    own = {a.address for found in psutil.net_if_addrs().values() for a in found}
    systems = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}
    same_system = system_of(agent) == systems.get(sys.platform)
    return (address.is_loopback or peer in own) and same_system


def greeting(addresses: tuple[str, ...], made: "certificate.Certificate | None") -> str:
    """What a person has to know to open the page."""
    lines = ["", "Open this address in the browser that is to be measured:", ""]
    if made is None:
        lines += [
            f"  {addresses[0]}",
            "",
            "The first browser that opens it owns this session; later ones are refused.",
            "Other devices cannot reach it: for a phone or another computer add --lan.",
            "Ctrl-C ends it.",
            "",
        ]
        return "\n".join(lines)
    lines += [f"  {url}" for url in shown_addresses(addresses, lan=True)]
    lines += [
        "",
        "The browser will warn that the connection is not private. That is expected: the page",
        "needs HTTPS, and this certificate was made just now on this machine, so nobody vouches",
        "for it. Look at the certificate in the warning. Its SHA-256 fingerprint must be",
        "",
        *(f"  {part}" for part in _halves(made.fingerprint)),
        "",
        "If it is, go on (Chrome, Edge: Advanced, Proceed; Firefox: Advanced, Accept the risk;",
        "Safari: Show details, visit this website). If it is another one, somebody else answers:",
        "do not go on.",
        "",
        "Everybody in this network can reach the port, but the first browser that opens the whole",
        "address owns this session; later ones are refused. Ctrl-C ends it.",
        "",
    ]
    return "\n".join(lines)


def shown_addresses(addresses: tuple[str, ...], lan: bool) -> tuple[str, ...]:
    """Those that a person may open: the first on loopback, or all that other devices reach."""
    if not lan:
        return addresses[:1]
    return tuple(url for url in addresses if not any(f"//{name}" in url for name in LOCAL))


def _halves(fingerprint: str) -> tuple[str, str]:
    return fingerprint[:47], fingerprint[48:]

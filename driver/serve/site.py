"""The server of `driver serve`: that of the jobs, and the page around them.

The address holds a one-time token: the first browser that opens the page claims the session and
gets a cookie, and from then on everything needs both. What a page sends is a wish in a fixed form;
files and folders of this machine cannot be named from there.
"""

import asyncio
import contextlib
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel

from driver import store
from driver.errors import DriverError, SlotError
from driver.layout import WEB
from driver.records import Record
from driver.serve.state import FrameReport, Hello, Presence, State, Wish
from driver.serve.tab import Stream, Tab
from driver.server import JobServer, RefusedError, Site, parsed, read_body

PAGE = "serve.html"
COOKIE = "driver-serve"
# A browser that was quit, as phones do with those in the background, may come back.
COOKIE_S = 24 * 3600
BODY_BYTES = 64 << 10
# While something is timed the page is told of it no more often: drawing takes time too.
QUIET_S = 1.0
# An idle stream asks whether the page still hears it: a phone that went to sleep or left closes
# nothing. It also keeps whatever lies between the two from closing it.
IDLE_S = 15.0
# So often it is looked whether the tab still listens: aiohttp does not tell.
LOOK_S = 0.5

_FILES = re.compile(r"[A-Za-z0-9_]+\.(html|js|css)")
_OWN_FILES = re.compile(r"serve[A-Za-z0-9_]*\.(html|js|css)")
_ID = re.compile(r"[A-Za-z0-9-]{8,64}")
_TAKEN = (
    "This address has been opened in another browser before, and belongs to it.\n"
    "To use this one, end `driver serve` in the terminal (Ctrl-C), start it again, and open the "
    "new address here first.\n"
)
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
    "worker-src 'self'; connect-src 'self'; frame-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; "
    "frame-ancestors 'self'"
)

_Model = TypeVar("_Model", bound=BaseModel)
# A receipt's page has its style within, and no script.
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

OnWish = Callable[[Wish], Awaitable[None]]


class ServePage(JobServer):
    """Serves the page, its jobs, the progress and the receipts of one session."""

    def __init__(self, site: Site, state: State, is_here: Callable[[str, str], bool]) -> None:
        super().__init__(WEB, site, _FILES)
        self.headers["Content-Security-Policy"] = _POLICY
        self.tab = Tab()
        self.state = state
        self.claimed = asyncio.Event()
        self.on_wish: OnWish | None = None
        """Takes a wish or raises DriverError; None while there is nothing to choose."""
        self.on_stop: Callable[[], None] | None = None
        self.on_presence: Callable[[Presence], None] = lambda _: None
        self.receipts: list[Path] = []
        self._is_here = is_here
        self._owner = secrets.token_urlsafe(24)
        self._due: asyncio.TimerHandle | None = None
        self._told = 0.0

    @property
    def addresses(self) -> tuple[str, ...]:
        """The page, by each of the site's names."""
        return tuple(url + PAGE for url in self.base_urls)

    def add_routes(self, routes: web.UrlDispatcher) -> None:
        """The page's own requests, beside those of its jobs."""
        at = "/{token}/serve/"
        routes.add_post(at + "claim", self._claim)
        routes.add_get(at + "events", self._events)
        routes.add_post(at + "start", self._start)
        routes.add_post(at + "stop", self._stop)
        routes.add_post(at + "frame", self._frame)
        routes.add_post(at + "presence", self._presence)
        routes.add_get(at + "receipts/{number}", self._receipt)
        routes.add_get(at + "receipts/{number}/report", self._report)

    # ----------------------------------------------------------------------- who may

    def admit(self, request: web.Request) -> None:
        """As for a job; and what lies behind the token belongs to one browser."""
        super().admit(request)
        path = request.path.split("/", 2)[2]
        if self.claimed.is_set():
            if not self._owns(request):
                raise RefusedError(403, _TAKEN)
        elif not (path == "serve/claim" or _OWN_FILES.fullmatch(path) or path == "presence.js"):
            raise RefusedError(403, f"Open the page itself first: {PAGE}\n")

    def _owns(self, request: web.Request) -> bool:
        given = request.cookies.get(COOKIE, "")
        return hmac.compare_digest(given.encode(), self._owner.encode())

    async def _claim(self, request: web.Request) -> web.StreamResponse:
        hello = await _body(request, Hello)
        if self.claimed.is_set() and not self._owns(request):  # claimed while the body came
            raise RefusedError(403, _TAKEN)
        agent = request.headers.get("User-Agent", "")
        self.tab.introduce(agent, hello, not self._is_here(request.remote or "", agent))
        response = web.Response(status=204)
        response.set_cookie(
            COOKIE, self._owner, path=f"/{request.match_info['token']}/", max_age=COOKIE_S,
            httponly=True, samesite="Strict", secure=request.secure,
        )  # fmt: skip
        self.claimed.set()
        return response

    # ----------------------------------------------------------------------- to the page

    def show(self, now: bool = True, **news: object) -> None:
        """Change the state, and tell the page: at once, or when it is time again."""
        self.state = self.state.model_copy(update=news)
        if self._due:
            if not now:
                return
            self._due.cancel()
            self._due = None
        loop = asyncio.get_running_loop()
        wait_s = 0.0 if now else max(0.0, self._told + QUIET_S - loop.time())
        self._due = loop.call_later(wait_s, self._tell)

    def _tell(self) -> None:
        self._due = None
        self._told = asyncio.get_running_loop().time()
        self.tab.send("state", self.state.model_dump_json())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        tab, load = (request.query.get(key, "") for key in ("tab", "load"))
        if not (_ID.fullmatch(tab) and _ID.fullmatch(load)):
            raise RefusedError(400, "a stream needs the names of its tab and page load")
        try:
            stream = self.tab.attach(tab, load)
        except SlotError as error:
            raise RefusedError(409, str(error)) from None
        self._tell()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            await _stream(request, response, stream, self.tab.ask)
        except ConnectionError:
            pass
        finally:
            self.tab.detach(stream)
        return response

    async def _receipt(self, request: web.Request) -> web.StreamResponse:
        path = self._asked_for(request)
        return web.Response(
            body=await _read(path),
            headers={
                "Content-Type": "application/json",
                "Content-Disposition": f"attachment; filename={json.dumps(path.name)}",
            },
        )

    async def _report(self, request: web.Request) -> web.StreamResponse:
        page = await _read(store.page_path(self._asked_for(request)))
        headers = {"Content-Type": "text/html; charset=utf-8",
                   "Content-Security-Policy": _REPORT_POLICY}  # fmt: skip
        return web.Response(body=page, headers=headers)

    def _asked_for(self, request: web.Request) -> Path:
        number = request.match_info["number"]
        if not re.fullmatch(r"[0-9]{1,6}", number) or int(number) >= len(self.receipts):
            raise RefusedError(404, "not found")
        return self.receipts[int(number)]

    # ----------------------------------------------------------------------- from the page

    async def _start(self, request: web.Request) -> web.StreamResponse:
        wish = await _body(request, Wish)
        if self.on_wish is None:
            raise RefusedError(409, "a run is going on, or the browser is being looked at")
        try:
            await self.on_wish(wish)
        except DriverError as error:
            raise RefusedError(400, str(error)) from None
        return web.Response(status=204)

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        await _body(request, Record)
        if self.on_stop is None:
            raise RefusedError(409, "nothing is running")
        self.on_stop()
        return web.Response(status=204)

    async def _frame(self, request: web.Request) -> web.StreamResponse:
        report = await _body(request, FrameReport)
        if report.gone:
            self.tab.frame_gone(report.serial)
        return web.Response(status=204)

    async def _presence(self, request: web.Request) -> web.StreamResponse:
        presence = await _body(request, Presence)
        self.tab.answered()
        self.on_presence(presence)
        return web.Response(status=204)

    async def aclose(self) -> None:
        """Tell the page that this is the end."""
        if self._due:
            self._due.cancel()
        self._tell()
        self.tab.end()
        # The stream's handler writes what is left.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)


async def _read(path: Path) -> bytes:
    """A file of this session; raises RefusedError where it is gone."""
    try:
        return await asyncio.to_thread(path.read_bytes)
    except OSError:
        raise RefusedError(404, "this file is not there any more") from None


async def _stream(
    request: web.Request, response: web.StreamResponse, events: Stream, ask: Callable[[], None]
) -> None:
    """Writes events until there are no more, or nobody listens; `ask` sends one where it idles."""
    loop = asyncio.get_running_loop()
    coming, spoken = asyncio.ensure_future(events.get()), loop.time()
    try:
        while request.transport is not None:
            # Not wait_for: where both come at once it may lose the event.
            done, _ = await asyncio.wait({coming}, timeout=LOOK_S)
            if not done:
                if loop.time() - spoken > IDLE_S:
                    ask()
                    spoken = loop.time()
                continue
            item = coming.result()
            if item is None:
                return
            coming = asyncio.ensure_future(events.get())
            event, data = item
            await response.write(f"event: {event}\ndata: {data}\n\n".encode())
            spoken = loop.time()
    finally:
        coming.cancel()


async def _body(request: web.Request, model: type[_Model]) -> _Model:
    """What a page posts, small and in a fixed form; raises RefusedError."""
    return parsed(model, await read_body(request, BODY_BYTES))

"""The HTTP side: routes, what is admitted, headers, bodies.

It listens where its site says: on 127.0.0.1 and a free port, if nothing else is asked for.
Everything lies under a random token; a request must name this host, and come from this origin or
none. A page can post only what its job's program announces. Requests that break these rules are
refused and recorded as events of the job that they name.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from aiohttp import web

from driver.errors import UsageError
from driver.layout import WEB
from driver.records import Job, Progress
from driver.server.job import JobHandle, RefusedError

RESULT_BYTES = 64 << 20
PROGRESS_BYTES = 4 << 20

_MIME = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".wgsl": "text/plain; charset=utf-8",
}
_OCTETS = "application/octet-stream"
# The page of a job. What begins with `serve` belongs to the page of `driver serve` around it.
_PAGE_FILE = re.compile(r"(?!serve)[A-Za-z0-9_]+\.(html|js)")
_JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")

_HEADERS = {
    "Cache-Control": "no-store",
    # Cross-origin isolation: SharedArrayBuffer and the fine clock.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

# aiohttp reports malformed HTTP through this logger; on a terminal it would tear the progress bar.
_log = logging.getLogger("driver.server")
_log.addHandler(logging.NullHandler())
_log.propagate = False


@dataclass(frozen=True)
class Site:
    """Where a server listens, and the names by which it may be called."""

    address: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one."""
    names: tuple[str, ...] = ("127.0.0.1", "localhost")
    """Hosts of its URLs; the first is the one of `base_url`."""
    tls: ssl.SSLContext | None = None
    option: str = "--server-port"
    """What the port was given by, for the message where it is taken, with what to do then."""
    advice: str = "take another, and the same in `adb reverse`"


LOOPBACK = Site()


class JobServer:
    """Serves the page and its jobs; an async context manager.

    The page's files are read once, when it is made: `modules` holds the SHA-256 of exactly the
    bytes that every page of this server receives.

    Raises UsageError on entry where the site's port is taken.
    """

    def __init__(
        self,
        web_dir: Path = WEB,
        site: Site = LOOPBACK,
        page_file: re.Pattern[str] = _PAGE_FILE,
    ) -> None:
        self._files = {
            path.name: path.read_bytes()
            for path in sorted(web_dir.iterdir())
            if path.is_file() and page_file.fullmatch(path.name)
        }
        self.modules = {name: _sha256(data) for name, data in self._files.items()}
        self.sizes = {name: len(data) for name, data in self._files.items()}
        self.headers: dict[str, str] = {}
        """Of every response, in the place of the usual ones."""
        self._site = site
        self._token = secrets.token_urlsafe(24)
        self._data: dict[str, bytes | memoryview | Path] = {}
        self._sources: dict[tuple[str, str], bytes] = {}
        self._jobs: dict[str, JobHandle] = {}
        self._runner: web.AppRunner | None = None
        self._origins: tuple[str, ...] = ()
        self._hosts: frozenset[str] = frozenset()

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard])
        routes = app.router
        routes.add_get("/{token}/", self._get_page)
        routes.add_get("/{token}/{file}", self._get_page)
        routes.add_get("/{token}/source/{source}/{file}", self._get_module)
        routes.add_get("/{token}/jobs/{job}/job.json", self._get_job)
        routes.add_get("/{token}/data/{digest}/{name:.+}", self._get_data)
        routes.add_post("/{token}/jobs/{job}/progress", self._post_progress)
        routes.add_post("/{token}/jobs/{job}/blob", self._post_blob)
        routes.add_post("/{token}/jobs/{job}/result", self._post_result)
        self.add_routes(routes)
        app.on_response_prepare.append(self._add_headers)
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, logger=_log, shutdown_timeout=1.0
        )
        await self._runner.setup()
        try:
            await self._listen(self._runner)
        except BaseException:
            await self._runner.cleanup()
            raise
        return self

    async def _listen(self, runner: web.AppRunner) -> None:
        site = self._site
        try:
            await web.TCPSite(runner, site.address, site.port, ssl_context=site.tls).start()
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise UsageError(f"{site.option} {site.port}: {why}; {site.advice}") from error
        port = runner.addresses[0][1]
        scheme, usual = ("https", 443) if site.tls else ("http", 80)
        # A browser leaves a scheme's usual port out.
        hosts = [name if port == usual else f"{name}:{port}" for name in site.names]
        self._hosts = frozenset(hosts)
        self._origins = tuple(f"{scheme}://{host}" for host in hosts)

    def add_routes(self, routes: web.UrlDispatcher) -> None:
        """More than a job needs; here nothing."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in list(self._jobs.values()):
            handle.close()
        if self._runner:
            await self._runner.cleanup()

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/TOKEN/`."""
        return self.base_urls[0]

    @property
    def base_urls(self) -> tuple[str, ...]:
        """The same for every name of the site."""
        return tuple(f"{origin}/{self._token}/" for origin in self._origins)

    def put(self, name: str, data: bytes | memoryview | Path) -> str:
        """Offer bytes or a file; returns its URL relative to `base_url`, for a job's references.

        A view is not copied: what it shows must not change any more.

        The URL contains a digest of the bytes (of path, size and time for a file), so the same data
        twice is one entry and different data never share a URL.
        """
        if isinstance(data, Path):
            stat = data.stat()
            key = _sha256(f"{data.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
        else:
            key = _sha256(data)
        url = f"data/{key[:16]}/{quote(name)}"
        self._data[url] = data
        return url

    def put_modules(self, source: str, files: Mapping[str, bytes]) -> None:
        """Offer page modules of another source under `source/NAME/`, exactly these files."""
        self._sources |= {(source, name): data for name, data in files.items()}

    def drop(self, url: str) -> None:
        """Forget what `put` returned `url` for."""
        self._data.pop(url, None)

    def clear(self) -> None:
        """Forget everything that was put here, as a run that is over leaves it."""
        self._data.clear()
        self._sources.clear()

    def open_job(
        self, job: Job, on_progress: Callable[[Progress], None] | None = None
    ) -> JobHandle:
        """Offer a job to one page; no open job may have the same ID.

        Raises:
            ValueError: the ID is open already or has characters that do not fit a URL.
        """
        if not _JOB_ID.fullmatch(job.job):
            raise ValueError(f"job ID {job.job!r}: use letters, digits, '.', '_' and '-'")
        if job.job in self._jobs:
            raise ValueError(f"job {job.job} is open already")
        handle = JobHandle(
            job,
            url=f"{self.base_url}?job={job.job}",
            on_progress=on_progress,
            on_close=lambda: self._forget(job.job),
        )
        self._jobs[job.job] = handle
        return handle

    def _forget(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    # ----------------------------------------------------------------------- every request

    @web.middleware
    async def _guard(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        handle = self._jobs.get(request.match_info.get("job", ""))
        try:
            self.admit(request)
            return await handler(request)
        except RefusedError as refusal:
            if handle:
                handle.note(f"{request.method} {local_path(request)}: {refusal}")
            return web.Response(status=refusal.status, text=str(refusal))

    def admit(self, request: web.Request) -> None:
        """Raises RefusedError for a request that is not this page's own."""
        if request.headers.get("Host") not in self._hosts:
            raise RefusedError(421, "this host is not served here")
        # A path of any other shape than the routes' has no token at all.
        token = request.match_info.get("token", "")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise RefusedError(404, "not found")
        if request.headers.get("Origin", self._origins[0]) not in self._origins:
            raise RefusedError(403, "another origin")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise RefusedError(403, "another site")

    def _handle(self, request: web.Request) -> JobHandle:
        handle = self._jobs.get(request.match_info["job"])
        if handle is None:
            raise RefusedError(404, "no such job")
        return handle

    # ----------------------------------------------------------------------- to the page

    async def _get_page(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("file", "index.html")
        data = self._files.get(name)
        if data is None:
            raise RefusedError(404, "not found")
        return web.Response(body=data, headers={"Content-Type": _mime(name)})

    async def _get_module(self, request: web.Request) -> web.StreamResponse:
        source, name = request.match_info["source"], request.match_info["file"]
        data = self._sources.get((source, name))
        if data is None:
            raise RefusedError(404, "not found")
        return web.Response(body=data, headers={"Content-Type": _mime(name)})

    async def _get_job(self, request: web.Request) -> web.StreamResponse:
        body = self._handle(request).job.model_dump_json()
        return web.Response(body=body.encode(), headers={"Content-Type": _MIME[".json"]})

    async def _get_data(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        data = self._data.get(f"data/{request.match_info['digest']}/{quote(name)}")
        if data is None:
            raise RefusedError(404, "not found")
        headers = {"Content-Type": _mime(name)}
        if isinstance(data, Path):
            return web.FileResponse(data, headers=headers)
        if "Range" not in request.headers:
            return web.Response(body=bytes(data), headers=headers)
        try:
            start, stop, _ = request.http_range.indices(len(data))
        except ValueError:
            start = stop = 0
        if start >= stop:
            raise RefusedError(416, f"no such range of {len(data)} bytes")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return web.Response(status=206, body=bytes(data[start:stop]), headers=headers)

    # ----------------------------------------------------------------------- from the page

    async def _post_progress(self, request: web.Request) -> web.StreamResponse:
        self._handle(request).accept_progress(await read_body(request, PROGRESS_BYTES))
        return web.Response(status=204)

    async def _post_blob(self, request: web.Request) -> web.StreamResponse:
        blob, place = self._handle(request).place(request.query, request.content_length)
        blob.busy = True
        try:
            await _read_into(request, place)
            blob.received += len(place)
        finally:
            blob.busy = False
        return web.Response(status=204)

    async def _post_result(self, request: web.Request) -> web.StreamResponse:
        handle = self._handle(request)
        handle.expect_result()
        try:
            body = await read_body(request, RESULT_BYTES)
        except RefusedError as refusal:
            handle.fail(str(refusal))
            raise
        handle.accept_result(body)
        return web.Response(status=204)

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        for name, value in (_HEADERS | self.headers).items():
            response.headers.setdefault(name, value)


async def read_body(request: web.Request, limit: int) -> bytearray:
    """A whole body of at most `limit` bytes; raises RefusedError."""
    if (request.content_length or 0) > limit:
        raise RefusedError(413, f"a body of {request.content_length} bytes, {limit} allowed")
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise RefusedError(413, f"a body of more than {limit} bytes")
    return body


async def _read_into(request: web.Request, place: memoryview) -> None:
    """A body of exactly the length of `place`; raises RefusedError."""
    filled = 0
    async for chunk in request.content.iter_any():
        if filled + len(chunk) > len(place):
            raise RefusedError(413, "a body longer than its announced length")
        place[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    if filled != len(place):
        raise RefusedError(400, f"{filled} bytes arrived, {len(place)} announced")


def local_path(request: web.Request) -> str:
    """The request's path after the token, which no record should keep."""
    return "/".join(request.path_qs.split("/")[2:])[:200]


def _mime(name: str) -> str:
    return _MIME.get(Path(name).suffix, _OCTETS)


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()

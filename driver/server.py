"""The loopback server: the page, its job and data go in, its progress and result come out.

It listens on 127.0.0.1 and a free port. Everything lies under a random token; a request must name
this host, and come from this origin or none. A page can post only what its job's program announces.
Requests that break these rules are refused and recorded as events of the job that they name.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from aiohttp import web
from pydantic import ValidationError

from driver.errors import SlotError
from driver.layout import WEB
from driver.records import Job, JobResult, PageEvent, Progress

PIECE_BYTES = 64 << 20
RESULT_BYTES = 64 << 20
PROGRESS_BYTES = 4096
MAX_EVENTS = 200
MAX_DEPTH = 16

_MIME = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".wgsl": "text/plain; charset=utf-8",
}
_OCTETS = "application/octet-stream"
_PAGE_SUFFIXES = (".html", ".js")
_PAGE_FILE = re.compile(r"[A-Za-z0-9_]+\.(html|js)")

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


@dataclass
class _Blob:
    data: bytearray
    received: int = 0
    busy: bool = False


@dataclass
class JobHandle:
    """One job as the server sees it; `close` when its page is gone."""

    job: Job
    url: str
    events: list[PageEvent] = field(default_factory=list)
    progress: Progress | None = None
    _on_progress: Callable[[Progress], None] | None = None
    _blobs: dict[str, _Blob] = field(default_factory=dict)
    _future: "asyncio.Future[JobResult]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    _close: Callable[[], None] = lambda: None

    async def result(self) -> JobResult:
        """The page's result.

        Raises:
            SlotError: the page posted something that is not this job's result.
        """
        return await asyncio.shield(self._future)

    @property
    def blobs(self) -> dict[str, bytearray]:
        """Complete blobs by label, little-endian float32."""
        return {
            label: blob.data
            for label, blob in self._blobs.items()
            if blob.received == len(blob.data)
        }

    def close(self) -> None:
        """Forget the job: its URLs are 404 from here on."""
        self._close()
        if not self._future.done():
            self._future.cancel()
        elif not self._future.cancelled():
            self._future.exception()  # seen, so that asyncio does not report it

    def note(self, message: str) -> None:
        """Record a bad request."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(PageEvent(kind="bad-request", message=message))


class _Refused(Exception):
    """A request that gets a 4xx answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JobServer:
    """Serves the page and its jobs; an async context manager.

    The page's files are read once, when it starts: `modules` holds the SHA-256 of exactly the bytes
    that every page of this server receives.
    """

    def __init__(self, web_dir: Path = WEB) -> None:
        self._files = {
            path.name: path.read_bytes()
            for path in sorted(web_dir.iterdir())
            if path.is_file() and _PAGE_FILE.fullmatch(path.name)
        }
        self.modules = {name: _sha256(data) for name, data in self._files.items()}
        self._token = secrets.token_urlsafe(24)
        self._data: dict[str, bytes | Path] = {}
        self._jobs: dict[str, JobHandle] = {}
        self._runner: web.AppRunner | None = None
        self._origins: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard])
        routes = app.router
        # A first segment of any other shape finds no route at all; _guard compares it.
        routes.add_get("/{token}/", self._get_page)
        routes.add_get("/{token}/{file}", self._get_page)
        routes.add_get("/{token}/jobs/{job}/job.json", self._get_job)
        routes.add_get("/{token}/data/{digest}/{name:.+}", self._get_data)
        routes.add_post("/{token}/jobs/{job}/progress", self._post_progress)
        routes.add_post("/{token}/jobs/{job}/blob", self._post_blob)
        routes.add_post("/{token}/jobs/{job}/result", self._post_result)
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, logger=_log, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        port = self._runner.addresses[0][1]
        self._origins = (f"http://127.0.0.1:{port}", f"http://localhost:{port}")
        return self

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
        return f"{self._origins[0]}/{self._token}/"

    def put(self, name: str, data: bytes | Path) -> str:
        """Offer bytes or a file; returns its URL relative to `base_url`, for a job's references.

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

    def drop(self, url: str) -> None:
        """Forget what `put` returned `url` for."""
        self._data.pop(url, None)

    def open_job(
        self, job: Job, on_progress: Callable[[Progress], None] | None = None
    ) -> JobHandle:
        """Offer a job to one page; its ID must be new to this server.

        Raises:
            ValueError: the ID is open already or has characters that do not fit a URL.
        """
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", job.job):
            raise ValueError(f"job ID {job.job!r}: use letters, digits, '.', '_' and '-'")
        if job.job in self._jobs:
            raise ValueError(f"job {job.job} is open already")
        handle = JobHandle(
            job=job,
            url=f"{self.base_url}?job={job.job}",
            _on_progress=on_progress,
            _close=lambda: self._jobs.pop(job.job, None) and None,
        )
        self._jobs[job.job] = handle
        return handle

    # ----------------------------------------------------------------------- every request

    @web.middleware
    async def _guard(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        handle = self._jobs.get(request.match_info.get("job", ""))
        try:
            self._admit(request)
            return await handler(request)
        except _Refused as refusal:
            if handle:
                handle.note(f"{request.method} {request.path_qs[-200:]}: {refusal}")
            return web.Response(status=refusal.status, text=str(refusal))

    def _admit(self, request: web.Request) -> None:
        hosts = [origin.removeprefix("http://") for origin in self._origins]
        if request.headers.get("Host") not in hosts:
            raise _Refused(421, "this host is not served here")
        token = request.match_info.get("token", "")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise _Refused(404, "not found")
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._origins:
            raise _Refused(403, "another origin")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise _Refused(403, "another site")

    def _handle(self, request: web.Request) -> JobHandle:
        handle = self._jobs.get(request.match_info["job"])
        if handle is None:
            raise _Refused(404, "no such job")
        return handle

    # ----------------------------------------------------------------------- to the page

    async def _get_page(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("file", "index.html")
        data = self._files.get(name)
        if data is None:
            raise _Refused(404, "not found")
        return web.Response(body=data, headers={"Content-Type": _mime(name)})

    async def _get_job(self, request: web.Request) -> web.StreamResponse:
        body = self._handle(request).job.model_dump_json()
        return web.Response(body=body.encode(), headers={"Content-Type": _MIME[".json"]})

    async def _get_data(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        data = self._data.get(f"data/{request.match_info['digest']}/{quote(name)}")
        if data is None:
            raise _Refused(404, "not found")
        headers = {"Content-Type": _mime(name)}
        if isinstance(data, Path):
            return web.FileResponse(data, headers=headers)
        return web.Response(body=data, headers=headers)

    # ----------------------------------------------------------------------- from the page

    async def _post_progress(self, request: web.Request) -> web.StreamResponse:
        handle = self._handle(request)
        body = await _read(request, PROGRESS_BYTES)
        try:
            progress = Progress.model_validate_json(bytes(body))
        except ValidationError as error:
            raise _Refused(400, _words(error)) from None
        handle.progress = progress
        if handle._on_progress:
            handle._on_progress(progress)
        return web.Response(status=204)

    async def _post_blob(self, request: web.Request) -> web.StreamResponse:
        handle = self._handle(request)
        label, blob, offset, length = self._piece(handle, request)
        if blob.busy:
            raise _Refused(409, f"blob {label}: two pieces at once")
        blob.busy = True
        try:
            place = memoryview(blob.data)[offset : offset + length]
            await _read_into(request, place)
            blob.received += length
        finally:
            blob.busy = False
        return web.Response(status=204)

    def _piece(self, handle: JobHandle, request: web.Request) -> tuple[str, _Blob, int, int]:
        """The blob that a piece belongs to, and where the piece lies in it; in bytes."""
        label = request.query.get("label", "")
        if label not in {op.label for op in handle.job.program if op.op == "read"}:
            raise _Refused(400, f"blob {label!r}: not in the program")
        expected = handle.job.flat_size * 4
        numbers = [request.query.get("offset", ""), request.query.get("total", "")]
        if not all(re.fullmatch(r"[0-9]{1,15}", number) for number in numbers):
            raise _Refused(400, f"blob {label}: offset and total in bytes are needed")
        offset, total = (int(number) for number in numbers)
        length = request.content_length
        if length is None:
            raise _Refused(411, f"blob {label}: without a length")
        if total != expected:
            raise _Refused(400, f"blob {label}: {total} bytes announced, {expected} expected")
        if length > PIECE_BYTES or offset + length > total or length % 4 or length == 0:
            raise _Refused(413, f"blob {label}: {length} bytes at {offset} do not fit")
        blob = handle._blobs.get(label)
        if blob is None:
            blob = handle._blobs[label] = _Blob(bytearray(total))
        if offset != blob.received:
            raise _Refused(409, f"blob {label}: piece at {offset}, {blob.received} bytes are here")
        return label, blob, offset, length

    async def _post_result(self, request: web.Request) -> web.StreamResponse:
        handle = self._handle(request)
        if handle._future.done():
            raise _Refused(409, "this job has its result")
        body = await _read(request, RESULT_BYTES)
        if handle._future.done():
            raise _Refused(409, "this job has its result")
        try:
            result = JobResult.model_validate_json(bytes(body))
            check_result(handle.job, result, set(handle.blobs))
        except (ValidationError, SlotError) as error:
            words = _words(error) if isinstance(error, ValidationError) else str(error)
            handle._future.set_exception(SlotError(f"the page broke the protocol: {words}"))
            raise _Refused(400, words) from None
        handle._future.set_result(result)
        return web.Response(status=204)


def check_result(job: Job, result: JobResult, blobs: set[str]) -> None:
    """Does this result answer this job's program?

    Raises:
        SlotError: naming what does not fit.
    """
    if result.job != job.job:
        raise SlotError(f"a result of job {result.job!r} was posted to job {job.job!r}")
    if (result.status == "failed") != (result.error is not None):
        raise SlotError(f"status {result.status} with error {result.error}")
    if len(result.ops) > len(job.program):
        raise SlotError(f"{len(result.ops)} results of {len(job.program)} instructions")
    if result.status == "ok" and len(result.ops) < len(job.program):
        raise SlotError(f"status ok after {len(result.ops)} of {len(job.program)} instructions")
    for index, (op, given) in enumerate(zip(job.program, result.ops, strict=False)):
        where = f"instruction {index} ({op.op})"
        if (given.op, given.label) != (op.op, op.label):
            raise SlotError(f"{where}: the result is of {given.op} {given.label}")
        if op.op == "train":
            counts = (given.steps, len(given.losses), len(given.grad_norms))
            if counts != (op.steps,) * 3 or given.ms is None or given.first_step is None:
                raise SlotError(f"{where}: {counts} steps, losses and norms instead of {op.steps}")
        if op.op in ("readback", "sentinel") and len(given.values_ms) != (op.count or 0):
            raise SlotError(f"{where}: {len(given.values_ms)} values instead of {op.count}")
        if op.op == "read" and op.label not in blobs:
            raise SlotError(f"{where}: blob {op.label} is not complete")
        times = [given.ms, given.compile_ms, given.upload_ms, *given.values_ms]
        if any(not 0 <= time < float("inf") for time in times if time is not None):
            raise SlotError(f"{where}: a time is negative or not finite: {times[:8]}")
    free_form = [result.ran, result.memory, result.adapter, *(op.detail for op in result.ops)]
    if any(_depth(value, MAX_DEPTH) > MAX_DEPTH for value in free_form):
        raise SlotError(f"a value is nested deeper than {MAX_DEPTH}")


def _depth(value: object, limit: int) -> int:
    """Nesting of lists and dicts, looked at no deeper than `limit` + 1."""
    if limit < 0 or not isinstance(value, dict | list) or not value:
        return 0
    children = value.values() if isinstance(value, dict) else value
    return 1 + max(_depth(child, limit - 1) for child in children)


async def _read(request: web.Request, limit: int) -> bytearray:
    """A whole body of at most `limit` bytes."""
    if (request.content_length or 0) > limit:
        raise _Refused(413, f"a body of {request.content_length} bytes, {limit} allowed")
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise _Refused(413, f"a body of more than {limit} bytes")
    return body


async def _read_into(request: web.Request, place: memoryview) -> None:
    """A body of exactly the length of `place`."""
    filled = 0
    async for chunk in request.content.iter_any():
        if filled + len(chunk) > len(place):
            raise _Refused(413, "a body longer than its announced length")
        place[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    if filled != len(place):
        raise _Refused(400, f"{filled} bytes arrived, {len(place)} announced")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _mime(name: str) -> str:
    return _MIME.get(Path(name).suffix, _OCTETS)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _words(error: ValidationError) -> str:
    """The first two complaints, without the input (which may be huge)."""
    parts = []
    for item in error.errors(include_url=False, include_input=False)[:2]:
        where = ".".join(str(part) for part in item["loc"])
        parts.append(f"{where}: {item['msg']}" if where else str(item["msg"]))
    return "; ".join(parts)[:500]

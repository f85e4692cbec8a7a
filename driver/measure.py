"""One job → one fresh page → one outcome. Nothing is retried."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from driver.browser import BrowserSession, Page
from driver.errors import SlotError
from driver.records import Job, JobResult, PageEvent, PageFailure, Progress
from driver.server import JobHandle, JobServer

# After an event that should not happen, how long the page has to post its own reason.
GRACE_S = 3.0

_FATAL = {
    "console-error",
    "page-error",
    "request-failed",
    "http-error",
    "bad-request",
    "crash",
    "disconnected",
}


@dataclass(frozen=True)
class JobOutcome:
    """What came of one job. `failure` is set exactly when `status` is "failed"."""

    job: str
    status: Literal["ok", "failed"]
    failure: PageFailure | None
    result: JobResult | None
    blobs: dict[str, bytearray] = field(repr=False)
    events: tuple[PageEvent, ...]
    wall_ms: float


async def run_job(
    session: BrowserSession,
    server: JobServer,
    job: Job,
    *,
    deadline_s: float,
    on_progress: Callable[[Progress], None] | None = None,
) -> JobOutcome:
    """Run one job in a fresh page of `session` and wait for its end, at most `deadline_s`.

    A crash, a hang, a console error, a page error, a failed request or a refused one make the
    outcome "failed" with the reason; what the page measured before is kept in `result`.
    """
    began = time.monotonic()
    handle = server.open_job(job, on_progress)
    result: JobResult | None = None
    failure: PageFailure | None = None
    events: list[PageEvent] = []
    try:
        async with session.page() as page:
            try:
                result, failure = await _answer(page, handle, deadline_s)
            finally:
                events = [*page.events, *handle.events]
    finally:
        handle.close()
    if result and result.error:
        failure = result.error
    failure = failure or _fatal(events)
    return JobOutcome(
        job=job.job,
        status="failed" if failure else "ok",
        failure=failure,
        result=result,
        blobs=handle.blobs,
        events=tuple(events),
        wall_ms=(time.monotonic() - began) * 1e3,
    )


async def _answer(
    page: Page, handle: JobHandle, deadline_s: float
) -> tuple[JobResult | None, PageFailure | None]:
    answer = asyncio.ensure_future(handle.result())
    trouble = asyncio.ensure_future(page.troubled.wait())
    try:
        async with asyncio.timeout(deadline_s):
            await page.open(handle.url)
            await asyncio.wait({answer, trouble, page.failed}, return_when="FIRST_COMPLETED")
            if not answer.done() and not page.failed.done():
                await asyncio.wait(
                    {answer, page.failed}, timeout=GRACE_S, return_when="FIRST_COMPLETED"
                )
        if answer.done():
            return answer.result(), None
        if page.failed.done():
            return None, PageFailure(kind="crash", message=page.failed.result().message)
        return None, _fatal(page.events)
    except TimeoutError:
        return None, PageFailure(kind="crash", message=_hang(handle, deadline_s))
    except SlotError as error:
        return None, PageFailure(kind="protocol", message=str(error))
    finally:
        for task in (answer, trouble):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, SlotError):
                await task


def _hang(handle: JobHandle, deadline_s: float) -> str:
    last = handle.progress
    where = "before its first instruction ended"
    if last:
        op = handle.job.program[min(last.op, len(handle.job.program) - 1)].op
        where = f"after instruction {last.op} ({op}), {last.steps_done} steps done"
    return f"no answer within {deadline_s:g} s (deadline of this job), {where}"


def _fatal(events: list[PageEvent]) -> PageFailure | None:
    """The first event that no clean run has."""
    for event in events:
        if event.kind in _FATAL:
            kind = "crash" if event.kind in ("crash", "disconnected") else "failed"
            return PageFailure(kind=kind, message=f"{event.kind}: {event.message}")
    return None

"""One job → one fresh page → one outcome. Nothing is retried."""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from driver.browser import OpenPage, Session
from driver.errors import SlotError, Unsupported
from driver.records import Job, JobResult, OpResult, PageEvent, PageFailure, Progress
from driver.server import JobHandle, JobServer

# After an event that should not happen, how long the page has to post its own reason, in seconds.
GRACE_S = 2.0
# How long a browser may take to open and close a page, beside the job itself.
PAGE_S = 15.0

# Events that no clean run has. A refused or failed request, a red line in the console: each means
# that something ran otherwise than it was meant to.
FATAL_KINDS = frozenset(
    {
        "console-error",
        "page-error",
        "request-failed",
        "http-error",
        "bad-request",
        "crash",
        "disconnected",
    }
)
# Chromium reports a GPU's errors as warnings when no scope catches them, and the run goes on.
_GPU_WARNING = re.compile(
    r"\binvalid\b|validation|out.of.memory|\blost\b|destroyed|exceed|"
    r"While (encoding|calling|validating|initializing|creating)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class JobOutcome:
    """What came of one job. `failure` is set exactly when `status` is "failed".

    `ops` is what the instructions gave, as far as the page came: also where it crashed or hung and
    there is no `result`.
    """

    job: str
    status: Literal["ok", "failed"]
    failure: PageFailure | None
    result: JobResult | None
    ops: tuple[OpResult, ...]
    blobs: dict[str, bytearray] = field(repr=False)
    arrivals_ms: tuple[float, ...]
    """When the page told of each instruction's end, by the driver's own clock."""
    events: tuple[PageEvent, ...]
    wall_ms: float


def failed_because(outcome: JobOutcome) -> str:
    """Why it failed, in a few words."""
    failure = outcome.failure
    return f"{failure.kind}: {failure.message}" if failure else "it gave no result"


def expect_result(outcome: JobOutcome, failed: str, arm: str) -> JobOutcome:
    """The outcome of a job of `arm` that gave a result.

    Raises Unsupported with what is lacking here, or SlotError, which says `failed` and why.
    """
    failure = outcome.failure
    if failure and failure.kind == "unsupported":
        raise Unsupported(f"arm {arm}: {failure.message}")
    if failure or outcome.result is None:
        raise SlotError(f"{failed}: {failed_because(outcome)}")
    return outcome


async def run_job(
    session: Session,
    server: JobServer,
    job: Job,
    *,
    deadline_s: float,
    on_progress: Callable[[Progress], None] | None = None,
) -> JobOutcome:
    """Run one job in a fresh page of `session` and wait for its end, at most `deadline_s`.

    A crash, a hang, a console error, a page error, a failed request or a refused one make the
    outcome "failed" with the reason; what was measured before is kept in `ops`.
    """
    began = time.monotonic()
    handle = server.open_job(job, on_progress)
    result: JobResult | None = None
    events: list[PageEvent] = []
    try:
        # A browser that died may never answer the request for a page, nor for its end.
        async with asyncio.timeout(deadline_s + PAGE_S), session.page() as page:
            result, failure = await _answer(page, handle, deadline_s)
        # Only now: closing brings in the console's last lines.
        events = [*page.events, *handle.events, *_hidden(result)]
    except SlotError as error:
        failure = PageFailure(kind="crash", message=str(error))
    except TimeoutError:
        failure = PageFailure(kind="crash", message="the browser no longer opens or closes pages")
    finally:
        handle.close()
    if result and result.error:
        failure = result.error
    failure = failure or _first_fatal(events)
    return JobOutcome(
        job=job.job,
        status="failed" if failure else "ok",
        failure=failure,
        result=result,
        ops=tuple(result.ops if result else handle.ops),
        blobs=handle.blobs,
        arrivals_ms=tuple(handle.arrivals_ms),
        events=tuple(events),
        wall_ms=(time.monotonic() - began) * 1e3,
    )


async def _answer(
    page: OpenPage, handle: JobHandle, deadline_s: float
) -> tuple[JobResult | None, PageFailure | None]:
    """The page's result, or why there is none."""
    answer: asyncio.Future[Any] = asyncio.ensure_future(handle.result())
    trouble: asyncio.Future[Any] = asyncio.ensure_future(page.troubled.wait())
    try:
        async with asyncio.timeout(deadline_s):
            await page.open(handle.url)
            await asyncio.wait({answer, page.failed, trouble}, return_when="FIRST_COMPLETED")
            await asyncio.wait(
                {answer, page.failed}, timeout=GRACE_S, return_when="FIRST_COMPLETED"
            )
        if answer.done():
            return answer.result(), None
        if page.failed.done():
            return None, PageFailure(kind="crash", message=page.failed.result().message)
        return None, _first_fatal(page.events)
    except TimeoutError:
        return None, PageFailure(kind="hang", message=_hang(handle, deadline_s, page.events))
    except SlotError as error:
        return None, PageFailure(kind="protocol", message=str(error))
    finally:
        for task in (answer, trouble):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, SlotError):
                await task


def _hang(handle: JobHandle, deadline_s: float, events: list[PageEvent]) -> str:
    where = "before its first instruction ended"
    last = handle.progress
    if last:
        op = handle.job.program[last.op].op
        where = f"after instruction {last.op} ({op}) and {last.steps_done} steps"
    event = _first_fatal(events)
    why = f"; {event.message}" if event else ""
    return f"no answer within {deadline_s:g} s (this job's deadline), {where}{why}"


def _hidden(result: JobResult | None) -> Iterable[PageEvent]:
    if result is None:
        return
    page = result.page
    if page.hidden_events or page.visibility != "visible":
        message = f"{page.hidden_events} times hidden, at the end {page.visibility}"
        yield PageEvent(kind="hidden", message=message)
    if page.frozen_events or page.stalled_ms:
        message = (
            f"frozen {page.frozen_events} times; its clock was left alone for "
            f"{page.stalled_ms / 1000:.1f} s longer than asked: throttled, or the device slept"
        )
        yield PageEvent(kind="frozen", message=message)


def _first_fatal(events: Iterable[PageEvent]) -> PageFailure | None:
    for event in events:
        of_the_gpu = event.kind == "console-warning" and _GPU_WARNING.search(event.message)
        if event.kind in FATAL_KINDS or of_the_gpu:
            gone = event.kind in ("crash", "disconnected")
            return PageFailure(
                kind="crash" if gone else "failed", message=f"{event.kind}: {event.message}"
            )
    return None

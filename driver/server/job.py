"""One job as the server sees it: what its page may post, and what it has posted."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from driver.errors import SlotError
from driver.records import Job, JobResult, Op, OpResult, PageEvent, Progress

PIECE_BYTES = 64 << 20
MAX_DEPTH = 16
MAX_EVENTS = 200

_Model = TypeVar("_Model", bound=BaseModel)


class RefusedError(Exception):
    """A request that gets a 4xx answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Blob:
    """A section on its way from the page: pieces arrive in order, each exactly once."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.data = bytearray(total)
        self.received = 0
        self.busy = False

    @property
    def complete(self) -> bool:
        """Whether every byte has arrived."""
        return self.received == len(self.data)


class JobHandle:
    """An open job. `close` it when its page is gone."""

    def __init__(
        self,
        job: Job,
        url: str,
        on_progress: Callable[[Progress], None] | None,
        on_close: Callable[[], None],
    ) -> None:
        self.job = job
        self.url = url
        self.events: list[PageEvent] = []
        self.progress: Progress | None = None
        self.ops: list[OpResult] = []
        """What the instructions gave that the page has told of; in order."""
        self.arrivals_ms: list[float] = []
        """When each of them arrived, by the driver's clock since the job was opened."""
        self._opened = time.monotonic()
        self._on_progress = on_progress
        self._on_close = on_close
        self._labels = {
            op.label: _posted_bytes(op, job.flat_size)
            for op in job.program
            if op.op in ("read", "kernel", "operation") and op.label
        }
        self._blobs: dict[str, Blob] = {}
        self._future: asyncio.Future[JobResult] = asyncio.get_running_loop().create_future()

    async def result(self) -> JobResult:
        """The page's result.

        Raises:
            SlotError: the page posted something that is not this job's result.
        """
        return await asyncio.shield(self._future)

    @property
    def blobs(self) -> dict[str, bytearray]:
        """Complete blobs by label, little-endian; float32 but for an operation's."""
        return {label: blob.data for label, blob in self._blobs.items() if blob.complete}

    def close(self) -> None:
        """Forget the job: its URLs are 404 from here on, and nobody waits for it any more."""
        self._on_close()
        if not self._future.done():
            self._future.cancel()
        elif not self._future.cancelled():
            self._future.exception()  # looked at, so that asyncio does not report it as lost

    # ----------------------------------------------------------------------- for the server

    def note(self, message: str) -> None:
        """Record a bad request."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(PageEvent(kind="bad-request", message=message))

    def accept_progress(self, body: bytearray) -> None:
        """Raises RefusedError."""
        progress = parsed(Progress, body)
        if progress.op != len(self.ops) or progress.op >= len(self.job.program):
            raise RefusedError(400, f"progress of instruction {progress.op} after {len(self.ops)}")
        try:
            check_op(self.job.program, progress.op, progress.result, set(self.blobs))
        except SlotError as error:
            raise RefusedError(400, str(error)) from None
        self.arrivals_ms.append((time.monotonic() - self._opened) * 1e3)
        self.ops.append(progress.result)
        self.progress = progress
        if self._on_progress:
            self._on_progress(progress)

    def place(self, query: Mapping[str, str], length: int | None) -> tuple[Blob, memoryview]:
        """The blob that a piece of `length` bytes belongs to and its place there.

        Raises RefusedError.
        """
        label = query.get("label", "")
        if label not in self._labels:
            raise RefusedError(400, f"blob {label[:100]!r} is not in the program")
        numbers = [query.get("offset", ""), query.get("total", "")]
        if not all(re.fullmatch(r"[0-9]{1,15}", number) for number in numbers):
            raise RefusedError(400, f"blob {label}: offset and total in bytes are needed")
        offset, total = (int(number) for number in numbers)
        expected = self._labels[label]
        if total != expected:
            raise RefusedError(400, f"blob {label}: {total} bytes announced, {expected} expected")
        if length is None:
            raise RefusedError(411, f"blob {label}: a piece without a length")
        if not 0 < length <= min(PIECE_BYTES, total - offset) or length % 4 or offset % 4:
            raise RefusedError(413, f"blob {label}: {length} bytes at {offset} do not fit")
        blob = self._blobs.get(label) or Blob(label, total)
        if offset != blob.received or blob.busy:
            raise RefusedError(
                409, f"blob {label}: a piece at {offset} while {blob.received} bytes are here"
            )
        self._blobs[label] = blob
        return blob, memoryview(blob.data)[offset : offset + length]

    def expect_result(self) -> None:
        """Raises RefusedError when a result is here already."""
        if self._future.done():
            raise RefusedError(409, "this job has its result")

    def accept_result(self, body: bytearray) -> None:
        """Takes the result, or ends the job because of it and raises RefusedError."""
        self.expect_result()
        try:
            result = parsed(JobResult, body)
            check_result(self.job, result, set(self.blobs))
        except (RefusedError, SlotError) as error:
            self.fail(str(error))
            raise RefusedError(400, str(error)) from None
        self._future.set_result(result)

    def fail(self, reason: str) -> None:
        """Ends the job: the page broke the protocol."""
        if not self._future.done():
            self._future.set_exception(SlotError(f"the page broke the protocol: {reason}"))


def check_result(job: Job, result: JobResult, blobs: set[str]) -> None:
    """Does this result answer this job's program? `blobs` are the labels of complete blobs.

    Raises:
        SlotError: naming what does not fit.
    """
    if result.job != job.job:
        raise SlotError(f"a result of job {result.job[:100]!r} was posted to job {job.job!r}")
    if (result.status == "failed") != (result.error is not None):
        raise SlotError(f"status {result.status} with error {result.error}")
    done, asked = len(result.ops), len(job.program)
    if done > asked or (result.status == "ok" and done < asked):
        raise SlotError(f"status {result.status} with {done} results of {asked} instructions")
    for index, given in enumerate(result.ops):
        check_op(job.program, index, given, blobs)
    if _depth([result.ran, result.memory, result.adapter], MAX_DEPTH) > MAX_DEPTH:
        raise SlotError(f"a value is nested deeper than {MAX_DEPTH}")


def check_op(program: tuple[Op, ...], index: int, given: OpResult, blobs: set[str]) -> None:
    """Is this what instruction `index` of the program gives?

    Raises:
        SlotError: naming what does not fit.
    """
    op, where = program[index], f"instruction {index} ({program[index].op})"
    if (given.op, given.label) != (op.op, op.label):
        raise SlotError(f"{where}: this is the result of {given.op} {given.label}")
    if op.op in ("train", "count"):
        counts = (given.steps, len(given.losses), len(given.grad_norms))
        if counts != (op.steps,) * 3 or given.ms is None or given.first_step is None:
            raise SlotError(f"{where}: {counts} steps, losses and norms instead of {op.steps}")
    if op.op in ("readback", "sentinel", "gpu_sentinel") and len(given.values_ms) != (
        op.count or 0
    ):
        raise SlotError(f"{where}: {len(given.values_ms)} values instead of {op.count}")
    if (
        op.op == "read" or (op.op in ("kernel", "operation") and op.label)
    ) and op.label not in blobs:
        raise SlotError(f"{where}: blob {op.label} is not complete")
    times = [given.ms, given.compile_ms, given.upload_ms, *given.values_ms]
    wrong = [ms for ms in times if ms is not None and not 0 <= ms < math.inf]
    if wrong:
        raise SlotError(f"{where}: {wrong[0]} ms is no duration")
    if _depth(given.detail, MAX_DEPTH) > MAX_DEPTH:
        raise SlotError(f"{where}: a value is nested deeper than {MAX_DEPTH}")


def _posted_bytes(op: Op, flat_size: int) -> int:
    """Bytes of what an instruction posts."""
    if op.kernel:
        return 4 * op.kernel.M * op.kernel.N
    if op.operation:
        return sum(o.size_bytes for o in op.operation.operands if o.role != "in")
    return 4 * flat_size


def _depth(value: object, limit: int) -> int:
    """Nesting of lists and dicts, looked at no deeper than `limit` + 1."""
    if limit < 0 or not isinstance(value, dict | list) or not value:
        return 0
    children = value.values() if isinstance(value, dict) else value
    return 1 + max(_depth(child, limit - 1) for child in children)


def parsed(model: type[_Model], body: bytearray) -> _Model:
    """A record from JSON; raises RefusedError with the first complaints, not the (huge) input."""
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RefusedError(400, f"Invalid JSON: {error}"[:500]) from None
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        parts = []
        for item in error.errors(include_url=False, include_input=False)[:2]:
            where = ".".join(str(part) for part in item["loc"])
            parts.append(f"{where}: {item['msg']}" if where else str(item["msg"]))
        raise RefusedError(400, "; ".join(parts)[:500]) from None

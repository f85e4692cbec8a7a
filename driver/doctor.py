"""What this machine can do: one check per ability, each with what to do where it is missing."""

import asyncio
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from driver import corpus, presets
from driver.adapter import AdapterVerdict, judge_page
from driver.browser import BrowserChoice, BrowserFacts, BrowserSession
from driver.errors import DriverError
from driver.host import FAR, Host, host_of
from driver.layout import cache_dir
from driver.machine import (
    BUSY_SHARE,
    MachineFacts,
    MachineState,
    machine_facts,
    machine_state,
    others_cpu,
)
from driver.measure import JobOutcome, run_job
from driver.records import Job, Op, OthersCpu, Record
from driver.server import JobServer

Status = Literal["ok", "missing", "warning", "unknown"]

PROBE_DEADLINE_S = 60.0
_GIB = 1 << 30
_LOW_MEMORY_BYTES = 4 * _GIB
_LOW_DISK_BYTES = 1 * _GIB
_COARSE_TIMER_MS = 0.05
_NARROW_COLUMNS = 80
_UPDATE = "use a current Chromium, Chrome or Edge: driver setup, or --browser PATH"

# Without these no arm runs; SIMD, Memory64 and WebGPU are each needed by some arms only.
_NEEDED = {"python", "compiler", "cache", "browser", "page", "isolation"}


class Check(Record):
    """One ability."""

    name: str
    status: Status
    value: str
    remedy: str | None = None


class DoctorReport(Record):
    """All checks, in the order in which they matter."""

    checks: tuple[Check, ...]
    adapter: AdapterVerdict | None
    """The verdict on WebGPU's adapter; None where no page could be asked."""

    @property
    def ready(self) -> bool:
        """Whether the driver can work here; what only some arms need may be missing."""
        return not self.lacking

    @property
    def lacking(self) -> tuple[str, ...]:
        """What is missing and without which no arm runs."""
        return tuple(c.name for c in self.checks if c.status == "missing" and c.name in _NEEDED)


async def examine(choice: BrowserChoice | None, lack: str | None = None) -> DoctorReport:
    """Examines Python, the machine, the compiler, and what a page in the browser can do.

    Without a browser `lack` says why there is none, where that is known.
    Never raises for what is missing: that is what the report is for.
    """
    facts = await asyncio.to_thread(machine_facts)
    others, state = await asyncio.to_thread(others_cpu), machine_state()
    checks = [
        _python(), await _compiler(), _memory(facts), _cache(), await asyncio.to_thread(_corpus),
        *_state(state, others), _terminal(),
    ]  # fmt: skip
    verdict: AdapterVerdict | None = None
    if choice is None:
        checks.append(_no_browser(lack or "none found"))
        return DoctorReport(checks=tuple(checks), adapter=None)
    try:
        async with (
            JobServer(site=choice.site) as server,
            BrowserSession(choice) as session,
        ):
            await session.reach(server.base_url)
            browser = session.facts
            job = Job(job="doctor", program=(Op(op="probe"),))
            outcome = await run_job(session, server, job, deadline_s=PROBE_DEADLINE_S)
    except DriverError as error:
        checks.append(_no_browser(str(error)))
        return DoctorReport(checks=tuple(checks), adapter=None)

    checks.append(_browser(browser))
    if outcome.failure or not outcome.result:
        checks.append(_page_failed(outcome))
    else:
        detail = outcome.result.ops[0].detail
        verdict = judge_page(detail, browser.gpu_devices)
        host = host_of(browser, detail)
        checks += [*_page(detail, host), *_wasm(detail["wasm"]), _webgpu(detail, verdict, host)]
    return DoctorReport(checks=tuple(checks), adapter=verdict)


# --------------------------------------------------------------------------- without a browser


def _python() -> Check:
    value = f"{platform.python_version()} on {platform.platform(terse=True)}"
    return Check(name="python", status="ok", value=value)


async def _compiler() -> Check:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ziglang",
        "version",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        tail = err.decode(errors="replace").strip().splitlines()[-1:]
        return Check(
            name="compiler",
            status="missing",
            value="".join(tail) or f"exit {process.returncode}",
            remedy=f"{sys.executable} -m pip install ziglang",
        )
    return Check(name="compiler", status="ok", value=f"zig {out.decode().strip()}")


def _memory(facts: MachineFacts) -> Check:
    available = machine_state().memory_available_bytes
    low = available < _LOW_MEMORY_BYTES
    return Check(
        name="memory",
        status="warning" if low else "ok",
        value=f"{available / _GIB:.1f} of {facts.memory_total_bytes / _GIB:.1f} GiB available",
        remedy="close other programs, or use the presets tiny to medium" if low else None,
    )


def _state(state: MachineState, others: OthersCpu) -> Iterator[Check]:
    """Whether the machine is fit to be measured now."""
    share = others.share
    busy = share is not None and share > BUSY_SHARE
    yield Check(
        name="other load",
        status="unknown" if share is None else "warning" if busy else "ok",
        value=others.reason or f"others use {share or 0:.1%} of the machine's CPU time",
        remedy="make sure that nothing else runs while you measure"
        if share is None
        else "close other programs before you measure"
        if busy
        else None,
    )
    battery = state.power_source == "battery"
    yield Check(
        name="power",
        # A machine that reports no battery has no reason to be slow for want of power.
        status="warning" if battery else "ok",
        value=state.unknown.get("power_source", state.power_source),
        remedy="plug it in before you measure" if battery else None,
    )
    if state.low_power_mode is not None:
        yield Check(
            name="low-power mode",
            status="warning" if state.low_power_mode else "ok",
            value="on" if state.low_power_mode else "off",
            remedy="turn it off: it slows the machine down" if state.low_power_mode else None,
        )
    limit = state.speed_limit_percent
    if limit is not None:
        yield Check(
            name="heat",
            status="warning" if limit < 100 else "ok",
            value=f"the CPU may use {limit}% of its speed",
            remedy="let it cool down" if limit < 100 else None,
        )


def _cache() -> Check:
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            name="cache",
            status="missing",
            value=f"{folder}: {error.strerror}",
            remedy="make it writable, or name another folder with DRIVER_CACHE",
        )
    low = free < _LOW_DISK_BYTES
    return Check(
        name="cache",
        status="warning" if low else "ok",
        value=f"{folder}, {free / _GIB:.1f} GiB free",
        remedy="free some disk space, or name another folder with DRIVER_CACHE" if low else None,
    )


def _corpus() -> Check:
    """The text that presets train on by default is made here; some name another one."""
    made = corpus.load(None)
    others = [p.name for p in map(presets.load, presets.names()) if p.corpus_sha256]
    more = f"; {', '.join(others)} need a file of yours (--corpus FILE)" if others else ""
    return Check(
        name="corpus",
        status="ok",
        value=f"generated, {len(made.data):,} bytes, {made.sha256[:12]}{more}",
    )


def _terminal() -> Check:
    """What progress and reports can be shown on."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        "×→━▶".encode(encoding)
    except UnicodeEncodeError:
        return Check(
            name="terminal",
            status="warning",
            value=f"its encoding {encoding} lacks signs that reports use, ? stands for them",
            remedy="set PYTHONUTF8=1, or a UTF-8 locale such as LC_ALL=C.UTF-8",
        )
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # a file, a pipe, or a stream that is neither
        return Check(name="terminal", status="ok", value="none: progress comes as plain lines")
    narrow = 0 < columns < _NARROW_COLUMNS
    return Check(
        name="terminal",
        status="warning" if narrow else "ok",
        value=f"{columns} columns, {encoding}",
        remedy=f"reports are easier to read from {_NARROW_COLUMNS} columns on" if narrow else None,
    )


# --------------------------------------------------------------------------- with a browser


def _no_browser(lack: str) -> Check:
    """From an error's message: what is wrong is its first line, what to do about it the others."""
    value, _, remedy = lack.partition("\n")
    words = " ".join(remedy.split())
    return Check(name="browser", status="missing", value=value, remedy=words or _UPDATE)


def _browser(facts: BrowserFacts) -> Check:
    unsafe = "--no-sandbox" in facts.argv
    place = facts.executable or ("on another machine" if facts.remote else "its file is not known")
    return Check(
        name="browser",
        status="ok",
        value=f"{facts.name} {facts.version}, {place} ({facts.source})"
        + (", without its sandbox" if unsafe else ""),
        remedy="run as a user other than root to keep the browser's sandbox" if unsafe else None,
    )


def _page_failed(outcome: JobOutcome) -> Check:
    message = outcome.failure.message if outcome.failure else "no result"
    return Check(
        name="page",
        status="missing",
        value=f"the page that was to examine the browser failed: {message}",
        remedy=_UPDATE,
    )


def _page(detail: dict[str, Any], host: Host) -> Iterator[Check]:
    isolated = detail["cross_origin_isolated"]
    yield Check(
        name="isolation",
        status="ok" if isolated else "missing",
        value="cross-origin isolated" if isolated else "the page is not cross-origin isolated",
        remedy=None if isolated else _UPDATE,
    )
    step = detail["timer_step_ms"]
    coarse = step is None or step > _COARSE_TIMER_MS
    yield Check(
        name="timer",
        status="warning" if coarse else "ok",
        value="stands still" if step is None else f"performance.now() steps by {step * 1e3:g} µs",
        remedy="windows must be longer than usual; a current Chromium steps by 5 µs"
        if coarse
        else None,
    )
    reported = detail["hardware_concurrency"]
    expected = host.cores
    agrees = reported == expected
    yield Check(
        name="threads",
        status="ok" if agrees else "warning",
        value=f"the page reports {reported}; {FAR}"
        if host.remote
        else f"the page reports {reported}, the machine has {expected} usable cores",
        remedy=None
        if agrees
        else "a run measures how many are worth having; --arms wasm:threads=N fixes the number",
    )


def _wasm(wasm: dict[str, Any]) -> Iterator[Check]:
    for key, name, loss in (
        ("threads", "wasm threads", "without shared memory the wasm arms have one thread"),
        ("simd128", "wasm SIMD", "only simd=scalar works"),
        ("relaxed_simd", "wasm relaxed SIMD", "simd=simd128 works"),
        ("bulk_memory", "wasm bulk memory", "the wasm arms need it"),
        ("memory64_shared", "wasm Memory64", "wasm64 does not work, wasm does"),
    ):
        there = wasm.get(key) is True
        yield Check(
            name=name,
            status="ok" if there else "missing",
            value="yes" if there else f"no; {loss}",
            remedy=None if there else _UPDATE,
        )


def _webgpu(detail: dict[str, Any], verdict: AdapterVerdict, host: Host) -> Check:
    webgpu = detail["webgpu"]
    if not webgpu["available"]:
        return Check(
            name="WebGPU", status="missing", value=webgpu["reason"], remedy=_webgpu_remedy(host)
        )
    named = " ".join(
        str(webgpu[key]) for key in ("vendor", "architecture", "device") if webgpu.get(key)
    )
    status: dict[str, Status] = {"hardware": "ok", "software": "warning", "unknown": "unknown"}
    return Check(
        name="WebGPU",
        status=status[verdict.kind],
        value=f"{named or 'an adapter without a name'}: {verdict.kind} "
        f"({'; '.join(verdict.reasons)})",
        remedy=None
        if verdict.kind == "hardware"
        else "numbers can be checked here; for times that count, use a machine with a GPU",
    )


def _webgpu_remedy(host: Host) -> str:
    if not host.remote and sys.platform == "linux" and not Path("/dev/dri").exists():
        return f"there is no GPU device here (/dev/dri); {_UPDATE}"
    return _UPDATE

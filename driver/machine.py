"""Facts about the machine, which stay, and its state, which changes while one measures."""

import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import psutil

from driver.records import OthersCpu, Record

# Instruction sets worth telling apart when WebAssembly is timed.
_ISA = ("sse4_1", "sse4_2", "avx", "avx2", "fma", "avx512f", "asimd", "asimddp", "sve", "sve2")

LOW_MEMORY_BYTES = 1 << 30


class MachineFacts(Record):
    """What does not change from run to run."""

    cpu: str
    architecture: str
    isa: tuple[str, ...]
    cores_physical: int | None
    cores_logical: int
    cores_usable: int
    cpu_quota_cores: float | None = None
    memory_total_bytes: int
    system: str
    system_version: str
    python: str


class MachineState(Record):
    """What may differ before and after a run; None with `unknown` naming why where not known."""

    utc: str
    load_1min: float | None
    load_5min: float | None
    memory_available_bytes: int
    swap_used_bytes: int | None
    cpu_mhz: float | None
    governor: str | None
    power_source: Literal["mains", "battery", "unknown"]
    battery_percent: float | None
    low_power_mode: bool | None
    speed_limit_percent: int | None
    thermal_throttles: int | None = None
    unknown: dict[str, str]


def usable_cores() -> int:
    """Cores that the system lets this process use: affinity and quota count."""
    return _usable_cores(cpu_quota_cores())


@lru_cache
def machine_facts() -> MachineFacts:
    """Facts about this machine; takes about a second once, for the CPU's name."""
    cpu = _cpu_info()
    return MachineFacts(
        cpu=cpu.get("brand_raw") or platform.processor() or platform.machine(),
        architecture=platform.machine(),
        isa=tuple(name for name in _ISA if name in cpu.get("flags", ())),
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=psutil.cpu_count() or 1,
        cores_usable=usable_cores(),
        cpu_quota_cores=cpu_quota_cores(),
        memory_total_bytes=psutil.virtual_memory().total,
        system=platform.system(),
        system_version=_system_version(),
        python=platform.python_version(),
    )


def machine_state() -> MachineState:
    """The machine's state now; takes milliseconds (tens of them on a Mac)."""
    unknown: dict[str, str] = {}
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    if load is None:
        unknown["load"] = "this system has no load average"
    power, percent = _power(unknown)
    mac = _mac_power(unknown)
    if power == "unknown" and mac.source != "unknown":
        power = mac.source
        unknown.pop("power_source", None)
    return MachineState(
        utc=datetime.now(UTC).isoformat(timespec="seconds"),
        load_1min=load[0] if load else None,
        load_5min=load[1] if load else None,
        memory_available_bytes=psutil.virtual_memory().available,
        swap_used_bytes=_swap_used(unknown),
        cpu_mhz=_cpu_mhz(unknown),
        governor=_governor(unknown),
        power_source=power,
        battery_percent=percent,
        low_power_mode=mac.low_power_mode,
        speed_limit_percent=mac.speed_limit_percent,
        thermal_throttles=_throttles(unknown),
        unknown=unknown,
    )


# One look at the machine before a run: each sample a share of all cores' time.
SAMPLES, SAMPLE_S = 3, 0.4
BUSY_SHARE = 0.1


def others_cpu() -> OthersCpu:
    """The share of the machine's CPU time that others use now; takes about a second.

    For a moment in which nothing of ours runs but this process, whose own time is left out.
    """
    shares = []
    try:
        before = _cpu_times()
        for _ in range(SAMPLES):
            time.sleep(SAMPLE_S)
            after = _cpu_times()
            shares.append(others_share(before, after))
            before = after
    except (OSError, RuntimeError, NotImplementedError) as error:
        return OthersCpu(shares=(), reason=f"this system does not tell: {error}")
    if any(share is None for share in shares):
        return OthersCpu(shares=(), reason="this system's clocks of CPU time stood still")
    return OthersCpu(shares=tuple(share for share in shares if share is not None))


def others_share(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Busy time of all cores less our own, over all time; None where no time passed.

    `own` is this process's. Guests' time is in `user` already; waiting for a disk is idle.
    """
    passed = {key: after[key] - before[key] for key in before if not key.startswith("guest")}
    own = passed.pop("own")
    whole = sum(passed.values())
    if whole <= 0:
        return None
    idle = passed["idle"] + passed.get("iowait", 0.0)
    return min(1.0, max(0.0, (whole - idle - own) / whole))


class OthersWatch:
    """The share of the machine's CPU time that others use while the driver and a browser work.

    Ours is that of this process, of those that it started and of `more`, such as a browser that
    somebody else started, each with its descendants. Asking takes some milliseconds.
    """

    LEAST_S = 0.3  # systems count CPU time in hundredths of a second

    def __init__(self, more: Iterable[psutil.Process] = ()) -> None:
        self._roots = (psutil.Process(), *more)
        self._before: dict[str, float] | None = None
        self._began = 0.0

    def begin(self) -> None:
        """From now on."""
        self._before, self._began = self._now(), time.monotonic()

    def share(self) -> float | None:
        """Since `begin`; None where this system does not tell, or the time was too short."""
        if self._before is None or time.monotonic() - self._began < self.LEAST_S:
            return None
        after = self._now()
        return None if after is None else others_share(self._before, after)

    def _now(self) -> dict[str, float] | None:
        try:
            return {**psutil.cpu_times()._asdict(), "own": _cpu_of_families(self._roots)}
        except (OSError, RuntimeError, NotImplementedError, psutil.Error):
            return None


def _cpu_of_families(roots: Iterable[psutil.Process]) -> float:
    """Seconds that processes and their descendants used, those that have ended among them."""
    family: dict[int, psutil.Process] = {}
    for root in roots:
        with suppress(psutil.Error):
            family |= {process.pid: process for process in (root, *root.children(recursive=True))}
    spent = 0.0
    for process in family.values():
        with suppress(psutil.Error):
            times = process.cpu_times()
            # A process that ended counts with the parent that waited for it.
            spent += times.user + times.system + times.children_user + times.children_system
    return spent


def _cpu_times() -> dict[str, float]:
    own = psutil.Process().cpu_times()
    return {**psutil.cpu_times()._asdict(), "own": own.user + own.system}


def warnings(state: MachineState, others: OthersCpu) -> list[str]:
    """What of the machine's state may spoil a measurement, in plain words with what to do."""
    found = []
    share = others.share
    if share is not None and share > BUSY_SHARE:
        found.append(
            f"other programs use {share:.0%} of this machine's CPU time: close them, or the gate "
            "`quiet` will not pass"
        )
    if state.power_source == "battery":
        left = "" if state.battery_percent is None else f" ({state.battery_percent:.0f}%)"
        found.append(f"the machine runs on battery{left}: plug it in, or it may slow down")
    if state.low_power_mode:
        found.append("low-power mode is on and slows the machine down: turn it off")
    if state.speed_limit_percent is not None and state.speed_limit_percent < 100:
        found.append(
            f"heat limits the CPU to {state.speed_limit_percent}% of its speed: let it cool down"
        )
    if state.memory_available_bytes < LOW_MEMORY_BYTES:
        found.append(
            f"only {state.memory_available_bytes / 2**30:.1f} GiB of memory are available: close "
            "other programs, or the system may swap"
        )
    return found


@contextmanager
def awake() -> Iterator[None]:
    """Keeps a Mac from sleeping or dimming while the body runs; does nothing elsewhere."""
    if sys.platform != "darwin":
        yield
        return
    # -w: caffeinate ends with this process, also when it is killed.
    process = subprocess.Popen(["/usr/bin/caffeinate", "-dims", "-w", str(os.getpid())])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


# --------------------------------------------------------------------------- facts


def _cpu_info() -> dict[str, Any]:
    """py-cpuinfo in a process of its own: it forks, which is no good beside threads."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cpuinfo", "--json"],
            capture_output=True,
            check=True,
            timeout=30,
        )
        info = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _usable_cores(quota: float | None) -> int:
    """Cores that this process may use: a container may have fewer, or a share of their time."""
    cores = psutil.cpu_count() or 1
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_quota_cores(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Cores' worth of time that this process's control groups allow; None without a limit.

    Source: the kernel's documentation of cgroup v2 (cpu.max) and v1 (cpu.cfs_quota_us). The limit
    is the smallest on the way up; a container may see its own group as the root.
    """
    found = []
    for line in _text(groups).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            found.append(_quota(folder))
    return min((quota for quota in found if quota is not None), default=None)


def _quota(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    if not words:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = (float(word) for word in words)
    except ValueError:  # `max`, or no such files
        return None
    return quota / period if quota > 0 and period > 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _system_version() -> str:
    if sys.platform == "darwin":
        return platform.mac_ver()[0]
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return f"{name} ({platform.release()})" if name else platform.release()


# --------------------------------------------------------------------------- state


def _power(unknown: dict[str, str]) -> tuple[Literal["mains", "battery", "unknown"], float | None]:
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is None:
        unknown["power_source"] = "no battery is reported, so probably mains"
        return "unknown", None
    if battery.power_plugged is None:
        unknown["power_source"] = "the battery does not say whether it is charging"
        return "unknown", battery.percent
    return ("mains" if battery.power_plugged else "battery"), battery.percent


class MacPower(Record):
    """What `pmset` tells of a Mac; None and "unknown" where it does not."""

    source: Literal["mains", "battery", "unknown"] = "unknown"
    low_power_mode: bool | None = None
    speed_limit_percent: int | None = None


def parse_pmset(settings: str, therm: str, batt: str) -> MacPower:
    """From the output of `pmset -g`, `pmset -g therm` and `pmset -g batt`."""
    mode = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)", settings, re.MULTILINE)
    limits = re.findall(r"CPU_(?:Speed|Scheduler)_Limit\s*=\s*(\d+)", therm)
    drawing = re.search(r"drawing from '(AC|Battery|UPS) Power'", batt)
    names: dict[str, Literal["mains", "battery"]] = {"AC": "mains", "Battery": "battery"}
    return MacPower(
        source=names.get(drawing.group(1), "unknown") if drawing else "unknown",
        low_power_mode=mode.group(1) == "1" if mode else None,  # 2 is the high-power mode
        speed_limit_percent=min(map(int, limits)) if limits else None,
    )


def _mac_power(unknown: dict[str, str]) -> MacPower:
    """Power source, low-power mode and the CPU's thermal speed limit in percent."""
    if sys.platform != "darwin":
        unknown["low_power_mode"] = unknown["speed_limit_percent"] = "only macOS tells"
        return MacPower()
    found = parse_pmset(_pmset("-g"), _pmset("-g", "therm"), _pmset("-g", "batt"))
    if found.low_power_mode is None:
        unknown["low_power_mode"] = "pmset does not report it on this Mac"
    if found.speed_limit_percent is None:
        unknown["speed_limit_percent"] = "pmset has recorded no thermal level"
    return found


def _throttles(unknown: dict[str, str], root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """How often the cores have been slowed by heat since the system started; Linux on x86."""
    counts = [_text(path).strip() for path in root.glob("cpu*/thermal_throttle/*_throttle_count")]
    numbers = [int(count) for count in counts if count.isdigit()]
    if not numbers:
        unknown["thermal_throttles"] = "this system does not count them"
        return None
    return sum(numbers)


def _pmset(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["/usr/bin/pmset", *arguments], capture_output=True, text=True, check=False, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _swap_used(unknown: dict[str, str]) -> int | None:
    try:
        return int(psutil.swap_memory().used)
    except (OSError, RuntimeError) as error:
        unknown["swap_used_bytes"] = str(error)
        return None


def _cpu_mhz(unknown: dict[str, str]) -> float | None:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, RuntimeError, AttributeError, NotImplementedError):
        frequency = None
    if not frequency or not frequency.current:
        unknown["cpu_mhz"] = "this system does not report it"
        return None
    return float(frequency.current)


def _governor(unknown: dict[str, str]) -> str | None:
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text()
    except OSError:
        unknown["governor"] = "this system does not report it"
        return None
    return text.strip()

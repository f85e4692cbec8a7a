"""Facts about the machine, which stay, and its state, which changes while one measures."""

import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import psutil

from driver.records import Record

# Instruction sets worth telling apart when WebAssembly is timed.
_ISA = ("sse4_1", "sse4_2", "avx", "avx2", "fma", "avx512f", "asimd", "asimddp", "sve", "sve2")


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
    unknown: dict[str, str]


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
        cores_usable=_usable_cores(cpu_quota_cores()),
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
    low_power, limit = _mac_power(unknown)
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
        low_power_mode=low_power,
        speed_limit_percent=limit,
        unknown=unknown,
    )


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


def _mac_power(unknown: dict[str, str]) -> tuple[bool | None, int | None]:
    """Low-power mode and the CPU's thermal speed limit in percent."""
    if sys.platform != "darwin":
        unknown["low_power_mode"] = unknown["speed_limit_percent"] = "only macOS tells"
        return None, None
    mode = re.search(r"lowpowermode\s+(\d)", _pmset("-g"))
    limit = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", _pmset("-g", "therm"))
    if not mode:
        unknown["low_power_mode"] = "pmset does not report it on this Mac"
    if not limit:
        unknown["speed_limit_percent"] = "pmset has recorded no thermal level"
    return (mode.group(1) == "1" if mode else None), (int(limit.group(1)) if limit else None)


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

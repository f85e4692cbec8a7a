"""Facts about the machine, the verdict on its adapter, and the doctor's report."""

import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from receipts import CPU_ROOFLINE, GPU_ROOFLINES

from driver import machine
from driver.adapter import RULE, AdapterSignals, AdapterSpeed, judge, speed_of
from driver.browser import BrowserChoice, find_browser
from driver.doctor import examine
from driver.machine import (
    MachineState,
    MacPower,
    OthersWatch,
    awake,
    cpu_quota_cores,
    machine_facts,
    machine_state,
    others_cpu,
    others_share,
    parse_pmset,
    warnings,
)
from driver.records import OthersCpu, Roofline

# --------------------------------------------------------------------------- the machine


def test_facts() -> None:
    facts = machine_facts()
    assert facts.cpu.strip()
    assert 1 <= facts.cores_usable <= facts.cores_logical
    assert facts.memory_total_bytes == psutil.virtual_memory().total
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert machine_facts() is facts


def test_state_says_why_something_is_unknown() -> None:
    state = machine_state()
    assert 0 < state.memory_available_bytes <= machine_facts().memory_total_bytes
    for name in (
        "swap_used_bytes",
        "cpu_mhz",
        "governor",
        "battery_percent",
        "low_power_mode",
        "speed_limit_percent",
    ):
        if getattr(state, name) is None:
            assert state.unknown.get(name) or state.unknown.get("power_source"), name
    assert (state.power_source == "unknown") == ("power_source" in state.unknown)
    assert state.utc.endswith("+00:00")


def test_staying_awake_lasts_no_longer_than_its_body() -> None:
    before = len(psutil.Process().children())
    with awake():
        pass
    assert len(psutil.Process().children()) == before


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b\n", {"cpu.max": "200000 100000"}, 2.0),  # a container sees its own as the root
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/a\n", {"a/cpu.max": "nonsense"}, None),
        ("0::/../../x\n", {}, None),
        ("", {"cpu.max": "100000 100000"}, None),
        (
            "7:memory:/x\n4:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        (
            "4:cpu:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_a_quota_of_time(
    tmp_path: Path, groups: str, files: dict[str, str], cores: float | None
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpu_quota_cores(tmp_path / "groups", tmp_path / "root") == cores
    assert cpu_quota_cores(tmp_path / "none", tmp_path / "root") is None


# --------------------------------------------------------------------------- others


BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}], check=True)"


@pytest.mark.parametrize("waits", [True, False])
def test_the_time_of_a_family_is_ours(waits: bool) -> None:
    """Of children and theirs, whether they still run or have ended."""
    root = psutil.Process()
    before = machine._cpu_of_families([root])
    with subprocess.Popen([sys.executable, "-c", PARENT]) as child:
        if waits:
            child.wait()
        else:
            burnt = before
            while burnt < before + 0.25:
                assert child.poll() is None or burnt > before
                time.sleep(0.02)
                burnt = machine._cpu_of_families([root])
            child.wait()
        after = machine._cpu_of_families([root, root])  # each process once
    assert 0.25 <= after - before < 5


def test_others_while_we_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy time that is not the family's; None where too little time passed, or nothing tells."""
    watch = OthersWatch()
    assert watch.share() is None
    moments = iter([{"user": 0.0, "idle": 0.0, "own": 0.0}, {"user": 6.0, "idle": 4.0, "own": 5.0}])
    monkeypatch.setattr(watch, "_now", lambda: next(moments))
    watch.begin()
    monkeypatch.setattr(watch, "_began", watch._began - 1)
    assert watch.share() == pytest.approx(0.1)
    watch = OthersWatch()
    watch.begin()
    assert watch.share() is None  # at once: counted in hundredths of a second

    def silent() -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "cpu_times", silent)
    watch.begin()
    monkeypatch.setattr(watch, "_began", watch._began - 1)
    assert watch.share() is None


def test_others_share_of_the_time_now() -> None:
    found = others_cpu()
    assert found.reason is None
    assert len(found.shares) == 3
    assert all(0 <= share <= 1 for share in found.shares)
    assert found.share == sorted(found.shares)[1]


@pytest.mark.parametrize(
    ("passed", "share"),
    [
        ({"user": 2.0, "system": 1.0, "idle": 7.0, "own": 0.0}, 0.3),
        ({"user": 2.0, "system": 1.0, "idle": 7.0, "own": 2.0}, 0.1),  # ours does not count
        ({"user": 2.0, "system": 0.0, "idle": 4.0, "iowait": 4.0, "own": 0.0}, 0.2),
        ({"user": 2.0, "system": 0.0, "idle": 8.0, "guest": 2.0, "own": 0.0}, 0.2),
        ({"user": 0.0, "system": 0.0, "idle": 8.0, "steal": 2.0, "own": 0.0}, 0.2),
        ({"user": 0.0, "system": 0.0, "idle": 1.0, "own": 0.5}, 0.0),  # coarse clocks
        ({"user": 0.0, "system": 0.0, "idle": 0.0, "own": 0.0}, None),
    ],
)
def test_others_share(passed: dict[str, float], share: float | None) -> None:
    before = dict.fromkeys(passed, 100.0)
    after = {key: 100.0 + value for key, value in passed.items()}
    assert others_share(before, after) == (share if share is None else pytest.approx(share))


# --------------------------------------------------------------------------- a Mac's power

PMSET = """System-wide power settings:
Currently in use:
 standby              1
 lowpowermode         {mode}
 sleep                1 (sleep prevented by caffeinate)
"""
NO_THERM = """Note: No thermal warning level has been recorded
Note: No performance warning level has been recorded
Note: No CPU power status has been recorded
"""
THERM = """2026-11-30 07:00:00 +0000
 CPU_Scheduler_Limit \t= 100
 CPU_Available_CPUs \t= 8
 CPU_Speed_Limit \t= 62
"""
ON_BATTERY = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1) 93%; discharging\n"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (("", "", ""), MacPower()),
        (
            (PMSET.format(mode=0), NO_THERM, "Now drawing from 'AC Power'\n"),
            MacPower(source="mains", low_power_mode=False),
        ),
        (
            (PMSET.format(mode=1), THERM, ON_BATTERY),
            MacPower(source="battery", low_power_mode=True, speed_limit_percent=62),
        ),
        ((" powermode            2\n", "", ""), MacPower(low_power_mode=False)),
        ((" powermode            1\n", "", ""), MacPower(low_power_mode=True)),
        (("", "", "Now drawing from 'UPS Power'"), MacPower()),
    ],
)
def test_what_pmset_says(texts: tuple[str, str, str], found: MacPower) -> None:
    assert parse_pmset(*texts) == found


def state(**changes: Any) -> MachineState:
    calm = {
        "power_source": "mains", "low_power_mode": False, "speed_limit_percent": 100,
        "memory_available_bytes": 8 << 30,
    }  # fmt: skip
    return machine_state().model_copy(update=calm | changes)


QUIET = OthersCpu(shares=(0.01, 0.02, 0.03))


@pytest.mark.parametrize(
    ("changes", "others", "words"),
    [
        ({}, QUIET, None),
        ({}, OthersCpu(shares=(), reason="not told"), None),
        ({}, OthersCpu(shares=(0.5,)), "other programs use 50%"),
        ({"power_source": "battery", "battery_percent": 40.0}, QUIET, "on battery (40%)"),
        ({"low_power_mode": True}, QUIET, "low-power mode is on"),
        ({"speed_limit_percent": 62}, QUIET, "62% of its speed"),
        ({"memory_available_bytes": 1 << 29}, QUIET, "only 0.5 GiB"),
    ],
)
def test_a_person_is_warned_beforehand(
    changes: dict[str, Any], others: OthersCpu, words: str | None
) -> None:
    said = warnings(state(**changes), others)
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


# --------------------------------------------------------------------------- the adapter

SWIFTSHADER_GL = (
    "ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero) (0x0000C0DE)), SwiftShader driver)"
)
APPLE = {"vendor": "apple", "architecture": "metal-3", "is_fallback": False}
APPLE_GL = "ANGLE (Apple, ANGLE Metal Renderer: Apple M3 Pro, Unspecified Version)"
NVIDIA = {"vendor": "nvidia", "architecture": "ampere", "is_fallback": False}
NVIDIA_GL = "ANGLE (NVIDIA, NVIDIA GeForce RTX 3080 (0x00002206) Direct3D11 vs_5_0 ps_5_0, D3D11)"
NVIDIA_PCI = {"vendorId": 0x10DE, "deviceId": 0x2206, "deviceString": ""}
INTEL_PCI = {"vendorId": 0x8086, "deviceId": 0x3E9B, "deviceString": "Intel UHD 630"}
SWIFTSHADER_DEVICE = {"vendorId": 0xFFFF, "deviceId": 0xFFFF, "deviceString": SWIFTSHADER_GL}


@pytest.mark.parametrize(
    ("webgpu", "devices", "webgl", "kind", "words"),
    [
        # As measured in headless Chromium on a machine without a GPU.
        (
            {"vendor": "google", "architecture": "swiftshader", "is_fallback": True},
            [SWIFTSHADER_DEVICE],
            SWIFTSHADER_GL,
            "software",
            "fallback adapter",
        ),
        ({"vendor": "google", "architecture": "swiftshader"}, [], None, "software", "architecture"),
        ({**NVIDIA, "is_fallback": True}, [NVIDIA_PCI], NVIDIA_GL, "software", "fallback"),
        ({"vendor": "mesa", "device": "llvmpipe (LLVM 15)"}, [], None, "software", "llvmpipe"),
        ({"vendor": "", "description": "lavapipe"}, [], None, "software", "lavapipe"),
        (
            {"vendor": "microsoft", "description": "Microsoft Basic Render Driver"},
            [],
            None,
            "software",
            "Basic Render",
        ),
        ({"vendor": "microsoft", "architecture": "warp"}, [], None, "software", "warp"),
        ({**NVIDIA, "type": "CPU"}, [NVIDIA_PCI], NVIDIA_GL, "software", "type"),
        # A browser that hides the adapter's name does not hide the renderer's.
        ({"vendor": ""}, [SWIFTSHADER_DEVICE], None, "software", "GPU process"),
        ({"vendor": ""}, [], SWIFTSHADER_GL, "software", "WebGL"),
        # Two witnesses that agree.
        (APPLE, [], APPLE_GL, "hardware", "apple"),
        (NVIDIA, [NVIDIA_PCI], None, "hardware", "nvidia"),
        (NVIDIA, [], NVIDIA_GL, "hardware", "WebGL"),
        (NVIDIA, [INTEL_PCI, NVIDIA_PCI], None, "hardware", "GPU process"),
        (
            {"vendor": "amd", "is_fallback": False},
            [{"vendorId": 0x1002, "deviceString": "AMD Radeon"}],
            None,
            "hardware",
            "Radeon",
        ),
        # One witness alone, contradictions, silence.
        (NVIDIA, [], None, "unknown", "the other signals name nothing"),
        (NVIDIA, [INTEL_PCI], None, "unknown", "name intel"),
        (NVIDIA, [], APPLE_GL, "unknown", "name apple"),
        (NVIDIA, [SWIFTSHADER_DEVICE], None, "unknown", "GPU process lists"),
        (NVIDIA, [NVIDIA_PCI], SWIFTSHADER_GL, "unknown", "SwiftShader"),
        ({"vendor": "nvidia"}, [NVIDIA_PCI], NVIDIA_GL, "unknown", "no fallback"),
        ({**NVIDIA, "is_fallback": None}, [NVIDIA_PCI], NVIDIA_GL, "unknown", "no fallback"),
        ({}, [NVIDIA_PCI], NVIDIA_GL, "unknown", "names no vendor"),
        ({"vendor": "acme", "is_fallback": False}, [], None, "unknown", "'acme'"),
        (None, [NVIDIA_PCI], NVIDIA_GL, "unknown", "no WebGPU adapter"),
        ({}, [{}], "", "unknown", "'nothing'"),
    ],
)
def test_verdicts(
    webgpu: dict[str, Any] | None,
    devices: list[dict[str, Any]],
    webgl: str | None,
    kind: str,
    words: str,
) -> None:
    signals = AdapterSignals(webgpu=webgpu, gpu_devices=tuple(devices), webgl_renderer=webgl)
    verdict = judge(signals)
    assert verdict.kind == kind, verdict
    assert words in "; ".join(verdict.reasons)


GPU = GPU_ROOFLINES["hardware"]


def slowed(gflops: Any = None, gbs: Any = None) -> Roofline:
    """A GPU that reaches this instead."""
    changes = {"all_gflops": gflops, "bandwidth_all_gbs": gbs}
    return GPU.model_copy(update={key: [value] for key, value in changes.items() if value})


# The cores reach 80 GFLOP/s and 16 GB/s.
@pytest.mark.parametrize(
    ("adapter", "cpu", "cores", "kind"),
    [
        ([GPU], CPU_ROOFLINE, 2, "hardware"),
        ([slowed(641.0, 5.0)], CPU_ROOFLINE, 2, "hardware"),
        ([slowed(640.0, 48.0)], CPU_ROOFLINE, 2, None),
        ([slowed(79.0, 48.1)], CPU_ROOFLINE, 2, "hardware"),
        ([slowed(81.0, 48.0)], CPU_ROOFLINE, 2, None),
        ([slowed(80.0, 48.0)], CPU_ROOFLINE, 2, "software"),
        ([GPU_ROOFLINES["software"]], CPU_ROOFLINE, 2, "software"),
        # The slower of two measurements counts.
        ([GPU, GPU_ROOFLINES["software"]], CPU_ROOFLINE, 2, "software"),
        ([GPU, None], CPU_ROOFLINE, 2, "hardware"),
        # Two threads were measured; 256 cores would reach 10240 GFLOP/s and 2048 GB/s.
        ([GPU], CPU_ROOFLINE, 256, "software"),
        ([GPU], CPU_ROOFLINE, None, "hardware"),
        ([GPU], CPU_ROOFLINE, -5, "hardware"),
        ([GPU], CPU_ROOFLINE, "256", "hardware"),
        ([GPU], CPU_ROOFLINE, 10**30, "hardware"),
        ([GPU], CPU_ROOFLINE, True, "hardware"),
        # What is not measured, or no number.
        ([], CPU_ROOFLINE, 2, "unmeasured"),
        ([None], CPU_ROOFLINE, 2, "unmeasured"),
        ([GPU], None, 2, "unmeasured"),
        ([slowed(math.nan)], CPU_ROOFLINE, 2, "unmeasured"),
        ([slowed(math.inf)], CPU_ROOFLINE, 2, "unmeasured"),
        ([slowed(-9e3)], CPU_ROOFLINE, 2, "unmeasured"),
        ([slowed(gbs=math.inf)], CPU_ROOFLINE, 2, "unmeasured"),
        ([GPU.model_copy(update={"all_gflops": []})], CPU_ROOFLINE, 2, "unmeasured"),
        (
            [GPU],
            CPU_ROOFLINE.model_copy(update={"core_gflops": [0.0], "all_gflops": [math.nan]}),
            2,
            "unmeasured",
        ),
    ],
)
def test_speeds(
    adapter: list[Roofline | None], cpu: Roofline | None, cores: Any, kind: str | None
) -> None:
    speed = speed_of(adapter, cpu, cores, RULE)
    assert speed.kind == kind, speed.reason


@pytest.mark.parametrize(
    ("names", "speed", "kind"),
    [
        ("hardware", "hardware", "hardware"),
        ("hardware", None, "hardware"),
        ("hardware", "software", "unknown"),
        ("hardware", "unmeasured", "unknown"),
        ("software", "hardware", "unknown"),
        ("software", None, "software"),
        ("software", "software", "software"),
        ("software", "unmeasured", "software"),
        ("unknown", "hardware", "unknown"),
        ("unknown", "software", "unknown"),
    ],
)
def test_names_and_speed(names: str, speed: Any, kind: str) -> None:
    """Speed takes a word away, and never gives the better one."""
    signals = {
        "hardware": AdapterSignals(webgpu=NVIDIA, gpu_devices=(NVIDIA_PCI,)),
        "software": AdapterSignals(webgpu=NVIDIA | {"is_fallback": True}),
        "unknown": AdapterSignals(webgpu=NVIDIA),
    }[names]
    assert judge(signals).kind == names
    verdict = judge(signals, AdapterSpeed(kind=speed, reason="it is this fast"))
    assert verdict.kind == kind
    assert "it is this fast" in "; ".join(verdict.reasons)
    if kind == "unknown" and names != "unknown":
        assert verdict.reasons[0] == f"its names say {names}, but it is this fast"


@pytest.mark.parametrize("missing", ["webgpu", "gpu_devices", "webgl_renderer"])
def test_less_evidence_never_makes_software_into_hardware(missing: str) -> None:
    full = {
        "webgpu": {"vendor": "google", "architecture": "swiftshader", "is_fallback": True},
        "gpu_devices": (SWIFTSHADER_DEVICE,),
        "webgl_renderer": SWIFTSHADER_GL,
    }
    del full[missing]
    assert judge(AdapterSignals.model_validate(full)).kind in ("software", "unknown")


# --------------------------------------------------------------------------- the doctor


async def test_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = find_browser(None)
    if choice is None:
        pytest.skip("no browser on this machine; `driver setup` gets one")
    monkeypatch.setenv("DRIVER_CACHE", str(tmp_path / "new" / "cache"))
    report = await examine(choice)
    checks = {check.name: check for check in report.checks}
    for name in ("python", "compiler", "cache", "browser", "isolation", "timer", "wasm threads"):
        assert checks[name].status in ("ok", "warning"), checks[name]
    assert checks["compiler"].value.startswith("zig 0.")
    assert {"wasm SIMD", "wasm relaxed SIMD", "wasm Memory64", "WebGPU"} <= set(checks)
    for check in report.checks:
        if check.status != "ok":
            assert check.remedy, check
    assert report.adapter is not None
    assert (report.adapter.kind == "hardware") == (checks["WebGPU"].status == "ok")


@pytest.mark.parametrize("path", [None, "/bin/false"])
async def test_doctor_without_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRIVER_CACHE", str(tmp_path / "file"))
    report = await examine(BrowserChoice(path=path, source="test") if path else None)
    checks = {check.name: check for check in report.checks}
    assert checks["browser"].status == checks["cache"].status == "missing"
    assert checks["browser"].remedy and "DRIVER_CACHE" in (checks["cache"].remedy or "")
    assert report.adapter is None

"""Signals about the GPU → hardware, software or unknown, with reasons. No I/O.

Three witnesses speak: what WebGPU says of its adapter, what the browser's GPU process lists, and
what WebGL calls its renderer. `hardware` needs the first to name a vendor that makes GPUs and a
second one to name the same; whatever is missing or contradicts gives `unknown`, never the better
word.

A fourth does not speak, so it cannot be told what to say: how fast the adapter computes and moves
memory, beside all cores of this machine in the same page. What the others call hardware is none
if it is no faster than a program on these cores may be.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from driver.records import AdapterRule, Environment, Plan, Record, Roofline

# The cores' figures come from WebAssembly, whose vectors have 128 bits. A native program's may have
# 512, four times as much; twice that for what WebAssembly leaves. The triad counts three of the
# four transfers that a core makes (a store reads its line first); twice that, in round figures.
# SwiftShader, with vectors of 128 bits as well, reaches about a tenth of the cores' FLOP/s.
RULE = AdapterRule(
    hardware_flops=8.0,
    hardware_bandwidth=3.0,
    software_flops=1.0,
    rule="Best samples of multiply-adds and of a triad, the adapter's over those of all cores of "
    "this machine (WebAssembly, 128 bits). More than 8 times their FLOP/s, or 3 times their "
    "bandwidth, is beyond any program on them: hardware. No more FLOP/s than theirs and no such "
    "bandwidth is what software reaches; called hardware by the other signals, such an adapter is "
    "unknown, and so is one that was not measured. In between the speed decides nothing.",
)

# Renderers that compute on the CPU.
_SOFTWARE = re.compile(
    r"swiftshader|swangle|llvmpipe|lavapipe|softpipe|\bwarp\b|basic render|software|\bcpu\b",
    re.IGNORECASE,
)
# Vendors of GPUs: PCI ID, and how strings name them.
_VENDORS: dict[str, tuple[int, str]] = {
    "nvidia": (0x10DE, r"nvidia|geforce|quadro|tesla"),
    "amd": (0x1002, r"\bamd\b|radeon|\bati\b"),
    "intel": (0x8086, r"intel"),
    "apple": (0x106B, r"apple"),
    "qualcomm": (0x5143, r"qualcomm|adreno"),
    "arm": (0x13B5, r"\barm\b|mali"),
    "img-tec": (0x1010, r"imagination|powervr|img-tec"),
}
_NO_PCI_DEVICE = (0, 0xFFFF)


FAR_SPEED = (
    "the browser runs on another machine, and only its page says how many cores its speed is to be "
    "set beside"
)


class AdapterSignals(Record):
    """What the three witnesses say; None or empty where one is silent."""

    webgpu: dict[str, Any] | None = None
    gpu_devices: tuple[dict[str, Any], ...] = ()
    webgl_renderer: str | None = None


class AdapterVerdict(Record):
    """The word and everything it rests on."""

    kind: Literal["hardware", "software", "unknown"]
    reasons: tuple[str, ...]


class AdapterSpeed(Record):
    """What the adapter's speed says: None where it lies between what tells."""

    kind: Literal["hardware", "software", "unmeasured"] | None
    reason: str


def judge(signals: AdapterSignals, speed: AdapterSpeed | None = None) -> AdapterVerdict:
    """What computes behind WebGPU here; `speed` is None where it was not asked for.

    `webgpu` holds GPUAdapterInfo's fields (vendor, architecture, device, description, perhaps type)
    and `is_fallback`; `gpu_devices` are CDP's SystemInfo devices.
    """
    said = _judge_names(signals)
    if speed is None or signals.webgpu is None:
        return said
    contradicts = {"hardware": ("software", "unmeasured"), "software": ("hardware",)}
    if speed.kind in contradicts.get(said.kind, ()):
        first = f"its names say {said.kind}, but {speed.reason}"
        return AdapterVerdict(kind="unknown", reasons=(first, *said.reasons))
    return AdapterVerdict(kind=said.kind, reasons=(*said.reasons, speed.reason))


def _judge_names(signals: AdapterSignals) -> AdapterVerdict:
    if signals.webgpu is None:
        return AdapterVerdict(kind="unknown", reasons=("there is no WebGPU adapter",))
    vendor = _vendor(_text(signals.webgpu))
    software = [*_own_software(signals.webgpu)]
    if software or vendor is None:
        software += _other_software(signals)
    if software:
        return AdapterVerdict(kind="software", reasons=tuple(software))
    doubts = tuple(_doubts(signals, vendor))
    if doubts or vendor is None:
        return AdapterVerdict(kind="unknown", reasons=doubts)
    reasons = (f"the WebGPU adapter names {vendor}", *_witnesses(signals, vendor))
    return AdapterVerdict(kind="hardware", reasons=reasons)


def judge_run(plan: Plan, environment: Environment) -> AdapterVerdict:
    """The verdict from a run's raw data, by the plan's rule for its speed."""
    speed = None
    if environment.machine.get("remote") is True:
        # Its page alone says how many cores it has: a lie would make a program on them a GPU.
        speed = AdapterSpeed(kind="unmeasured", reason=FAR_SPEED)
    elif plan.adapter_rule:
        speed = speed_of(
            [arm.roofline for arm in plan.arms if arm.name == "webgpu"],
            environment.cpu_roofline,
            environment.machine.get("cores_usable"),
            plan.adapter_rule,
        )
    signals = {
        "webgpu": environment.adapter,
        "gpu_devices": environment.browser.get("gpu_devices") or (),
        "webgl_renderer": environment.features.get("webgl_renderer"),
    }
    return judge(AdapterSignals.model_validate(signals), speed)


def speed_of(
    adapter: Sequence[Roofline | None], cpu: Roofline | None, cores: object, rule: AdapterRule
) -> AdapterSpeed:
    """What the adapter's rooflines say beside that of the processor, which has `cores` cores.

    Of several measurements of the adapter the slowest counts: a clock that is wrong makes it fast.
    """
    found = [line for line in adapter if line]
    flops = min((best_sample(line.all_gflops) for line in found), default=0.0)
    bandwidth = min((best_sample(line.bandwidth_all_gbs) for line in found), default=0.0)
    # On a busy machine all threads together may have reached less than one alone.
    core_flops = best_sample([*cpu.core_gflops, *cpu.all_gflops]) if cpu else 0.0
    core_bandwidth = best_sample([*cpu.bandwidth_core_gbs, *cpu.bandwidth_all_gbs]) if cpu else 0.0
    if not (flops and bandwidth and core_flops and core_bandwidth and cpu):
        return AdapterSpeed(
            kind="unmeasured", reason="how fast it computes beside this machine is not known"
        )
    idle = 1.0
    if isinstance(cores, int) and not isinstance(cores, bool) and 0 < cores < 2**20:
        idle = max(1.0, cores / cpu.threads)  # cores that took no part count as busy ones
    by_flops = flops / (core_flops * idle)
    by_bandwidth = bandwidth / (core_bandwidth * idle)
    words = (
        f"it reaches {flops:.4g} GFLOP/s and {bandwidth:.4g} GB/s, {by_flops:.3g} and "
        f"{by_bandwidth:.3g} times what this machine's cores do"
    )
    if by_flops > rule.hardware_flops or by_bandwidth > rule.hardware_bandwidth:
        return AdapterSpeed(kind="hardware", reason=f"{words}: more than any program on them")
    if by_flops <= rule.software_flops:
        return AdapterSpeed(kind="software", reason=f"{words}: no more than a program on them")
    return AdapterSpeed(kind=None, reason=f"{words}: either is possible")


def best_sample(samples: Sequence[float]) -> float:
    """The largest that is a number above 0, else 0: what disturbs a machine only adds time."""
    return max((x for x in samples if 0 < x < math.inf), default=0.0)


def _doubts(signals: AdapterSignals, vendor: str | None) -> Iterator[str]:
    """Why an adapter that does not look like software may not be called hardware either."""
    webgpu = signals.webgpu or {}
    if vendor is None:
        yield f"the WebGPU adapter names no vendor of GPUs: {webgpu.get('vendor') or 'nothing'!r}"
        return
    if webgpu.get("is_fallback") is not False:
        yield f"the WebGPU adapter names {vendor}, but does not say that it is no fallback"
    for reason in _other_software(signals):
        yield f"the WebGPU adapter names {vendor}, but {reason}"
    if not any(_witnesses(signals, vendor)):
        seen = ", ".join(sorted(set(_other_vendors(signals)))) or "nothing"
        yield f"the WebGPU adapter names {vendor}, the other signals name {seen}"


def judge_page(
    features: Mapping[str, Any], gpu_devices: tuple[dict[str, Any], ...]
) -> AdapterVerdict:
    """The verdict from names alone: a page's probe and the devices that the browser lists."""
    webgpu = features.get("webgpu")
    available = isinstance(webgpu, dict) and webgpu.get("available") is True
    return judge(
        AdapterSignals(
            webgpu=webgpu if available else None,
            gpu_devices=gpu_devices,
            webgl_renderer=features.get("webgl_renderer"),
        )
    )


def _own_software(webgpu: dict[str, Any]) -> Iterator[str]:
    if webgpu.get("is_fallback") is True:
        yield "the WebGPU adapter says that it is a fallback adapter"
    for key in ("vendor", "architecture", "device", "description", "type", "driver"):
        value = str(webgpu.get(key) or "")
        if _SOFTWARE.search(value):
            yield f"the WebGPU adapter's {key} is {value!r}"


def _other_software(signals: AdapterSignals) -> Iterator[str]:
    # A machine may list a second, idle device: only if none is real do the devices say software.
    devices = [_software_device(device) for device in signals.gpu_devices]
    if devices and all(devices):
        yield f"the browser's GPU process lists {devices[0]}"
    renderer = signals.webgl_renderer or ""
    if _SOFTWARE.search(renderer):
        yield f"WebGL's renderer is {renderer!r}"


def _software_device(device: dict[str, Any]) -> str | None:
    """Why this device of the GPU process is none, or None."""
    text = " ".join(str(device.get(key) or "") for key in ("deviceString", "driverVendor"))
    if _SOFTWARE.search(text):
        return repr(text.strip())
    if device.get("vendorId") == 0xFFFF:
        return "vendor 0xffff, which Chromium gives to software"
    return None


def _witnesses(signals: AdapterSignals, vendor: str) -> Iterator[str]:
    for device in signals.gpu_devices:
        if _device_vendor(device) == vendor:
            name = device.get("deviceString") or f"device {device.get('deviceId', 0):#06x}"
            yield f"the browser's GPU process lists {name!r}"
    if _vendor(signals.webgl_renderer or "") == vendor:
        yield f"WebGL's renderer is {signals.webgl_renderer!r}"


def _other_vendors(signals: AdapterSignals) -> Iterator[str]:
    for vendor in (
        *(_device_vendor(device) for device in signals.gpu_devices),
        _vendor(signals.webgl_renderer or ""),
    ):
        if vendor:
            yield vendor


def _device_vendor(device: dict[str, Any]) -> str | None:
    pci = device.get("vendorId")
    if pci not in _NO_PCI_DEVICE:
        for name, (known, _) in _VENDORS.items():
            if pci == known:
                return name
    return _vendor(f"{device.get('vendorString') or ''} {device.get('deviceString') or ''}")


def _text(webgpu: dict[str, Any]) -> str:
    return " ".join(str(webgpu.get(key) or "") for key in ("vendor", "description", "device"))


def _vendor(text: str) -> str | None:
    """The first GPU vendor that a string names. ANGLE names the vendor before the device."""
    found = [
        (match.start(), name)
        for name, (_, pattern) in _VENDORS.items()
        if (match := re.search(pattern, text, re.IGNORECASE))
    ]
    return min(found)[1] if found else None

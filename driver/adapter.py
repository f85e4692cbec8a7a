"""Signals about the GPU → hardware, software or unknown, with reasons. No I/O.

Three witnesses: what WebGPU says of its adapter, what the browser's GPU process lists, and what
WebGL calls its renderer. `hardware` needs the first to name a vendor that makes GPUs and a second
one to name the same; whatever is missing or contradicts gives `unknown`, never the better word.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

from driver.records import Record

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


class AdapterSignals(Record):
    """What the three witnesses say; None or empty where one is silent."""

    webgpu: dict[str, Any] | None = None
    gpu_devices: tuple[dict[str, Any], ...] = ()
    webgl_renderer: str | None = None


class AdapterVerdict(Record):
    """The word and everything it rests on."""

    kind: Literal["hardware", "software", "unknown"]
    reasons: tuple[str, ...]


def judge(signals: AdapterSignals) -> AdapterVerdict:
    """What computes behind WebGPU here.

    `webgpu` holds GPUAdapterInfo's fields (vendor, architecture, device, description, perhaps type)
    and `is_fallback`; `gpu_devices` are CDP's SystemInfo devices.
    """
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


def judge_page(features: dict[str, Any], gpu_devices: tuple[dict[str, Any], ...]) -> AdapterVerdict:
    """The verdict from a page's probe and the devices that the browser lists over CDP."""
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

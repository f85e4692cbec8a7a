"""The machine on which the browser runs: this one, or what a page tells of another.

What is measured belongs to the browser's machine. Where that is another, this one's processor,
load, power and heat say nothing of it, so none of them stands for it: a record then holds what the
page told, and this machine's facts under `driver`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driver.browser import BrowserFacts
from driver.machine import MachineFacts, MachineState, machine_facts
from driver.records import OthersCpu

FAR = "the browser runs on another machine, or could not be shown to run on this one"
FAR_LOAD = f"{FAR}; how busy it is cannot be seen from here"


@dataclass(frozen=True)
class Host:
    """`machine` is the record's; `cores` is how many threads can run at the same time there."""

    remote: bool
    machine: dict[str, Any]
    cores: int

    def state(self, state: MachineState) -> dict[str, Any]:
        """The record of a state that was seen on this machine."""
        return state_record(state, self.remote)

    def load(self, state: MachineState) -> float | None:
        """Load of the last minute; None where it is not this machine's browser."""
        return None if self.remote else state.load_1min

    def others(self, others: OthersCpu) -> OthersCpu:
        """What others used of the browser's machine."""
        return OthersCpu(shares=(), reason=FAR_LOAD) if self.remote else others


def host_of(browser: BrowserFacts, features: Mapping[str, Any]) -> Host:
    """The browser's machine; `features` are what a page's probe found."""
    here = machine_facts()
    if not browser.remote:
        return Host(False, here.model_dump(mode="json"), here.cores_usable)
    said = features.get("hardware_concurrency")
    cores = said if isinstance(said, int) and said > 0 else 1
    return Host(True, _far(browser, features.get("platform"), cores, here), cores)


def state_record(state: MachineState, remote: bool) -> dict[str, Any]:
    """A state as records hold it: under `driver` where it is not that of the browser's machine."""
    seen = state.model_dump(mode="json")
    if not remote:
        return seen
    return {"utc": state.utc, "load_1min": None, "unknown": {"load": FAR_LOAD}, "driver": seen}


def _far(browser: BrowserFacts, platform: object, cores: int, here: MachineFacts) -> dict[str, Any]:
    """Another machine's facts, under the keys that this one's have."""
    said: Mapping[str, Any] = platform if isinstance(platform, Mapping) else {}
    words = {key: str(said.get(key) or "")[:80] for key in ("name", "version", "model")}
    system = re.search(r"\(([^)]*)\)", browser.user_agent)
    names = [browser.host, words["model"], f"{words['name']} {words['version']}".strip()]
    shown = [name for name in names if name] or [system.group(1)[:80] if system else "unnamed"]
    return {
        "cpu": f"another machine ({', '.join(shown)})",
        "architecture": str(said.get("architecture") or "unknown")[:80],
        "isa": [],
        "cores_physical": None,
        "cores_logical": cores,
        "cores_usable": cores,
        "cpu_quota_cores": None,
        "memory_total_bytes": None,
        "system": words["name"] or (system.group(1)[:80] if system else "unknown"),
        "system_version": words["version"],
        "remote": True,
        "remote_reason": f"{FAR}; its cores are those that its page tells",
        "driver": here.model_dump(mode="json"),
    }

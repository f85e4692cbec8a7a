"""A receipt as one page of HTML: no scripts, nothing from outside, light and dark, for a phone
and for paper.

What a receipt says is hostile until it is escaped. Every value passes `_shown` on its way into the
template, which makes visible what hides and cuts what is endless, and is then escaped by jinja2.
The page's own policy forbids scripts and requests as well.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from driver.later import later
from driver.receipt import Examination
from driver.records import ArmPlan, ArmSummary, Gate, Receipt, Roofline, Slot
from driver.report.historical import comparison_text
from driver.report.profile import PROFILE_HEADINGS, profile_notes, profile_rows
from driver.report.terminal import number_text, visible
from driver.report.words import (
    MARK,
    arm_name,
    curve_lines,
    doubts,
    estimate_lines,
    first_known,
    hero,
    how_opened,
    others_text,
    peak_gflops,
    quartiles_text,
    reached_gflops,
    roofline_share,
    variants_tried,
    what_ran,
)
from driver.wording import counted

if TYPE_CHECKING:
    from driver.report import figures
else:  # it needs matplotlib, which takes a third of a second to import
    figures = later("driver.report.figures")

_LONGEST = 2000  # characters of one value
_COLUMNS = {"wide": 84, "narrow": 40}  # of text that is laid out before the page knows its width
_MOST_ROWS = 400  # of one free-form table


@dataclass(frozen=True)
class _Arm:
    """One side, everything the page shows of it."""

    plan: ArmPlan
    name: str
    summary: ArmSummary
    options: tuple[str, ...]
    quartiles: str
    share: str
    first_step_ms: float | None
    compile_ms: float | None
    upload_ms: float | None
    lines: tuple[str, ...]
    reached: float | None
    peak: float | None
    memory: tuple[tuple[str, str], ...]


def html(receipt: Receipt, check: Examination | None = None) -> str:
    """The whole page; `check` is what `driver verify` found of the receipt, where it was asked."""
    return _ENVIRONMENT.get_template("receipt.html").render(
        r=receipt,
        doubt=doubts(check),
        arms=[_arm(receipt, arm) for arm in receipt.plan.arms],
        hero=hero(receipt),
        opened=how_opened(receipt.environment.browser),
        figures={
            "ratio": figures.ratio(receipt),
            "slots": figures.slots(receipt),
            "losses": figures.losses(receipt),
            "profile": figures.profile(receipt),
            "roofline": figures.roofline(receipt),
        },
        estimate_lines=estimate_lines(receipt),
        curve_lines=curve_lines(receipt),
        profile_headings=PROFILE_HEADINGS,
        historical=_historical(receipt),
        gates=sorted(receipt.gates, key=lambda gate: list(_FIRST).index(gate.status)),
        gate_counts=_gate_counts(receipt.gates),
        commands=_commands(receipt),
    )


def _arm(receipt: Receipt, arm: ArmPlan) -> _Arm:
    summary = next(found for found in receipt.comparison.arms if found.side == arm.side)
    mine = [slot for slot in receipt.slots if slot.side == arm.side]
    return _Arm(
        plan=arm,
        name=arm_name(receipt, arm.side),
        summary=summary,
        options=tuple(f"{key}={arm.options[key]}" for key in sorted(arm.options)),
        quartiles=quartiles_text(summary),
        share=roofline_share(receipt, summary),
        first_step_ms=first_known(slot.first_step_ms for slot in mine),
        compile_ms=first_known(slot.compile_ms for slot in mine),
        upload_ms=first_known(slot.upload_ms for slot in mine),
        lines=(*what_ran(receipt, arm.side), *variants_tried(receipt, arm)),
        reached=reached_gflops(receipt, summary),
        peak=peak_gflops(arm),
        memory=_rows(next((slot.memory for slot in reversed(mine) if slot.memory), {})),
    )


def _historical(receipt: Receipt) -> Mapping[str, str]:
    """The comparison as text for a wide and for a narrow page; empty for another recipe."""
    found = {kind: comparison_text(receipt, width) for kind, width in _COLUMNS.items()}
    return found if all(found.values()) else {}


# --------------------------------------------------------------------------- the first screen


# What a reader looks for comes first, in words for a sentence: of one gate, and of several.
_FIRST = {
    "fail": ("failed", "failed"),
    "unknown": ("could not be judged", "could not be judged"),
    "pass": ("passed", "passed"),
    "not-applicable": ("does not apply", "do not apply"),
}


def _gate_counts(gates: Sequence[Gate]) -> str:
    counts = {status: sum(gate.status == status for gate in gates) for status in _FIRST}
    said = (counted(counts[status], *words) for status, words in _FIRST.items() if counts[status])
    return ", ".join(said) or "none"


def _commands(receipt: Receipt) -> Sequence[tuple[str, str]]:
    """What to type, and what it does; RECEIPT stands for this receipt's file."""
    plan = receipt.plan
    names = ",".join(arm.name for arm in plan.arms)
    preset = shlex.quote(visible(str(plan.preset.get("name"))))
    run = (
        f"driver run --preset {preset} --arms {shlex.quote(visible(names))} --pin RECEIPT "
        f"--seed {plan.seed} --blocks {len(plan.order)}"
    )
    return (
        ("driver verify RECEIPT", "computes every derived number again from the raw samples"),
        ("driver verify RECEIPT --rebuild", "compiles the modules anew and compares digests"),
        ("driver reproduce RECEIPT", "runs the same plan here, and says what agrees"),
        (run, "asks the same question anew, with the same choices"),
    )


# --------------------------------------------------------------------------- values


def _rows(data: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Dotted names and values of free-form facts, in their order; lists of words in one row."""
    found: list[tuple[str, str]] = []
    waiting: list[tuple[str, Any]] = [("", data)]
    while waiting and len(found) <= _MOST_ROWS:
        name, value = waiting.pop()
        if isinstance(value, Mapping) and value:
            inner = [(f"{name}.{key}" if name else str(key), item) for key, item in value.items()]
            waiting += reversed(inner)
        elif isinstance(value, list | tuple) and any(isinstance(v, dict | list) for v in value):
            waiting += reversed([(f"{name}[{i}]", item) for i, item in enumerate(value)])
        else:
            found.append((name, _value(value)))
    if len(found) > _MOST_ROWS:
        found[_MOST_ROWS:] = [("…", "more stands in the receipt")]
    return tuple(found)


def _value(value: object) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _bandwidth(roofline: Roofline) -> str:
    both = (roofline.bandwidth_core_gbs, roofline.bandwidth_all_gbs)
    return " / ".join(_middle(values) for values in both)


def _middle(values: Sequence[float]) -> str:
    return number_text(sorted(values)[len(values) // 2]) if values else "–"


def _window_texts(slot: Slot) -> Iterator[str]:
    for ms in slot.windows_ms:
        yield number_text(ms / max(1, slot.steps_per_window))


def _shown(value: object) -> object:
    """What of a value reaches the page; markup of our own as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return "" if value is None else value
    more = len(value) - _LONGEST
    text = visible(value[:_LONGEST])
    return f"{text}… (and {more} more characters)" if more > 0 else text


def _breaks(value: str) -> Markup:
    """With places where a long word without spaces may break: after `+`, `,`, `/`, `:` and `_`."""
    words = re.split(r"(?<=[+,/:_])", str(_shown(value)))
    return Markup("<wbr>").join(map(escape, words))


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("driver.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {
    "number": number_text,
    "counted": counted,
    "breaks": _breaks,
    "rows": _rows,
    "value": _value,
    "bandwidth": _bandwidth,
    "middle": _middle,
    "others": others_text,
    "windows": _window_texts,
    "profile_rows": profile_rows,
    "profile_notes": profile_notes,
}
_ENVIRONMENT.globals |= {"marks": MARK}

"""What verify, compare, reproduce and calibrate found → text."""

import math

from driver.records import Calibration, CompareReport, Reproduction, VerifyAnswer
from driver.report.terminal import (
    TextTable,
    new_console,
    number_text,
    range_text,
    ratio_text,
    text_of,
    visible,
    write_line,
)
from driver.wording import counted


def verify_answer(answer: VerifyAnswer, most: int = 20) -> str:
    """What `driver verify` found of one file."""
    word = "INVALID" if answer.status == "invalid" else answer.status
    lines = [f"{answer.receipt}: {word}"]
    for found in (answer.faults, answer.unconfirmed):
        lines += [f"  {line}" for line in found[:most]]
        if len(found) > most:
            lines.append(f"  and {len(found) - most} more")
    lines += [f"  note: {line}" for line in answer.remarks]
    if answer.rebuilt is not None:
        same = sum(file.same for file in answer.rebuilt)
        lines.append(f"  rebuilt: {same} of {len(answer.rebuilt)} are the same here")
        others = [file for file in answer.rebuilt if not file.same]
        lines += [f"  {file.name!r:.80}: {file.reason}" for file in others]
    return "\n".join(map(visible, lines))


def comparison(found: CompareReport, width: int = 100) -> str:
    """What `driver compare` found: a line per quantity."""
    console = new_console(width, False)
    headings = ("", "base", "new", "new/base", "95% interval", "between runs", "answer")
    table = TextTable(headings, ("", "answer"))
    for change in found.changes:
        spread = change.between_run_sd
        table.add(
            change.of, number_text(change.base), number_text(change.new),
            ratio_text(change.change),
            range_text(change.low, change.high, found.margin) or "none",
            "" if spread is None else f"sd {spread:.2%}",
            change.word,
        )  # fmt: skip
    console.print(table)
    reasons: dict[str, list[str]] = {}
    for change in found.changes:
        if change.reason:
            reasons.setdefault(change.reason, []).append(change.of)
    lines = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    lines += [f"note: {remark}" for remark in found.remarks]
    lines.append(f"margin {found.margin:.3g}; above 1 is slower; A, B: mean ms/step of blocks")
    for line in lines:
        write_line(console, line)
    return text_of(console)


def reproduction(found: Reproduction, width: int = 100) -> str:
    """What `driver reproduce` found."""
    console = new_console(width, False)
    headings = ("", "answer", "why")
    table = TextTable(headings, headings, head=2)
    for aspect in found.aspects:
        table.add(aspect.name, aspect.outcome, aspect.reason)
    console.print(table)
    write_line(console, f"{found.outcome}: receipt {found.receipt_digest[:12]} as run again in "
                   f"{found.reproduction}")  # fmt: skip
    return text_of(console)


def calibration(found: Calibration, width: int = 100) -> str:
    """What `driver calibrate` knows of an arm."""
    console = new_console(width, False)
    key = found.key
    write_line(
        console, f"{key.arm}, preset {key.preset}, {key.browser} {key.browser_major}, {key.cpu}"
    )
    for run in found.runs:
        write_line(
            console,
            f"  {run.utc[:19]}  {counted(run.blocks, 'block')}  "
            f"A/A ratio {_exp(run.log_ratio):.4f}  {_exp(run.log_step_ms):.4g} ms/step  "
            f"block sd {run.within_sd:.2%}  {run.word}",
        )
    rate = found.false_positive_rate
    if rate is not None and found.false_positive_high is not None:
        write_line(
            console,
            f"false positives: {found.false_positives} of {len(found.runs)} runs "
            f"(95% interval {found.false_positive_low:.1%} to {found.false_positive_high:.1%})",
        )
    write_line(console, f"noise of a block's ratio within a run: {_spread_of(found.within_sd)}")
    write_line(
        console,
        f"noise between runs: step time {_spread_of(found.between_step_sd)}, ratio "
        f"{_spread_of(found.between_ratio_sd)}",
    )
    effects = ", ".join(f"{n} blocks {e:.2%}" for n, e in found.minimum_effects.items())
    write_line(console, f"minimum detectable effect (80% of runs): {effects or 'unknown'}")
    blocks = found.recommended_blocks or "more than 1000"
    write_line(console, f"recommended blocks for a margin of {found.margin:.0%}: {blocks}")
    return text_of(console)


def _spread_of(sd: float | None) -> str:
    return "unknown, it takes three runs" if sd is None else f"{sd:.2%}"


def _exp(log: float) -> float:
    return math.exp(max(-700.0, min(log, 700.0)))

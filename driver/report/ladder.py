"""What `driver ladder` found, as text."""

from rich.text import Text

from driver.records import (
    Apart,
    LadderPair,
    LadderReport,
)
from driver.report.precision import precision_lines
from driver.report.terminal import (
    TextTable,
    new_console,
    number_text,
    ratio_text,
    text_of,
    write_line,
)
from driver.wording import interval_text


def ladder(found: LadderReport, width: int = 100, colour: bool = False) -> str:
    """What `driver ladder` measured: a line per rung, then what lost or did not help."""
    console = new_console(width, colour)
    name = found.preset.get("name")
    write_line(
        console, f"{name}: {found.axis} of {found.arm.partition(':')[0]}, {found.meaning}", "bold"
    )
    usable = [rung for rung in found.rungs if rung.status == "ok"]
    same = set.intersection(*(set(rung.options.items()) for rung in usable)) if usable else set()
    shared = " ".join(f"{key}={value}" for key, value in sorted(same))
    write_line(console, f"the same on every rung: {shared or 'nothing'}")
    for rung in usable:
        own = " ".join(f"{k}={v}" for k, v in sorted(set(rung.options.items()) - same))
        write_line(console, f"  {rung.label}  {own}".rstrip())
    console.print()
    console.print(_rungs_table(found))
    if found.fastest or found.fastest_apart:
        write_line(
            console,
            f"fastest: {found.fastest or 'unknown'} end to end, {found.fastest_apart or 'unknown'} "
            "in the products apart (by the gains above, one after another)",
        )
    for pair in found.pairs:
        if pair.apart.reason:
            write_line(
                console, f"{pair.before} → {pair.after}: products apart: {pair.apart.reason}"
            )
        if pair.claims and pair.reasons:
            reasons = "; ".join(pair.reasons)
            write_line(console, f"{pair.before} → {pair.after}: {pair.verdict}: {reasons}")
    console.print()
    lost = ladder_losses(found)
    write_line(console, "what lost or did not help:" + ("" if lost else " nothing"), "bold")
    for line in lost:
        write_line(console, f"  {line}")
    console.print()
    if found.precision:
        precision_lines(console, found.precision)
        console.print()
    write_line(console, f"budget {found.budget_s:.0f} s. {found.budget_rule}", "dim")
    if found.interrupted:
        write_line(console, "interrupted: pairs are missing", "bold yellow")
    return text_of(console)


def ladder_losses(found: LadderReport) -> list[str]:
    """A sentence for every rung that was not shown to be faster than the one before it."""
    lines = [f"{r.label} does not run here: {r.reason}" for r in found.rungs if r.reason]
    for pair in found.pairs:
        step = f"{pair.before} → {pair.after}"
        if not pair.claims:
            lines.append(f"{step}: no claim: {'; '.join(pair.reasons)}")
            continue
        times = f"{ratio_text(pair.ratio)} times as fast [{_pair_interval(pair)}]"
        apart = f", {number_text(pair.apart.gain)} in its products" if pair.apart.gain else ""
        words = {"slower": "lost", "equivalent": "made no difference", "unsure": "no proven gain"}
        if pair.word in words:
            why = f" ({pair.ratio_reason})" if pair.ratio_reason else ""
            lines.append(f"{step}: {words[pair.word]}: {times}{apart}{why}")
        elif pair.apart.gain and pair.apart.gain < 1:
            lines.append(f"{step}: lost in its products alone: {times}{apart}")
    return lines


def _rungs_table(found: LadderReport) -> TextTable:
    """Every rung beside what the one before it took in the same run."""
    headings = (found.axis, "ms/step", "before", "times as fast", "95% interval", "",
                "products apart", "verdict")  # fmt: skip
    table = TextTable(headings, (found.axis, "", "verdict"))
    pairs = {pair.after: pair for pair in found.pairs}
    first = next((pair for pair in found.pairs), None)
    for rung in found.rungs:
        pair = pairs.get(rung.label)
        if rung.status == "unsupported":
            table.add(rung.label, "", "", "", "", Text("unsupported", style="yellow"), "", "")
        elif pair is None:
            ms = first.before_step_ms if first and first.before == rung.label else None
            table.add(rung.label, number_text(ms), "", "", "", "", "", "")
        else:
            table.add(
                rung.label, number_text(pair.after_step_ms),
                number_text(pair.before_step_ms),
                ratio_text(pair.ratio) if pair.claims else "no claim",
                _pair_interval(pair) if pair.claims else "",
                (pair.word or "") if pair.claims else "", _apart(pair.apart),
                Text(pair.verdict) if pair.verdict else "no receipt",
            )  # fmt: skip
    return table


def _pair_interval(pair: LadderPair) -> str:
    if pair.low is None or pair.high is None:
        return "no interval"
    return interval_text(pair.low, pair.high)


def _apart(apart: Apart) -> str:
    """The gain, and that of each pass alone, which shows what it is worth."""
    if apart.gain is None:
        return "–"
    return f"{apart.gain:.4g} ({', '.join(f'{gain:.3g}' for gain in apart.pass_gains)})"

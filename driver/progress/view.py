"""A run's state as a few lines for a terminal of any width, without a box: a line that is shorter
than the terminal survives when the window is made narrower."""

import time
from collections.abc import Iterator
from dataclasses import replace

from rich.text import Text

from driver.progress.state import ArmNow, SlotNow, State
from driver.records import Side

MOST_COLUMNS = 80
NARROW = 64  # below, a line says less
_SIDES: tuple[Side, Side] = ("A", "B")
_COLOUR = {"A": "cyan", "B": "magenta"}
_NO_CLAIM = "raw: no interval, no claim before the end"


def lines(state: State, columns: int, now: float | None = None) -> list[Text]:
    """The view, each line narrower than `columns`; `now` is on time.monotonic's clock."""
    # One column stays free: some terminals wrap when the last one is written.
    width = max(8, min(columns - 1, MOST_COLUMNS))
    # A copy: the reporter goes on writing while this is drawn.
    found = [*_lines(replace(state), width, time.monotonic() if now is None else now)]
    for line in found:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return found


def _lines(state: State, width: int, now: float) -> Iterator[Text]:
    wide = width >= NARROW
    if state.part:
        yield Text(state.part, style="bold")
    if state.slot:
        yield _where(state.slot, wide)
    elif state.phase:
        yield Text(state.phase)
    yield _bar(state, width, now)
    if not state.arms:
        return
    if wide:
        yield Text(f"{'ms/step now':>15}{'so far':>11}{'windows':>9}{'loss':>10}", style="dim")
    for side in _SIDES:
        running = state.slot is not None and state.slot.side == side
        row = _wide_row if wide else _narrow_row
        yield row(side, state.arms[side], running)
    ratio = state.raw_ratio()
    if ratio is not None:
        claim = f"  ({_NO_CLAIM})" if wide else "  raw, no claim yet"
        yield Text.assemble("  A/B ", (_number(ratio), "bold"), (claim, "dim"))


def _where(slot: SlotNow, wide: bool) -> Text:
    """Slot and block, and the block's order with the slot that runs in brackets."""
    of, gap = (" of ", "   ") if wide else ("/", "  ")
    text = Text(f"slot {slot.number}{of}{slot.slots}{gap}block {slot.block}{of}{slot.blocks}{gap}")
    for position, side in enumerate(slot.order):
        here = position == slot.position
        text.append(f"[{side}]" if here else f" {side} ", f"bold {_COLOUR[side]}" if here else "")
    return text


def _bar(state: State, width: int, now: float) -> Text:
    """How much is done, and how long it took and takes."""
    if not state.arms and state.total == 1:  # nothing is known of how far it is
        return Text(f"{clock(now - state.began)} gone", style="dim")
    wide, share, left_s = width >= NARROW, state.share(), state.seconds_left(now)
    left = "" if left_s is None else f"about {clock(left_s)} left" if wide else clock(left_s)
    if wide:
        gone = f"{clock(now - state.began)} gone"
        words = [f"{share:4.0%}", f"{gone}, {left}" if left else gone]
        if not state.arms and state.loss is not None:
            words.insert(1, f"loss {state.loss:.4f}")
    else:
        words = [f"{share:4.0%}", f"{left} left" if left else f"{clock(now - state.began)} gone"]
    said = "  ".join(words)
    cells = max(0, min(40, width - len(said) - 2))
    full = round(share * cells)
    return Text.assemble(("━" * full, "green"), ("─" * (cells - full), "dim"), f"  {said}")


def _wide_row(side: Side, arm: ArmNow, running: bool) -> Text:
    text = Text.assemble(
        "▶ " if running else "  ", (side, f"bold {_COLOUR[side]}"),
        (f"{_number(arm.last_ms):>12}", "bold" if running else ""),
        f"{_number(arm.median_ms):>11}{len(arm.windows_ms):>9}",
        f"{'' if arm.loss is None else f'{arm.loss:.4f}':>10}",
    )  # fmt: skip
    return text.append(f"   {arm.label}", "" if running else "dim")


def _narrow_row(side: Side, arm: ArmNow, running: bool) -> Text:
    last = arm.last_ms
    return Text.assemble(
        "▶ " if running else "  ", (side, f"bold {_COLOUR[side]}"),
        (f"{_number(last):>8}", "bold" if running else ""), " ms/step",
        "" if arm.loss is None else f"  loss {arm.loss:.4f}",
    )  # fmt: skip


def _number(ms: float | None) -> str:
    """Four digits or more, always as many, so that a column does not jump."""
    return "–" if ms is None else f"{ms:.0f}" if ms >= 1000 else f"{ms:#.4g}"


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, seconds_ = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds_:02}" if hours else f"{minutes}:{seconds_:02}"

"""A receipt's figures: ratio, windows, losses, profile, roofline.

Nothing that a stranger wrote is drawn but names of operations, whose letters the schema fixes.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import TypeGuard

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from driver.parity import SIDES, loss_drift, loss_errors
from driver.records import Receipt, Side, Slot
from driver.report.drawing import (
    BAD,
    BAND,
    DRIFT,
    INK,
    LINE,
    MARKER,
    MOST,
    MOST_POINTS,
    MUTED,
    RULE,
    SIDE,
    WIDE,
    Picture,
    cut,
    draw_curve,
    finite,
    gaps,
    linear,
    log_scale,
    new_figure,
    picture,
    usable,
)
from driver.report.terminal import range_text, ratio_text
from driver.report.words import (
    longest_curve,
    peak_gflops,
    reached_gflops,
)
from driver.wording import counted

_MOST_OPS = 24

# --------------------------------------------------------------------------- the ratio


def ratio(receipt: Receipt) -> Picture | None:
    """Estimate with its interval and every block's own ratio, against the margin; None without.

    Far from 1 the interval is too small to be seen, so it is drawn once more with its own axis.
    """
    estimate, margin = receipt.comparison.estimate, receipt.plan.margin
    middle = usable(estimate.ratio)
    if middle is None:
        return None
    found = [
        (block.order, bool(block.suspect), math.exp(block.log_ratio))
        for block in receipt.comparison.blocks
        if block.log_ratio is not None and abs(block.log_ratio) < math.log(MOST)
    ][:MOST_POINTS]
    ends = [v for v in map(usable, (estimate.low, estimate.high)) if v is not None]
    inside = (1 / (1 + margin), 1 + margin) if 0 < margin < 1 else (1.0, 1.0)
    own = [value for _, _, value in found] + ends + [middle]
    ranges = [(min(*own, *inside), max(*own, *inside))]
    spread = math.log(max(own) / min(own))
    if 1e-4 < spread < 0.15 * math.log(ranges[0][1] / ranges[0][0]):
        ranges.append((min(own), max(own)))

    def draw(width: int) -> Figure:
        figure, panels = new_figure(
            width, [78] * len(ranges), left=16, right=16, top=26, bottom=46, gap=66
        )
        for axes, (low, high) in zip(panels, ranges, strict=True):
            _ratio_axis(axes, low, high, inside)
            for order, row in (("ABBA", 0.85), ("BAAB", 1.35)):
                for hollow in (False, True):
                    xs = [x for o, suspect, x in found if o == order and suspect == hollow]
                    axes.plot(xs, [row] * len(xs), ls="none",
                              marker="^" if order == "ABBA" else "v", ms=7, mec=INK, mew=0.8,
                              mfc="none" if hollow else INK, clip_on=False)  # fmt: skip
            if len(ends) == 2:
                axes.plot(ends, [0, 0], color=INK, lw=3.5, clip_on=False)
            axes.plot([middle], [0], marker="o", ms=9, color=INK, clip_on=False)
            at = _along(axes, middle)
            side = "left" if at < 0.35 else "right" if at > 0.65 else "center"
            axes.text(at, 0.13, ratio_text(middle), ha=side, va="center", fontweight="bold",
                      transform=axes.transAxes)  # fmt: skip
        panels[-1].set_xlabel("time of A / time of B, log scale")
        for axes in panels[1:]:
            axes.set_title("the same, enlarged")
        return figure

    words = (
        f"Time of A over time of B: {ratio_text(middle)}, {_interval(receipt)}, beside the values "
        f"of {counted(len(found), 'block')} and the margin of {margin:.0%} around 1."
    )
    return picture("ratio", words, draw)


def _ratio_axis(axes: Axes, low: float, high: float, inside: tuple[float, float]) -> None:
    """A log scale from `low` to `high` with the margin, and which way is which."""
    pad = max(0.06 * math.log(high / low), 0.002)
    axes.set_xscale("log")
    axes.set_xlim(low * math.exp(-pad), high * math.exp(pad))
    axes.set_ylim(-0.95, 1.7)
    axes.yaxis.set_major_locator(NullLocator())
    axes.spines["left"].set_visible(False)
    _ratio_ticks(axes)
    one = _along(axes, 1.0)
    if not 0 <= one <= 1:
        return
    axes.axvspan(*inside, color=BAND, lw=0)
    axes.axvline(1, color=MUTED, lw=1)
    if one > 0.3:
        axes.text(one - 0.015, 1.04, "← A is faster", ha="right", color=MUTED,
                  transform=axes.transAxes)  # fmt: skip
    if one < 0.7:
        axes.text(one + 0.015, 1.04, "B is faster →", ha="left", color=MUTED,
                  transform=axes.transAxes)  # fmt: skip


def _along(axes: Axes, value: float) -> float:
    """Where a value lies on the log axis, 0 left to 1 right."""
    low, high = axes.get_xlim()
    return math.log(value / low) / math.log(high / low)


def _ratio_ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    locator = LogLocator(subs=(1, 2, 5)) if high / low > 8 else MaxNLocator(4)
    ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    if low <= 1 <= high:  # always named, and by nothing close to it
        least = 0.08 * math.log(high / low)
        ticks = [1.0, *(tick for tick in ticks if abs(math.log(tick)) > least)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.xaxis.set_minor_locator(NullLocator())


# --------------------------------------------------------------------------- the slots


def slots(receipt: Receipt) -> Picture | None:
    """Every window of every slot in run order, a panel per arm; None where there is none."""
    per_side = {side: _windows(receipt.slots, side) for side in SIDES}
    medians = {s: median(ms for _, ms in points) for s, points in per_side.items() if points}
    if not medians:
        return None
    suspect = {block.block for block in receipt.comparison.blocks if block.suspect}
    bands = [(slot.index, slot.block) for slot in receipt.slots[:MOST_POINTS]]
    failed = {s.index for s in receipt.slots[:MOST_POINTS] if s.status == "failed"}
    close = len(medians) == 2 and max(medians.values()) < 1.5 * min(medians.values())
    first, last = min(i for i, _ in bands), max(i for i, _ in bands)

    def draw(width: int) -> Figure:
        figure, panels = new_figure(
            width, [116] * len(medians), left=52, right=10, top=30, bottom=44, gap=38
        )
        for axes, side in zip(panels, medians, strict=True):
            _block_bands(axes, bands, suspect)
            points = per_side[side]
            xs = _side_by_side(points)
            axes.plot(xs, [ms for _, ms in points], ls="none", marker=MARKER[side], ms=5,
                      mfc=SIDE[side], mec="none", alpha=0.75)  # fmt: skip
            for index, level in _slot_medians(points):
                axes.plot([index - 0.42, index + 0.42], [level] * 2, color=INK, lw=1.6)
            for index in failed:
                if any(s.index == index and s.side == side for s in receipt.slots):
                    axes.plot([index], [0.06], marker="x", ms=8, mew=2, color=BAD,
                              transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip
            axes.set_xlim(first - 0.7, last + 0.7)
            axes.set_title(f"{side}, ms/step")
            axes.margins(y=0.22 if suspect else 0.06)  # the word stands above the points
            linear(axes)
        if close:
            ends = [axes.get_ylim() for axes in panels]
            for axes in panels:
                axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        panels[-1].set_xlabel("slot, in the order in which they ran")
        panels[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
        for axes in panels[:-1]:
            axes.tick_params(labelbottom=False)
        return figure

    ranges = "; ".join(
        f"{side}: median window {level:.4g} ms/step, from {min(ms for _, ms in per_side[side]):.4g}"
        f" to {max(ms for _, ms in per_side[side]):.4g} over "
        f"{counted(len(per_side[side]), 'window')}"
        for side, level in medians.items()
    )
    undrawn = sum(len(slot.windows_ms) for slot in receipt.slots) - sum(map(len, per_side.values()))
    windows = "window is" if undrawn == 1 else "windows are"
    notes = (f"{undrawn} {windows} not drawn: no usable time.",) if undrawn else ()
    return picture("slots", f"Time of every window in run order. {ranges}.", draw, notes)


def _windows(found: Sequence[Slot], side: Side) -> list[tuple[int, float]]:
    """Slot and ms/step of every window with a usable time."""
    points = [
        (slot.index, ms / max(1, slot.steps_per_window))
        for slot in found
        if slot.side == side and slot.index < MOST
        for ms in slot.windows_ms
    ]
    return [(index, ms) for index, ms in points if usable(ms) is not None][:MOST_POINTS]


def _side_by_side(points: Sequence[tuple[int, float]]) -> list[float]:
    """A slot's windows from left to right over its width, in the order in which they ran."""
    counts: dict[int, int] = {}
    for index, _ in points:
        counts[index] = counts.get(index, 0) + 1
    seen: dict[int, int] = {}
    xs = []
    for index, _ in points:
        at = seen.get(index, 0)
        seen[index] = at + 1
        xs.append(index + ((at + 0.5) / counts[index] - 0.5) * 0.76)
    return xs


def _slot_medians(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    by_slot: dict[int, list[float]] = {}
    for index, ms in points:
        by_slot.setdefault(index, []).append(ms)
    return [(index, median(values)) for index, values in by_slot.items()]


def _block_bands(axes: Axes, slots_of: Sequence[tuple[int, int]], suspect: set[int]) -> None:
    """Every other block shaded; one that the plan's rule marks is hatched and says so."""
    by_block: dict[int, list[int]] = {}
    for index, block in slots_of:
        by_block.setdefault(block, []).append(index)
    for number, (block, indices) in enumerate(by_block.items()):
        low, high = min(indices) - 0.5, max(indices) + 0.5
        if number % 2 == 0:
            axes.axvspan(low, high, color=BAND, lw=0, zorder=0)
        if block in suspect:
            axes.text((low + high) / 2, 0.97, "suspect", ha="center", va="top", color=MUTED,
                      transform=axes.get_xaxis_transform())  # fmt: skip


# --------------------------------------------------------------------------- the losses


def losses(receipt: Receipt) -> Picture | None:
    """Curves of both arms and the reference, below them how far apart they are; None without."""
    reference = receipt.reference
    curves = {side: longest_curve(receipt.slots, side) for side in SIDES}
    shown = {name: finite(curve) for name, curve in curves.items()}
    truth = finite(reference.losses)
    if not any(any(map(math.isfinite, curve)) for curve in (*shown.values(), truth)):
        return None
    apart = {side: gaps(loss_errors(reference, receipt.slots, side)) for side in SIDES}
    drift = gaps(loss_drift(receipt.slots))
    lines = [*apart["A"], *apart["B"], *drift]
    band = gaps(reference.band or ())
    limit = _loss_limit(receipt)
    longest = max(map(len, (*shown.values(), truth)))

    def draw(width: int) -> Figure:
        figure, (top, below) = new_figure(
            width, [170, 170], left=56, right=12, top=30, bottom=44, gap=40
        )
        draw_curve(top, truth, color=RULE, lw=6, ls="-")
        for side in SIDES:
            draw_curve(top, shown[side], color=SIDE[side], lw=1.8, ls=LINE[side])
        top.set_title("loss, nats per byte")
        linear(top)
        top.tick_params(labelbottom=False)
        draw_curve(below, band, color=MUTED, lw=1.2, ls=(0, (1, 2)))
        for side in SIDES:
            draw_curve(below, apart[side], color=SIDE[side], lw=1.5, ls=LINE[side])
        draw_curve(below, drift, color=DRIFT, lw=1.5, ls=(0, (6, 2, 1, 2)))
        below.set_title("relative difference, log scale")
        log_scale(below, [*lines, *band, limit or math.nan], width)
        if not any(map(math.isfinite, lines)):
            below.text(0.5, 0.5, "no difference at any step", ha="center", color=MUTED,
                       transform=below.transAxes)  # fmt: skip
        if limit:
            below.axhline(limit, color=BAD, lw=1.2)
            below.text(0.995, limit, f"limit {limit:.0e}", ha="right", va="bottom", color=MUTED,
                       transform=below.get_yaxis_transform())  # fmt: skip
        for axes in (top, below):
            axes.set_xlim(0.5, max(2, longest) + 0.5)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        below.set_xlabel("step")
        return figure

    last = ", ".join(
        f"{side} ends at {curve[-1]:.4f} after {counted(len(curve), 'step')}"
        for side, curve in curves.items()
        if curve
    )
    worst = ", ".join(
        f"{name} at most {max(usable):.1e}"
        for name, values in (
            ("A against the reference", apart["A"]),
            ("B against the reference", apart["B"]),
            ("A against B", drift),
        )
        if (usable := [value for value in values if math.isfinite(value)])
    )
    words = f"Losses step by step: {last or 'none'}. Relative differences: {worst or 'none'}."
    return picture("losses", words, draw, _loss_notes(receipt, curves))


def _loss_limit(receipt: Receipt) -> float | None:
    """The limit of the gates on the curves' losses; the widest where the arms' differ."""
    found = [gate.limit for gate in receipt.plan.gates if gate.name.startswith("curve.loss.")]
    usable = [limit for limit in found if limit is not None and 1e-18 < limit < 1e3]
    return max(usable, default=None)


def _loss_notes(receipt: Receipt, curves: dict[Side, list[float]]) -> tuple[str, ...]:
    """What the lines cannot show: numbers that are none, and differences of exactly 0."""
    notes = []
    for side, curve in curves.items():
        odd = [step for step, loss in enumerate(curve, 1) if not math.isfinite(loss)]
        if odd:
            words = "loss is no number," if len(odd) == 1 else "losses are no numbers, the first"
            notes.append(f"{side}: {len(odd)} {words} at step {odd[0]}.")
    drift = loss_drift(receipt.slots)
    same = sum(value == 0 for value in drift)
    if same:
        notes.append(
            f"A and B have the same bits at {same} of {len(drift)} common steps, which a log scale "
            "cannot show."
        )
    return tuple(notes)


# --------------------------------------------------------------------------- where time goes


def profile(receipt: Receipt) -> Picture | None:
    """Each operation's share of a step, with its time; None where no arm has a profile.

    Shares, since the arms' times may lie so far apart that one of them would not be seen.
    """
    found: dict[Side, dict[str, tuple[float, float]]] = {
        arm.side: {op.op: (100 * op.share, op.ms) for op in arm.profile.ops if _is_share(op.share)}
        for arm in receipt.plan.arms
        if arm.profile
    }
    most: dict[str, float] = {}
    for ops in found.values():
        for op, (share, _) in ops.items():
            most[op] = max(most.get(op, 0.0), share)
    names = sorted(most, key=lambda op: -most[op])[:_MOST_OPS]
    if not names or not any(most.values()):
        return None
    thick = 0.78 / len(found)

    def draw(width: int) -> Figure:
        left = 152 if width == WIDE else 128
        rows = (15 * len(found) + 9) * len(names)
        figure, (axes,) = new_figure(width, [rows], left=left, right=66, top=8, bottom=44)
        for number, (side, ops) in enumerate(found.items()):
            ys = [row + (number - (len(found) - 1) / 2) * thick for row in range(len(names))]
            axes.barh(ys, [ops.get(name, (0.0, 0.0))[0] for name in names], height=thick * 0.92,
                      color=SIDE[side], lw=0)  # fmt: skip
            for y, name in zip(ys, names, strict=True):
                if name in ops:
                    share, ms = ops[name]
                    axes.annotate(f"{ms:.3g} ms", (share, y), (5, 0), va="center",
                                  textcoords="offset points", fontsize=11)  # fmt: skip
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), [cut(name, 22 if width == WIDE else 18)
                                            for name in names])  # fmt: skip
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="x", lw=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("% of one step")
        return figure

    longest = ", ".join(f"{name} {most[name]:.0f}%" for name in names[:3])
    words = f"Share of each operation in a step; the longest are {longest}."
    more = len(most) - len(names)
    stand = "operation stands" if more == 1 else "operations stand"
    notes = (f"{more} shorter {stand} in the table only.",) if more else ()
    return picture("profile", words, draw, notes)


def _is_share(value: float | None) -> TypeGuard[float]:
    return value is not None and 0 <= value < 100


# --------------------------------------------------------------------------- roofline


def roofline(receipt: Receipt) -> Picture | None:
    """What a step reaches beside what the arm's module could reach; None without a roofline."""
    rows: list[tuple[Side, float, float, list[float]]] = []
    for arm, summary in zip(receipt.plan.arms, receipt.comparison.arms, strict=True):
        reached, peak = usable(reached_gflops(receipt, summary)), usable(peak_gflops(arm))
        if reached is not None and peak is not None and arm.roofline:
            samples = [s for s in arm.roofline.all_gflops if usable(s) is not None][:100]
            rows.append((arm.side, reached, peak, samples))
    if not rows:
        return None

    def draw(width: int) -> Figure:
        figure, (axes,) = new_figure(width, [54 * len(rows)], left=26, right=18, top=8, bottom=44)
        for y, (side, reached, peak, samples) in enumerate(rows):
            axes.barh(y, peak, height=0.42, color=BAND, lw=0)
            axes.barh(y, reached, height=0.42, color=SIDE[side], lw=0)
            axes.plot([peak, peak], [y - 0.3, y + 0.3], color=INK, lw=2)
            axes.plot(samples, [y + 0.36] * len(samples), ls="none", marker="|", ms=7, color=MUTED)
            axes.annotate(f"{reached / peak:.0%}", (reached, y), (6, 0), va="center",
                          textcoords="offset points", fontweight="bold")  # fmt: skip
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.set_yticks(range(len(rows)), [side for side, *_ in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_xlim(0, 1.04 * max(max([peak, reached, *s]) for _, reached, peak, s in rows))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("GFLOP/s, executed")
        return figure

    words = "; ".join(
        f"{side} reaches {reached:.3g} of {peak:.3g} GFLOP/s, {reached / peak:.0%}"
        for side, reached, peak, _ in rows
    )
    return picture("roofline", f"A step beside its roofline. {words}.", draw)


def _interval(receipt: Receipt) -> str:
    estimate = receipt.comparison.estimate
    words = range_text(estimate.low, estimate.high, receipt.plan.margin)
    return f"95% interval {words}" if words else "no interval"

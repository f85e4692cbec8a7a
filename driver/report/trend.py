"""Runs over time as a picture: ms/step of every arm, the ratio, intervals and change points.

One panel per arm and per pair of arms, for every preset, machine, browser and adapter: times of
different ones are not one series, and on one axis a change of percents would not be seen beside an
arm that takes twice as long. The same rows give the same bytes.
"""

import io
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from driver import trend
from driver.records import HistoryReceipt
from driver.report.terminal import visible
from driver.wording import counted

MOST_GROUPS = 4  # of preset, machine, browser and adapter
MOST_ARMS, MOST_PAIRS = 4, 3
_MANY = 2000  # points of a panel from which they are drawn as pixels
_YEARS = range(1971, 2200)  # another one is a stranger's joke, and would leave nothing to be seen
_LEAST, _MOST = 1e-9, 1e9  # what is beyond would leave nothing else to be seen
# Okabe and Ito's colours, which colour-blind people can tell apart; shape says the same again.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_MARKERS = ("o", "D", "s", "^", "v", "p")
_INK, _MUTED, _RULE, _BAD = "#1a1a1a", "#595959", "#c8c8c8", "#b00020"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "driver-history",
    "text.parse_math": False,
    "font.size": 10,
    "axes.edgecolor": _RULE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titlecolor": _MUTED,
    "axes.labelcolor": _MUTED,
    "axes.unicode_minus": False,
    "text.color": _INK,
    "xtick.color": _RULE,
    "xtick.labelcolor": _MUTED,
    "ytick.color": _RULE,
    "ytick.labelcolor": _MUTED,
    "legend.frameon": False,
}

Kind = Literal["svg", "png"]
K = TypeVar("K", str, tuple[str, str])


@dataclass(frozen=True)
class Point:
    """One run of an arm, or of a pair: a value with its interval."""

    day: float  # as matplotlib counts them
    value: float | None
    low: float | None
    high: float | None
    kind: Literal["qualified", "unqualified", "failed", "invalid"]

    @property
    def counts(self) -> bool:
        """Whether it says anything of a level."""
        return self.value is not None and self.kind in ("qualified", "unqualified")


@dataclass(frozen=True)
class Panel:
    """One series of runs."""

    title: str
    points: list[Point]
    look: int  # of colour and marker
    days: list[float]  # of all runs beside it, which fix the axis


@dataclass(frozen=True)
class Trend:
    """The picture, and what it leaves out in words."""

    data: bytes
    notes: tuple[str, ...]


def picture(rows: Sequence[HistoryReceipt], kind: Kind = "svg") -> Trend:
    """The trend of these receipts. Raises ValueError where none of them has a date."""
    dated = sorted(
        (row for row in rows if row.frozen_utc is not None and row.frozen_utc.year in _YEARS),
        key=lambda row: (row.frozen_utc, row.digest),
    )
    if not dated:
        raise ValueError("no receipt with a date")
    without = len(rows) - len(dated)
    notes = [f"{counted(without, 'receipt')} without a date"] if without else []
    groups: dict[tuple[str, ...], list[HistoryReceipt]] = {}
    for row in dated:
        groups.setdefault((row.preset, row.machine, row.browser, row.adapter), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    for key, left in ordered[MOST_GROUPS:]:
        notes.append(f"{counted(len(left), 'receipt')} of {', '.join(filter(None, key))[:150]}")
    panels: list[Panel] = []
    for key, found in ordered[:MOST_GROUPS]:
        more, left_out = _panels(key, found)
        panels += more
        notes += left_out
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A stranger's name may need letters that the font lacks.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing", category=UserWarning)
        figure = Figure(figsize=(9, 0.7 + 2.1 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for where, panel in zip(axes, panels, strict=True):
            _draw(where, panel)
        _legend(figure)
        drawn = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(drawn, format=kind, dpi=110, metadata=metadata)
    return Trend(drawn.getvalue(), tuple(notes))


def _panels(key: tuple[str, ...], rows: list[HistoryReceipt]) -> tuple[list[Panel], list[str]]:
    """Those of one preset on one machine, the arms' before the pairs'; and what they leave out."""
    preset, machine, browser, adapter = (visible(part)[:70] for part in key)
    place = " · ".join(part for part in (preset, machine, browser, adapter) if part)
    labels = _most_frequent([label for row in rows for label in (row.label_a, row.label_b)])
    pairs = _most_frequent([(row.label_a, row.label_b) for row in rows])
    names = dict(zip(labels, _short(labels), strict=True))
    days = [_day(row.frozen_utc) for row in rows if row.frozen_utc]
    panels = [
        Panel(f"{names[label]}, ms/step", _arm_points(rows, label), number, days)
        for number, label in enumerate(labels[:MOST_ARMS])
    ]
    panels += [
        Panel(f"time of {names[a]} / time of {names[b]}, 95% intervals",
              _ratio_points(rows, (a, b)), MOST_ARMS + number, days)
        for number, (a, b) in enumerate(pairs[:MOST_PAIRS])
    ]  # fmt: skip
    panels[0] = replace(panels[0], title=f"{place}\n{panels[0].title}")
    notes = [f"the arm {names[label]}" for label in labels[MOST_ARMS:]]
    return panels, notes + [f"the pair {names[a]}, {names[b]}" for a, b in pairs[MOST_PAIRS:]]


def _most_frequent(values: Sequence[K]) -> list[K]:
    """Each once, the most frequent first."""
    counts = Counter(values)
    return sorted(counts, key=lambda value: (-counts[value], value))


def _short(labels: Sequence[str]) -> list[str]:
    """Names of arms, with those options alone in which arms of the same name differ."""
    split = []
    for label in labels:
        name, _, options = label.partition(":")
        split.append((name, [o for o in options.split("+") if o]))
    short = []
    for name, chosen in split:
        common = set.intersection(*(set(others) for other, others in split if other == name))
        own = [option for option in chosen if option not in common]
        short.append(visible(name + (":" + "+".join(own) if own else ""))[:60])
    return short


def _arm_points(rows: Iterable[HistoryReceipt], label: str) -> list[Point]:
    """Runs of one arm in order of time; where both sides are it, their mean."""
    points = []
    for row in rows:
        sides = []
        if row.label_a == label:
            sides.append((row.ms_a, row.ms_a_low, row.ms_a_high))
        if row.label_b == label:
            sides.append((row.ms_b, row.ms_b_low, row.ms_b_high))
        if sides and row.frozen_utc:
            value, low, high = (_mean([side[i] for side in sides]) for i in range(3))
            points.append(Point(_day(row.frozen_utc), value, low, high, _kind(row)))
    return points


def _ratio_points(rows: Iterable[HistoryReceipt], pair: tuple[str, str]) -> list[Point]:
    return [
        Point(_day(row.frozen_utc), _usable(row.ratio), _usable(row.ratio_low),
              _usable(row.ratio_high), _kind(row))
        for row in rows
        if (row.label_a, row.label_b) == pair and row.frozen_utc
    ]  # fmt: skip


def _day(time: datetime) -> float:
    return float(date2num(time))  # type: ignore[no-untyped-call]


def _kind(row: HistoryReceipt) -> Literal["qualified", "unqualified", "failed", "invalid"]:
    return "invalid" if row.checked == "invalid" else row.verdict


def _mean(values: Sequence[float | None]) -> float | None:
    usable = [value for value in map(_usable, values) if value is not None]
    return fmean(usable) if len(usable) == len(values) else None


def _usable(value: float | None) -> float | None:
    return value if value is not None and _LEAST < value < _MOST else None


def _draw(axes: Axes, panel: Panel) -> None:
    """Values with intervals by verdict, levels and change points of those that count."""
    points = panel.points
    colour = _COLOURS[panel.look % len(_COLOURS)]
    marker = _MARKERS[panel.look % len(_MARKERS)]
    pixels = len(points) > _MANY
    size = 5.5 if len(points) < 200 else 3.0
    counted = [p for p in points if p.counts]
    spans = [p for p in counted if p.low is not None and p.high is not None]
    axes.vlines(
        [p.day for p in spans], [p.low or 0 for p in spans], [p.high or 0 for p in spans],
        color=colour, lw=0.8, alpha=0.5, rasterized=pixels,
    )  # fmt: skip
    for kind in ("qualified", "unqualified"):
        some = [p for p in counted if p.kind == kind]
        axes.plot([p.day for p in some], [p.value or 0 for p in some], ls="none", marker=marker,
                  ms=size, mec=colour, mfc=colour if kind == "qualified" else "white",
                  rasterized=pixels)  # fmt: skip
    # The times of these say nothing: they are marked at the lower edge.
    edge = axes.get_xaxis_transform()
    for kind, mark, tint in (("failed", "x", _BAD), ("invalid", "+", _MUTED)):
        days = [p.day for p in points if p.kind == kind]
        axes.plot(days, [0.04] * len(days), ls="none", marker=mark, ms=7, mew=1.6, color=tint,
                  transform=edge, rasterized=pixels)  # fmt: skip
    _levels(axes, counted, colour)
    axes.set_title(panel.title)
    _scales(axes, panel.days)


def _levels(axes: Axes, points: list[Point], colour: str) -> None:
    logs = [math.log(p.value) for p in points if p.value]
    found = trend.change_points(logs)
    bounds = [0, *(change.index for change in found), len(points)]
    for first, end in pairwise(bounds):
        if end - first > 1:
            level = trend.typical(logs[first:end])
            axes.plot([points[first].day, points[end - 1].day], [level, level], color=_INK,
                      lw=1.2, zorder=4)  # fmt: skip
    for change in found:
        day = points[change.index].day
        axes.axvline(day, color=colour, lw=1, ls=(0, (4, 3)))
        axes.annotate(f"{change.change - 1:+.1%}", (day, 1), (3, -2), va="top",
                      xycoords=("data", "axes fraction"), textcoords="offset points",
                      color=colour, fontsize=9)  # fmt: skip


def _scales(axes: Axes, days: Sequence[float]) -> None:
    first, last = min(days), max(days)
    room = max((last - first) * 0.03, 1 / 24)
    axes.set_xlim(first - room, last + room)
    locator = AutoDateLocator(maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.grid(axis="y", color=_RULE, lw=0.5)
    axes.margins(y=0.2)
    low, high = axes.get_ylim()
    if low > 0 and high / low > 20:
        axes.set_yscale("log")


def _legend(figure: Figure) -> None:
    plain: dict[str, Any] = {"ls": "none", "color": _INK}
    marks = [
        Line2D([], [], marker="o", label="qualified", **plain),
        Line2D([], [], marker="o", mfc="white", label="unqualified", **plain),
        Line2D([], [], marker="x", mew=1.6, ls="none", color=_BAD, label="failed"),
        Line2D([], [], marker="+", mew=1.6, ls="none", color=_MUTED, label="does not hold"),
        Line2D([], [], color=_INK, lw=1.4, label="level"),
        Line2D([], [], color=_INK, lw=1, ls=(0, (4, 3)), label="change of level"),
    ]
    figure.legend(handles=marks, loc="outside lower left", ncols=6, fontsize=9)

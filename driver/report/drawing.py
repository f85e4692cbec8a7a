"""How figures become SVG inside a page of HTML.

Drawn by matplotlib, with two changes afterwards. Colours become the page's CSS variables, so that a
figure follows the page from light to dark. Text stays text in the page's own font: it scales, can
be found and selected, and is a tenth of the size of outlines. Its widths are then not those that
matplotlib knows, so no text is set against the edge of another.

Every figure is drawn twice, for a wide page and for a phone, where the first one's text would
be too small to read. The same receipt gives the same bytes: identifiers are salted with the
figure's name, and nothing is dated.
"""

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from driver.records import Side

# Widths in CSS pixels; a figure is never shown wider than it was drawn, nor much narrower.
WIDE, NARROW = 720, 330
# Stand-ins that become variables of the page. Colours of the arms are Okabe and Ito's there.
INK, MUTED, RULE, BAND = "#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04"
DRIFT, BAD = "#0a0a07", "#0a0a08"
SIDE: dict[Side, str] = {"A": "#0a0a05", "B": "#0a0a06"}
_VARIABLES = {
    INK: "ink", MUTED: "muted", RULE: "rule", BAND: "band", SIDE["A"]: "a", SIDE["B"]: "b",
    DRIFT: "drift", BAD: "bad",
}  # fmt: skip
# Colour never stands alone: the arms differ in marker and in line as well.
MARKER: dict[Side, str] = {"A": "o", "B": "D"}
LINE: dict[Side, str | tuple[float, tuple[float, ...]]] = {"A": "-", "B": (0, (5, 2.5))}
# What is beyond is no time, loss or rate of a run, and would leave nothing else to be seen.
_LEAST, MOST = 1e-9, 1e9
MOST_POINTS = 20_000
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 12,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.unicode_minus": False,
    "text.color": INK,
    "xtick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.color": RULE,
    "ytick.labelcolor": MUTED,
    "grid.color": RULE,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Picture:
    """One figure for both widths, and what it shows in words."""

    name: str
    alt: str
    wide: Markup
    narrow: Markup
    notes: tuple[str, ...] = ()


_Draw = Callable[[int], Figure]


# --------------------------------------------------------------------------- drawing


def new_figure(
    width: int, heights: Sequence[int], *, left: int, right: int, top: int, bottom: int,
    gap: int = 0,
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """Panels one below the other; everything in CSS pixels, which are this figure's points."""
    height = top + sum(heights) + gap * (len(heights) - 1) + bottom
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    panels, above = [], top
    for own in heights:
        box = (left / width, 1 - (above + own) / height, (width - left - right) / width,
               own / height)  # fmt: skip
        axes = figure.add_axes(box)
        axes.patch.set_visible(False)
        panels.append(axes)
        above += own + gap
    return figure, panels


def linear(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.grid(axis="y", lw=0.6)
    axes.set_axisbelow(True)


def log_scale(axes: Axes, values: Iterable[float], width: int) -> None:
    """A log scale around the values; no scale where there are none."""
    usable = [value for value in values if math.isfinite(value)]
    if not usable:
        axes.set_axis_off()
        return
    axes.set_yscale("log")
    axes.set_ylim(min(usable) / 3, max(usable) * 4)
    axes.yaxis.set_major_locator(LogLocator(numticks=6 if width == WIDE else 5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", lw=0.6)


def draw_curve(
    axes: Axes,
    values: Sequence[float],
    *,
    color: str,
    lw: float,
    ls: str | tuple[float, tuple[float, ...]],
) -> None:
    """A curve over steps counted from 1; a single step is a dot, since a line has no length."""
    alone = sum(map(math.isfinite, values)) == 1
    axes.plot(range(1, len(values) + 1), values, color=color, lw=lw, ls=ls,
              marker="o" if alone else None, ms=4)  # fmt: skip


def usable(value: float | None) -> float | None:
    """A positive number of a size that can be drawn, else None."""
    return value if value is not None and _LEAST < value < MOST else None


def finite(values: Sequence[float]) -> list[float]:
    """With gaps where a value is no number or beyond drawing."""
    return [value if abs(value) < MOST else math.nan for value in values]


def gaps(values: Sequence[float]) -> list[float]:
    """The same for a log scale, which has no 0 either."""
    return [value if 1e-18 < value < 1e6 else math.nan for value in values]


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# --------------------------------------------------------------------------- as part of a page


def picture(name: str, alt: str, draw: _Draw, notes: tuple[str, ...] = ()) -> Picture:
    wide, narrow = (_inline(f"{name}-{width}", alt, draw, width) for width in (WIDE, NARROW))
    return Picture(name, alt, wide, narrow, notes)


def _inline(name: str, alt: str, draw: _Draw, width: int) -> Markup:
    """The figure as an SVG element of HTML, without anything that refers to the outside."""
    target = io.StringIO()
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever a person's own style file says
        mpl.rcParams.update({**_STYLE, "svg.hashsalt": name})
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        draw(width).savefig(target, format="svg", metadata=nothing)
    root = ElementTree.fromstring(target.getvalue())
    for element in list(root):
        if element.tag.endswith("}metadata"):
            root.remove(element)
    used = set(re.findall(r"url\(#([^)]+)\)", target.getvalue()))
    used |= set(re.findall(r'href="#([^"]+)"', target.getvalue()))
    for element in root.iter():
        _tidy(element, name, used)
    box = root.get("viewBox", f"0 0 {width} 100")
    root.attrib.clear()
    root.attrib |= {"viewBox": box, "role": "img", "aria-label": alt}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _tidy(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Plain names, identifiers of this figure's own, the page's colours and font, short numbers."""
    element.tag = element.tag.rpartition("}")[2]
    for key, value in list(element.attrib.items()):
        del element.attrib[key]
        plain = key.rpartition("}")[2]
        if plain == "id":
            if value in used:
                element.set("id", f"{name}-{value}")
        elif plain == "href":
            element.set("href", value.replace("#", f"#{name}-"))
        elif plain in ("d", "transform", "points", "x", "y", "width", "height"):
            element.set(plain, re.sub(r"-?\d+\.\d+", _short, value))
        elif plain == "style":
            element.set("style", _page_style(value))
        else:
            element.set(plain, value.replace("url(#", f"url(#{name}-"))


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _page_style(style: str) -> str:
    """Without matplotlib's font, and with the page's variables for the stand-in colours."""
    style = re.sub(r"font: (?:(bold) )?([\d.]+)px [^;]*", _font, style)
    return re.sub(r"#0a0a0\d", lambda found: f"var(--{_VARIABLES[found[0]]})", style)


def _font(found: re.Match[str]) -> str:
    return f"font-size: {found[2]}px" + ("; font-weight: 600" if found[1] else "")

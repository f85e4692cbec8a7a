"""Receipts and other results → text for a terminal or a log, HTML, Markdown, JUnit."""

from typing import TYPE_CHECKING

from driver.later import later
from driver.report.doctor import machine_checks
from driver.report.evidence import calibration, comparison, reproduction, verify_answer
from driver.report.geometry import geometry
from driver.report.history import added, against, against_markdown, answer, listing, value_text
from driver.report.html import html
from driver.report.junit import junit
from driver.report.kernels import kernels
from driver.report.ladder import ladder, ladder_losses
from driver.report.lists import arm_list, preset_list
from driver.report.markdown import markdown
from driver.report.receipt import curve_over_presets, svg, text
from driver.report.words import Hero, doubts, hero, how_opened, verdict_line

if TYPE_CHECKING:
    from driver.report import trend
else:  # it needs matplotlib, which takes a third of a second to import
    trend = later("driver.report.trend")

__all__ = [
    "Hero",
    "added",
    "against",
    "against_markdown",
    "answer",
    "arm_list",
    "calibration",
    "comparison",
    "curve_over_presets",
    "doubts",
    "geometry",
    "hero",
    "how_opened",
    "html",
    "junit",
    "kernels",
    "ladder",
    "ladder_losses",
    "listing",
    "machine_checks",
    "markdown",
    "preset_list",
    "reproduction",
    "svg",
    "text",
    "trend",
    "value_text",
    "verdict_line",
    "verify_answer",
]

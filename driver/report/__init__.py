"""Receipts and other results → text for a terminal or a log, HTML, Markdown, JUnit."""

from driver.report.doctor import machine_checks
from driver.report.evidence import calibration, comparison, reproduction, verify_answer
from driver.report.geometry import geometry
from driver.report.history import added, against, against_markdown, answer, listing, value_text
from driver.report.html import html
from driver.report.junit import junit
from driver.report.kernels import kernels
from driver.report.ladder import ladder, ladder_losses
from driver.report.markdown import markdown
from driver.report.receipt import curve_over_presets, svg, text
from driver.report.trend import picture
from driver.report.words import Hero, doubts, hero, verdict_line

__all__ = [
    "Hero",
    "added",
    "against",
    "against_markdown",
    "answer",
    "calibration",
    "comparison",
    "curve_over_presets",
    "doubts",
    "geometry",
    "hero",
    "html",
    "junit",
    "kernels",
    "ladder",
    "ladder_losses",
    "listing",
    "machine_checks",
    "markdown",
    "picture",
    "reproduction",
    "svg",
    "text",
    "value_text",
    "verdict_line",
    "verify_answer",
]

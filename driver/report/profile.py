"""Where a step's time goes, as text."""

from rich.console import Console
from rich.table import Table

from driver.records import (
    ArmPlan,
    Profile,
)
from driver.report.terminal import add_row, new_table, number_text, percent_text, write_line


def profile_of(console: Console, arm: ArmPlan) -> None:
    """Where a step's time goes, the longest first, or why that is not known; else nothing."""
    profile = arm.profile
    if profile:
        write_line(console, f"profile of {arm.side} {arm.name}", "bold")
        console.print(_profile_table(profile))
        write_line(console, _cost_line(profile))
        if profile.samples.clock_step_ms is not None:
            write_line(console, _step_line(profile))
    elif arm.profile_reason:
        write_line(console, f"no profile of {arm.side} {arm.name}: {arm.profile_reason}")
    if profile or arm.profile_reason:
        console.print()


def _profile_table(profile: Profile) -> Table:
    headings = ("operation", "calls", "ms/step", "share", "GFLOP/s")
    table = new_table(headings, headings[:1])
    for op in sorted(profile.ops, key=lambda op: -op.ms):
        add_row(
            table,
            op.op,
            str(op.calls),
            ("~" if op.below_clock_step else "") + number_text(op.ms),
            percent_text(op.share),
            number_text(op.gflops),
        )
    whole, outside = profile.wall_profiled_ms, profile.uncovered_ms
    share = outside / whole if whole else None
    add_row(table, "outside of them", "", number_text(outside), percent_text(share), "")
    return table


def _cost_line(profile: Profile) -> str:
    cost, spread = profile.cost, profile.cost_range
    words = "not known" if cost is None else f"{cost - 1:+.1%} of a step"
    if spread:
        words += f" ({spread[0] - 1:+.1%} to {spread[1] - 1:+.1%} over {profile.rounds} round(s))"
    return (
        f"the profiler's own cost: {words}; {number_text(profile.wall_ms)} ms/step without it, "
        f"{number_text(profile.wall_profiled_ms)} with it, "
        f"windows of {profile.samples.steps} step(s)" + _round_words(profile)
    )


def _round_words(profile: Profile) -> str:
    """Which windows the figures are of."""
    if profile.round is None:
        return "; medians over the windows, which need not add up"
    return f"; all figures are of round {profile.round}, the fastest with the profiler"


def _step_line(profile: Profile) -> str:
    step_ms = profile.samples.clock_step_ms or 0.0
    words = f"GPU timestamps move in steps of {step_ms * 1e6:,.0f} ns, as measured"
    if any(op.below_clock_step for op in profile.ops):
        words += "; a call of an operation marked ~ takes less: its figure says little"
    return words

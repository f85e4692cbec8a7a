"""Where a step's time goes, as text."""

from collections.abc import Iterator

from rich.console import Console

from driver.records import (
    ArmPlan,
    Profile,
)
from driver.report.terminal import TextTable, number_text, percent_text, write_line
from driver.wording import counted

PROFILE_HEADINGS = ("operation", "calls", "ms/step", "share", "GFLOP/s")
PRODUCTS = ("matmul_", "head_")  # how the operations that are matrix products begin


def profile_of(console: Console, arm: ArmPlan, name: str = "") -> None:
    """Where a step's time goes, the longest first, or why that is not known; else nothing."""
    profile, name = arm.profile, name or arm.name
    if profile:
        write_line(console, f"profile of {arm.side} {name}", "bold")
        console.print(_profile_table(profile))
        for line in profile_notes(profile):
            write_line(console, line)
    elif arm.profile_reason:
        write_line(console, f"no profile of {arm.side} {name}: {arm.profile_reason}")
    if profile or arm.profile_reason:
        console.print()


def _profile_table(profile: Profile) -> TextTable:
    table = TextTable(PROFILE_HEADINGS, PROFILE_HEADINGS[:1])
    for row in profile_rows(profile):
        table.add(*row)
    return table


def profile_rows(profile: Profile) -> Iterator[tuple[str, ...]]:
    """Cells under `PROFILE_HEADINGS`: the operations, the longest first, and what is outside."""
    for op in sorted(profile.ops, key=lambda op: -op.ms):
        ms = ("~" if op.below_clock_step else "") + number_text(op.ms)
        yield op.op, str(op.calls), ms, percent_text(op.share), number_text(op.gflops)
    whole, outside = profile.wall_profiled_ms, profile.uncovered_ms
    share = outside / whole if whole else None
    yield "outside of them", "", number_text(outside), percent_text(share), ""


def profile_notes(profile: Profile) -> Iterator[str]:
    """What asking cost, what the clock could tell, and the step beside its fastest products."""
    yield _cost_line(profile)
    if profile.samples.clock_step_ms is not None:
        yield _step_line(profile)
    if reached := _reached_line(profile):
        yield reached


def _reached_line(profile: Profile) -> str | None:
    """The step's rate beside that of its fastest products, both of the same windows."""
    timed = [op for op in profile.ops if op.gflops and op.flops and not op.below_clock_step]
    products = [op for op in timed if op.op.startswith(PRODUCTS)]
    if not products or not profile.wall_profiled_ms:
        return None
    best = max(products, key=lambda op: op.gflops or 0.0)
    flops = sum(op.flops or 0 for op in profile.ops)
    rate = flops / profile.wall_profiled_ms / 1e6
    return (
        f"the step's products and attention over all of its time: {number_text(rate)} GFLOP/s, "
        f"{rate / (best.gflops or 1.0):.0%} of {best.op}, its fastest products"
    )


def _cost_line(profile: Profile) -> str:
    cost, spread = profile.cost, profile.cost_range
    words = "not known" if cost is None else f"{cost - 1:+.1%} of a step"
    if spread:
        rounds = counted(profile.rounds, "round")
        words += f" ({spread[0] - 1:+.1%} to {spread[1] - 1:+.1%} over {rounds})"
    return (
        f"the profiler's own cost: {words}; {number_text(profile.wall_ms)} ms/step without it, "
        f"{number_text(profile.wall_profiled_ms)} with it, "
        f"windows of {counted(profile.samples.steps, 'step')}" + _round_words(profile)
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

"""Where a step's time goes, operation by operation: raw samples and what is derived from them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from driver.records.page import Record

MOST_OPS = 64
MOST_WINDOWS = 200

# A time on a monotonic clock, less than a month; anything else is no sample.
Ms = Annotated[float, Field(ge=0, le=2.6e9, allow_inf_nan=False)]
Windows = Annotated[list[Ms], Field(min_length=2, max_length=MOST_WINDOWS)]
Derived = Annotated[float, Field(allow_inf_nan=False)]


class OpSamples(Record):
    """One operation, by its name in C and WGSL, in every window with the profiler."""

    op: str = Field(pattern="^[a-z][a-z0-9_]{0,63}$")
    calls: int = Field(ge=1, lt=2**31, description="in one step")
    windows_ms: Windows = Field(description="over a whole window each")


class ProfileSamples(Record):
    """Windows without and with the profiler, taken A B B A; whole windows of `steps` steps."""

    steps: int = Field(ge=1, lt=2**31)
    clock: Literal["performance.now", "timestamp-query"] = Field(
        default="performance.now", description="of the operations; windows have performance.now"
    )
    clock_step_ms: Ms | None = Field(
        default=None,
        description="measured: the largest time that divides every difference of timestamps; "
        "null for performance.now, whose step stands in the page's facts",
    )
    plain_ms: Windows = Field(description="without the profiler, two a round")
    profiled_ms: Windows = Field(description="with it, two a round")
    ops: tuple[OpSamples, ...] = Field(
        min_length=1, max_length=MOST_OPS, description="in the order in which a step runs them"
    )

    @model_validator(mode="after")
    def _as_many_of_each(self) -> "ProfileSamples":
        windows = len(self.plain_ms)
        lists = [self.profiled_ms, *(op.windows_ms for op in self.ops)]
        if windows % 2 or any(len(values) != windows for values in lists):
            raise ValueError("a round is two windows without the profiler and two with it")
        if len({op.op for op in self.ops}) != len(self.ops):
            raise ValueError("an operation occurs twice")
        return self


class ProfileOp(Record):
    """One operation's part of a step."""

    op: str
    calls: int = Field(description="in one step")
    ms: Derived = Field(description="in one step of the chosen round")
    share: Derived | None = Field(description="of the step with the profiler; null if that took 0")
    flops: int | None = Field(description="of its products in one step; null where it has none")
    gflops: Derived | None = Field(description="in 1e9/s; null without FLOPs or without time")
    below_clock_step: bool = Field(
        default=False, description="a call takes less than the clock's step: not to be relied on"
    )


class Profile(Record):
    """A step's time by operation. Times are of one step, all of them from one round's windows, so
    that the operations and what belongs to none add up to the step with the profiler."""

    samples: ProfileSamples
    rounds: int
    round: int | None = Field(
        default=None,
        description="the round that every figure but cost_range comes from, counted from 1: the "
        "one whose windows with the profiler took least; null in older files, whose figures are "
        "medians over the windows",
    )
    wall_ms: Derived = Field(description="a step without the profiler")
    wall_profiled_ms: Derived = Field(description="a step with it")
    cost: Derived | None = Field(
        description="time with the profiler over time without it, in that round"
    )
    cost_range: tuple[Derived, Derived] | None = Field(description="lowest and highest round")
    uncovered_ms: Derived = Field(
        description="of a step with the profiler, what belongs to no operation"
    )
    ops: tuple[ProfileOp, ...]

"""`driver kernels`: what single kernels gave, raw samples and what is derived from them."""

from typing import Any, Literal

from pydantic import Field

from driver.records.page import Kernel, Number, Record


class KernelSamples(Record):
    """One product timed in the page, in turn with the roofline on the same threads, or alone."""

    threads: int = Field(ge=1)
    products_per_sample: int = Field(ge=1)
    samples_ms: list[Number] = Field(min_length=1)
    roofline_gflops: list[Number] = Field(
        description="[i] before sample i, [i + 1] after it; empty where it was timed alone"
    )


class KernelRow(Record):
    """One kernel at one shape. A kernel that is not right is not timed."""

    kernel: Kernel
    status: Literal["ok", "FAIL"]
    reason: str | None = None
    error_over_bound: Number | None = Field(
        description="largest |C − C64| / (γ·|A||B|), γ = K·u / (1 − K·u), against float64; null "
        "where the bits are those of the first row of this product and shape"
    )
    same_bits: bool | None = Field(
        description="as the first row of this product and shape; null for that row"
    )
    flops: int = Field(description="2·M·N·K")
    gflops: Number | None = Field(default=None, description="median over the samples, in 1e9/s")
    gflops_quartiles: tuple[Number, Number] | None = None
    share: Number | None = Field(
        default=None, description="median of each sample over the mean of its two roofline samples"
    )
    share_quartiles: tuple[Number, Number] | None = None
    forks: int | None = Field(default=None, description="forks and joins of one product")
    chunks: int | None = Field(default=None, description="pieces of work in them, all together")
    samples: KernelSamples | None = None


class UnevenFork(Record):
    """A fork with one slow thread: who ran how many chunks. Chunks are claimed, not dealt out."""

    slow_thread: int = Field(ge=0, description="0 is the caller")
    slowness: int = Field(ge=1, description="chunks that others do while it does one")
    chunks: int = Field(ge=1)
    by_thread: list[int]


class OperationSamples(Record):
    """One operation timed in the page, in turn with its roofline on the same threads."""

    threads: int = Field(ge=1)
    calls_per_sample: int = Field(ge=1)
    samples_ms: list[Number] = Field(min_length=1)
    roofline: list[Number] = Field(
        min_length=2, description="in 1e9/s, [i] before sample i, [i + 1] after it"
    )


class OperationRow(Record):
    """One of a step's other operations at one shape. One that is not right is not timed."""

    name: str
    sizes: dict[str, int]
    status: Literal["ok", "FAIL"]
    reason: str | None = None
    error_over_bound: Number = Field(description="the largest of `errors`")
    errors: dict[str, Number] = Field(
        description="by result, the largest |r − r64| over its forward error bound"
    )
    same_bits: bool = Field(description="on one thread and on several")
    unit: Literal["GFLOP/s", "GB/s"]
    work: int = Field(
        description="FLOPs of one call, or the bytes that it must move: read once, written once"
    )
    rate: Number | None = Field(default=None, description="median over the samples, in 1e9/s")
    rate_quartiles: tuple[Number, Number] | None = None
    share: Number | None = Field(
        default=None,
        description="median of each sample over the mean of its two roofline samples: "
        "multiply-adds for GFLOP/s, a triad over as much memory for GB/s",
    )
    share_quartiles: tuple[Number, Number] | None = None
    forks: int = Field(ge=0, description="forks and joins of one call")
    chunks: int = Field(ge=0, description="pieces of work in them, all together")
    samples: OperationSamples | None = None


class ForkTimes(Record):
    """Forks and joins without work in which every thread of the arm takes part."""

    threads: int = Field(ge=1)
    forks_per_sample: int = Field(ge=1)
    samples_ms: list[Number] = Field(min_length=1)
    fork_us: Number = Field(description="median of one fork and join")
    fork_us_quartiles: tuple[Number, Number]
    uneven: tuple[UnevenFork, ...] = ()


class KernelReport(Record):
    """driver-kernels/1. History of the format: 1 (2026-11) products; `operations` and geometry
    are additions, absent in older files."""

    format: Literal["driver-kernels/1"] = "driver-kernels/1"
    arm: str = Field(description="the arm as a person would write it, every choice made")
    op: str
    seed: int = Field(description="of the inputs")
    ran: dict[str, Any]
    machine: dict[str, Any]
    load_before: dict[str, Any]
    load_after: dict[str, Any]
    browser: dict[str, Any]
    rows: tuple[KernelRow, ...] = ()
    operations: tuple[OperationRow, ...] = ()
    fork: ForkTimes | None = None

    @property
    def holds(self) -> bool:
        """Every kernel is right."""
        judged = [row.status for row in self.rows] + [row.status for row in self.operations]
        return all(status == "ok" for status in judged)

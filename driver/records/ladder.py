"""`driver ladder`: what every rung gained over the one before it, in its kernels and end to end."""

from typing import Any, Literal

from pydantic import Field

from driver.errors import Interrupted
from driver.records.kernels import KernelSamples
from driver.records.page import Kernel, Number, Product, Record
from driver.records.precision import PrecisionReport
from driver.records.receipt import VerdictStatus, Word


class RungProduct(Record):
    """A product of the step, run apart from it as this rung runs it.

    Rungs that run it by the same kernel on the same module and threads share its samples.
    """

    option: Product = Field(description="the option that chooses its kernel")
    count: int = Field(ge=1, description="how often a step makes it")
    kernel: Kernel
    output_sha256: str
    passes: tuple[KernelSamples, ...] = Field(
        min_length=1, description="the rungs in order, then, where the budget allows, in reverse"
    )


class Rung(Record):
    """One value of the axis."""

    label: str
    arm: str = Field(description="the arm as a person would write it, every choice made")
    status: Literal["ok", "unsupported"]
    reason: str | None = None
    options: dict[str, str | int | float | bool]
    products: tuple[RungProduct, ...] = ()


class Apart(Record):
    """What the changed products gained by themselves: time before over time after."""

    options: tuple[Product, ...] = Field(description="products that the two rungs run otherwise")
    gain: Number | None
    pass_gains: tuple[Number, ...] = Field(description="the same from each pass alone")
    before_ms: Number | None = Field(
        description="of a step in those products: each one's fastest sample, mean of the passes"
    )
    after_ms: Number | None
    reason: str | None = Field(default=None, description="why there is no gain")


class LadderPair(Record):
    """Two neighbouring rungs: one run, its receipt, and the gain of the products apart."""

    before: str = Field(description="label of the earlier rung, side A of the receipt")
    after: str = Field(description="label of the later rung, side B")
    budget_s: Number = Field(description="its part of the ladder's budget")
    exit_code: int = Field(description="what `driver run` would have ended with")
    before_step_ms: Number | None = None
    after_step_ms: Number | None = None
    ratio: Number | None = Field(
        default=None, description="time before / time after: so many times as fast"
    )
    low: Number | None = None
    high: Number | None = None
    confidence: float | None = None
    word: Word | None = Field(default=None, description="of `after` against `before`")
    ratio_reason: str | None = Field(default=None, description="why there is no interval")
    blocks: int = Field(default=0, description="finished ones")
    verdict: VerdictStatus | None = None
    reasons: tuple[str, ...] = Field(
        default=(), description="of the verdict, or why there is no receipt"
    )
    receipt: str | None = Field(default=None, description="file name, beside the ladder's")
    receipt_digest: str | None = None
    apart: Apart

    @property
    def claims(self) -> bool:
        """There is a ratio, and no blocking gate failed."""
        return self.ratio is not None and self.verdict != "failed"


class LadderReport(Record):
    """driver-ladder/1. History of the format: 1 (2026-11) first version."""

    format: Literal["driver-ladder/1"] = "driver-ladder/1"
    axis: str
    meaning: str
    arm: str = Field(description="as asked for, defaults expanded")
    preset: dict[str, Any]
    seed: int
    blocks: int = Field(description="asked for, of every pair")
    budget_s: float
    budget_rule: str
    machine: dict[str, Any]
    load_before: dict[str, Any]
    load_after: dict[str, Any]
    browser: dict[str, Any]
    interrupted: bool = Field(description="pairs may be missing")
    rungs: tuple[Rung, ...]
    pairs: tuple[LadderPair, ...]
    fastest: str | None = Field(
        description="label of the fastest rung by the pairs' ratios, one after another; null where "
        "a pair has none or a blocking gate of it failed"
    )
    fastest_apart: str | None = Field(description="the same by the products apart")
    precision: PrecisionReport | None = Field(default=None, description="of axis precision alone")

    @property
    def exit_code(self) -> int:
        """130 when interrupted, else that of the worst pair."""
        worst = max((pair.exit_code for pair in self.pairs), default=0)
        return Interrupted.exit_code if self.interrupted else worst

"""The precision report: what less precision did to numbers, learning, memory and speed."""

from typing import Literal

from pydantic import Field

from driver.records.page import Number, Record


class PrecisionCheck(Record):
    """One numerical gate of a rung, from its run's receipt."""

    name: str
    limit: Number | None = Field(description="fixed before the first run in less precision")
    measured: Number | None
    status: str
    reason: str


class Quality(Record):
    """How well it learned: mean losses in nats over the last quarter of the common steps."""

    steps: int = Field(ge=0, description="that the two arms and the reference have in common")
    loss: Number
    reference_loss: Number = Field(description="of the float64 reference")
    before: str = Field(description="label of the rung in the same run")
    before_loss: Number
    excess: Number = Field(description="loss over the reference's, relatively")
    limit: Number


class PrecisionRung(Record):
    """One precision."""

    label: str
    precision: str = Field(description="in words")
    status: Literal["ok", "failed", "unsupported", "not run"]
    reasons: tuple[str, ...] = Field(default=(), description="why it is not ok")
    checks: tuple[PrecisionCheck, ...] = ()
    drift: Number | None = Field(
        default=None, description="largest paired relative difference of a loss, rung before"
    )
    nonfinite: int | None = Field(default=None, description="losses and norms that are no numbers")
    quality: Quality | None = None
    text: str | None = Field(default=None, description="greedy continuation by the final weights")
    text_reason: str | None = None
    step_ms: Number | None = None
    memory_bytes: dict[str, int] = Field(default={}, description="GPU buffers by role")
    receipt_digest: str | None = None


class PrecisionReport(Record):
    """driver-precision/1, in a ladder's JSON. History of the format: 1 (2026-11) first version."""

    format: Literal["driver-precision/1"] = "driver-precision/1"
    frozen_utc: str = Field(description="when the limits were fixed; no run had begun")
    limits: dict[str, dict[str, float]] = Field(description="label → gate → limit")
    limits_sha256: str = Field(description="over the RFC 8785 form of `limits`")
    limits_rule: str
    adapter: str = Field(description="hardware, software or unknown")
    adapter_reasons: tuple[str, ...] = ()
    hardware_fallback: bool | None = Field(description="a software adapter computed; null: unknown")
    prompt: str = Field(description="start of the corpus that the texts continue")
    rungs: tuple[PrecisionRung, ...]
    decision_rule: str
    adopted: str = Field(description="label of the precision that the rule adopts on this adapter")
    reasons: tuple[str, ...] = Field(description="a sentence for every other precision")

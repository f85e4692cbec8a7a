"""What `verify`, `compare` and `reproduce` answer."""

from typing import Literal

from pydantic import Field

from driver.records.page import Number, Record

ChangeWord = Literal["regression", "improvement", "equivalent", "unsure"]
Agreement = Literal["agree", "disagree", "not comparable"]


class RebuiltFile(Record):
    """Something that the page was given, as the receipt has it and as this source gives it."""

    name: str
    recorded_sha256: str
    rebuilt_sha256: str | None
    same: bool
    reason: str | None


class VerifyAnswer(Record):
    """What `driver verify` found of one file."""

    receipt: str
    status: Literal["valid", "unconfirmed", "invalid", "unreadable"]
    faults: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = Field(
        default=(), description="what another evaluator than the receipt's computes otherwise"
    )
    remarks: tuple[str, ...] = ()
    rebuilt: tuple[RebuiltFile, ...] | None = Field(default=None, description="with --rebuild")


class Change(Record):
    """One quantity in two receipts, as NEW over BASE: above 1 is worse."""

    of: Literal["A", "B", "B against A"]
    base: Number | None = Field(description="ms per step, or time of B over time of A")
    new: Number | None
    change: Number | None
    low: Number | None
    high: Number | None
    between_run_sd: Number | None = Field(
        description="of the logarithm, from a calibration; null: the interval lacks that part"
    )
    word: ChangeWord
    reason: str | None


class CompareReport(Record):
    """What `driver compare` found."""

    base_digest: str
    new_digest: str
    margin: float
    confidence: float
    changes: tuple[Change, ...]
    remarks: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """At least one regression was proved."""
        return any(change.word == "regression" for change in self.changes)


class Aspect(Record):
    """One thing that a reproduction repeats."""

    name: str
    outcome: Agreement
    reason: str


class Reproduction(Record):
    """What `driver reproduce` found."""

    receipt_digest: str
    reproduction_digest: str
    reproduction: str = Field(description="file name of the new receipt")
    margin: float
    outcome: Agreement
    aspects: tuple[Aspect, ...]

"""One row of the history per receipt and per slot, and what commands on it answer.

The fields are the columns: the database's tables are made from these records.
"""

from datetime import datetime
from typing import Literal

from pydantic import Field

from driver.records.evidence import ChangeWord
from driver.records.page import Number, Record
from driver.records.receipt import VerdictStatus, Word


class HistoryReceipt(Record):
    """A receipt. Verdict and figures are as computed again from its raw data when it was added."""

    digest: str = Field(description="of the receipt's content; the same one is one row")
    file: str = Field(description="name of the file that it was read from")
    added_utc: datetime
    frozen_utc: datetime | None = Field(description="when its plan was frozen; null: it is no time")
    checked: Literal["valid", "unconfirmed", "invalid"] = Field(
        description="as `driver verify` says"
    )
    fault: str | None = Field(description="the first one")
    preset: str
    machine: str = Field(description="processor, usable cores, system")
    browser: str = Field(description="name and major version")
    browser_version: str
    adapter: str = Field(description="vendor and architecture; empty where no arm uses one")
    adapter_verdict: str
    arm_a: str
    arm_b: str
    canonical_a: str
    canonical_b: str
    label_a: str = Field(description="the arm without tuned tiles and without its source's name")
    label_b: str
    series_a: str = Field(description="the same wherever arm, work, machine, browser, adapter are")
    series_b: str
    revision: str | None
    dirty: bool | None
    driver_version: str
    seed: int
    blocks: int
    ratio: Number | None = Field(description="time of A over time of B")
    ratio_low: Number | None = Field(description="95% interval within the run")
    ratio_high: Number | None
    word: Word
    margin: float
    ms_a: Number | None = Field(description="ms/step: geometric mean over blocks")
    ms_a_low: Number | None = Field(description="95% interval within the run")
    ms_a_high: Number | None
    variance_a: Number | None = Field(description="of the logarithm of ms_a, from the blocks")
    freedom_a: Number | None = Field(description="its degrees of freedom")
    ms_b: Number | None
    ms_b_low: Number | None
    ms_b_high: Number | None
    variance_b: Number | None
    freedom_b: Number | None
    loss_a: Number | None = Field(description="the last one")
    loss_b: Number | None
    verdict: VerdictStatus = Field(description="computed again")
    verdict_stated: VerdictStatus = Field(description="as the file says")
    reasons: tuple[str, ...]
    gates_failed: tuple[str, ...] = Field(description="gates that do not pass, unknown included")
    headline: str


class HistorySlot(Record):
    """A slot of a receipt, with its raw times."""

    digest: str = Field(description="the receipt's")
    slot: int
    block: int
    position: int
    side: Literal["A", "B"]
    arm: str
    status: Literal["ok", "failed"]
    failure: str | None
    started_utc: datetime | None
    step_ms: Number | None = Field(description="the median window over its steps")
    steps_per_window: int
    windows_ms: tuple[Number, ...] = Field(description="whole windows, raw")
    compile_ms: Number | None
    upload_ms: Number | None
    first_step_ms: Number | None
    steps: int = Field(description="with a loss, warm-up included")
    last_loss: Number | None
    sentinel_ms: tuple[Number, ...]
    gpu_sentinel_ms: tuple[Number, ...]


class Refused(Record):
    """A file that was not added, or was and does not hold."""

    file: str
    reason: str


class HistoryAdded(Record):
    """What `driver history add` did."""

    database: str
    read: int
    added: int = Field(description="receipts that were not there before")
    renewed: int = Field(description="there already; computed again and replaced")
    unchanged: int = Field(
        default=0, description="files that this very program has added before, byte for byte"
    )
    total: int = Field(description="receipts in the database")
    invalid: tuple[Refused, ...] = Field(description="kept and marked: they do not hold")
    unreadable: tuple[Refused, ...] = Field(description="not added")


class HistoryChange(Record):
    """One quantity of a new receipt beside earlier ones, as new over earlier: above 1 is worse."""

    of: Literal["A", "B", "B against A"]
    arm: str
    against: Literal["last runs", "baseline", "the same run"]
    runs: int = Field(description="earlier runs that it is compared with")
    earlier: Number | None = Field(description="ms per step")
    new: Number | None
    change: Number | None
    low: Number | None
    high: Number | None
    between_run_sd: Number | None = Field(description="of the logarithm, from earlier runs")
    word: ChangeWord
    reason: str | None


class HistoryReport(Record):
    """What `driver history compare` found."""

    new_digest: str
    baseline_digest: str | None
    margin: float
    confidence: float
    last: int
    changes: tuple[HistoryChange, ...]
    remarks: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """At least one regression was proved."""
        return any(change.word == "regression" for change in self.changes)

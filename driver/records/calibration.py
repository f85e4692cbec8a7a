"""What A/A runs of one arm on one machine said about noise."""

from pydantic import Field

from driver.records.page import ModelConfig, Number, Record


class CalibrationKey(Record):
    """What has to be the same for a calibration to tell anything."""

    cpu: str
    architecture: str
    cores_usable: int
    system: str
    browser: str
    browser_major: str
    adapter: str = Field(description="vendor and architecture; empty where the arm uses none")
    preset: str
    config: ModelConfig
    arm: str = Field(description="name and options, without the tiles that are tuned per run")


class CalibrationRun(Record):
    """One A/A run; logarithms are natural, of ms per step."""

    utc: str
    receipt_digest: str
    blocks: int = Field(ge=0)
    word: str = Field(description="what the run said of two sides that are the same")
    log_step_ms: Number = Field(description="mean log step time over all slots of both sides")
    log_ratio: Number = Field(description="the estimate; its true value is 0")
    within_sd: Number = Field(ge=0, description="of a block's log ratio, pooled within orders")


class Calibration(Record):
    """Raw runs and what follows from them; null where too few runs tell."""

    key: CalibrationKey
    margin: float = Field(gt=0, description="the effect that `recommended_blocks` is for")
    runs: tuple[CalibrationRun, ...] = Field(max_length=1000)
    false_positives: int = Field(description="runs that called the same arm faster or slower")
    false_positive_rate: Number | None
    false_positive_low: Number | None = Field(description="95% Clopper–Pearson interval")
    false_positive_high: Number | None
    within_sd: Number | None = Field(description="of a block's log ratio, within one run")
    between_step_sd: Number | None = Field(description="of a run's log step time, between runs")
    between_ratio_sd: Number | None = Field(description="of a run's log ratio, between runs")
    minimum_effects: dict[str, Number] = Field(
        description="by number of blocks: the relative effect that 80% of runs would find"
    )
    recommended_blocks: int | None = Field(
        description="fewest whose minimum effect is at most the margin; null when above 1000"
    )

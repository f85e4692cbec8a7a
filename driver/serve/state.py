"""What the page shows, and what a person may send from it."""

from typing import Literal

from pydantic import Field

from driver.records import GateClass, GateStatus, Number, Record, Side, VerdictStatus

Phase = Literal["meeting", "ready", "running", "stopping", "ended"]


# --------------------------------------------------------------------------- from the page


class Brand(Record):
    """One entry of `navigator.userAgentData`'s list of full versions."""

    brand: str = Field(max_length=80)
    version: str = Field(max_length=40)


class Hello(Record):
    """What the page says of its browser when it claims the session."""

    brands: tuple[Brand, ...] = Field(default=(), max_length=20)


class Wish(Record):
    """What a person chose."""

    preset: str = Field(max_length=500)
    a: str = Field(max_length=40)
    b: str = Field(max_length=40)
    a_options: str = Field(default="", max_length=400)
    b_options: str = Field(default="", max_length=400)
    blocks: str = Field(default="", max_length=10)
    budget: str = Field(default="", max_length=20)

    @property
    def arms(self) -> str:
        """Both arms as the command line has them."""
        sides = ((self.a, self.a_options), (self.b, self.b_options))
        return ",".join(f"{name}:{options.strip()}" if options.strip() else name
                        for name, options in sides)  # fmt: skip


class FrameReport(Record):
    """What became of a frame that the driver asked for."""

    serial: int = Field(ge=0, lt=2**53)
    gone: bool


class Presence(Record):
    """Whether the page is seen."""

    visible: bool


# --------------------------------------------------------------------------- to the page


class Offer(Record):
    """An arm or a preset, and why it cannot be had here."""

    name: str
    meaning: str
    reason: str | None = None


class PresetOffer(Offer):
    """A preset, its model's size and its time."""

    parameters: int
    budget: str
    blocks: int


class BrowserView(Record):
    """The person's browser as the driver understood it."""

    name: str
    version: str
    source: str
    elsewhere: bool = Field(description="on another device than the driver")
    isolated: bool
    cores: int | None
    machine: str
    adapter: str | None
    adapter_kind: str | None
    notes: tuple[str, ...]


class Place(Record):
    """The slot that runs. Numbers count from 1, `position` in its block from 0."""

    number: int
    slots: int
    block: int
    blocks: int
    position: int
    side: Side


class ArmView(Record):
    """One side's raw figures so far; nothing is claimed from them."""

    side: Side
    name: str
    label: str = Field(description="with what sets it apart from an arm of the same name")
    step_ms: Number | None = Field(default=None, description="of its newest window")
    median_step_ms: Number | None = Field(default=None, description="over all its windows so far")
    windows: int = 0
    newest_ms: tuple[Number, ...] = Field(default=(), description="of its newest windows, per step")
    loss: Number | None = None
    curve: tuple[tuple[int, Number], ...] = Field(default=(), description="step, loss; newest slot")


class SlotView(Record):
    """A slot that is over; blocks count from 1."""

    block: int
    position: int
    side: Side
    ok: bool
    step_ms: Number | None
    marks: tuple[str, ...]


class RunView(Record):
    """A run that is going on, or was the last one."""

    preset: str
    arms: tuple[ArmView, ArmView]
    phase: str
    share: float = Field(description="of the slots that is done, before them of the phase")
    left_s: float | None = None
    budget_s: float
    place: Place | None = None
    raw_ratio: float | None = Field(default=None, description="A/B of the medians; no claim")
    order: tuple[str, ...] = Field(
        default=(), description="of each planned block: ABBA; known once the plan is frozen"
    )
    slots: tuple[SlotView, ...] = ()
    said: tuple[str, ...] = Field(default=(), description="warnings, the plan, other lines")


class GateView(Record):
    """A gate that did not pass."""

    name: str
    gate_class: GateClass
    status: GateStatus
    reason: str


class ArmResult(Record):
    """One side's figures in the receipt."""

    side: Side
    name: str
    step_ms: Number | None
    quartiles: tuple[Number, Number] | None
    gflops: Number | None
    windows: int
    first_loss: Number | None
    last_loss: Number | None
    first_step_ms: Number | None
    compile_ms: Number | None


class ResultView(Record):
    """What came of a run."""

    number: int = Field(description="of the receipt in this session")
    file: str
    folder: str
    interrupted: bool
    status: VerdictStatus
    reasons: tuple[str, ...]
    headline: str
    figure: str = Field(description="how many times as fast, 19.2×, or a word")
    line: str
    detail: str
    arms: tuple[ArmResult, ArmResult]
    slots: int
    slots_planned: int
    suspect: tuple[str, ...] = Field(description="marked blocks with their reasons")
    gates: tuple[GateView, ...] = Field(description="those that did not pass")
    gates_passed: int


class State(Record):
    """Everything that the page shows."""

    phase: Phase
    driver: str
    folder: str
    browser: BrowserView | None = None
    presets: tuple[PresetOffer, ...] = ()
    arms: tuple[Offer, ...] = ()
    wish: Wish
    run: RunView | None = None
    result: ResultView | None = None
    earlier: tuple[ResultView, ...] = Field(default=(), description="of this session, newest first")
    problem: str | None = None

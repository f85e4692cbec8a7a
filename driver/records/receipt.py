"""The receipt: plan, raw slots, and everything derived from them."""

from statistics import median
from typing import Any, Literal

from pydantic import Field

from driver.records.calibration import Calibration
from driver.records.page import Kernel, ModelConfig, Number, PageFailure, Product, Record
from driver.records.profile import Profile

Side = Literal["A", "B"]
GateClass = Literal["blocking", "qualifying"]
GateStatus = Literal["pass", "fail", "unknown", "not-applicable"]
VerdictStatus = Literal["qualified", "unqualified", "failed"]
Word = Literal["faster", "slower", "equivalent", "unsure"]
# `environment.browser.source` of a browser that a person opened.
BY_HAND = "by hand (driver serve)"


class CorpusFacts(Record):
    """What the arms trained on."""

    name: str
    sha256: str
    size_bytes: int
    entropy_nats_per_byte: float | None
    unigram_entropy_nats: float


class Roofline(Record):
    """What an arm's module could reach at most here: raw samples, taken in turn in its page."""

    flavour: str = Field(description="the multiply-add of the module's kernels")
    threads: int = Field(ge=1)
    chains: int = Field(ge=1, description="independent multiply-adds in flight")
    bandwidth_buffer_bytes: int = Field(ge=1, description="all three arrays of the triad")
    core_gflops: list[Number] = Field(description="multiply-adds on registers, one thread, 1e9/s")
    all_gflops: list[Number] = Field(description="the same on all threads of the arm")
    bandwidth_core_gbs: list[Number] = Field(description="a = b + s·c, one thread, in GB/s")
    bandwidth_all_gbs: list[Number]


class ThreadSamples(Record):
    """Multiply-adds on registers while that many threads run at the same time."""

    threads: int = Field(ge=1)
    gflops: list[Number] = Field(description="one per round, in 1e9/s; empty where not measured")


class ThreadChoice(Record):
    """How many threads a WASM arm gets that was not told: measured, since a page may be wrong."""

    hardware_concurrency: int | None = Field(description="what the browser says")
    cores_usable: int = Field(ge=1, description="what the system lets this process use")
    measured: tuple[ThreadSamples, ...] = Field(description="by number of threads, in rounds")
    threads: int = Field(ge=1)
    reason: str


class VariantTrial(Record):
    """A candidate for a product of the webgpu arm, tried on this adapter before the plan."""

    option: Product = Field(description="whose products these are")
    kernel: Kernel = Field(description="variant, tile, workgroup, and the product it was tried at")
    status: Literal["ok", "wrong", "refused"]
    reason: str | None = Field(default=None, description="why it was dropped")
    error_over_bound: Number | None = Field(
        default=None, description="largest error against float64 over its bound; above 1 is wrong"
    )
    gflops: Number | None = Field(
        default=None, description="best sample, in 1e9/s; null where nothing was left to choose"
    )
    chosen: bool = False


class Pinned(Record):
    """Choices taken over from another receipt's plan instead of being made here."""

    receipt_digest: str
    side: Side = Field(description="of the arm in that receipt")
    options: tuple[str, ...] = Field(description="those taken over; the others were given")


class ArmPlan(Record):
    """One side of the comparison, every choice made."""

    side: Side
    name: str
    canonical: str = Field(description="the arm as a person would write it, defaults expanded")
    options: dict[str, str | int | float | bool]
    expected: dict[str, Any] = Field(description="what the arm must echo from inside its worker")
    warmup_steps: int = Field(ge=0)
    windows: int = Field(ge=1)
    steps_per_window: int = Field(ge=1)
    estimated_step_ms: Number
    readback_ms: Number = Field(description="median empty round trip; recorded, not subtracted")
    roofline: Roofline | None = None
    profile: Profile | None = Field(default=None, description="where it was asked for")
    profile_reason: str | None = Field(
        default=None, description="why there is none although it was asked for"
    )
    pinned: Pinned | None = None
    calibration: Calibration | None = Field(
        default=None, description="earlier A/A runs of this arm here, where there were any"
    )
    variants: tuple[VariantTrial, ...] = Field(
        default=(), description="of the webgpu arm's products: all that were tried"
    )

    @property
    def total_steps(self) -> int:
        """Steps that one slot trains, warm-up included."""
        return self.warmup_steps + self.windows * self.steps_per_window


class GatePlan(Record):
    """A gate's limit, fixed before the first slot."""

    name: str
    gate_class: GateClass
    limit: float | None
    meaning: str
    may_be_unknown: bool = Field(
        default=False, description="unknown there does not make the verdict unqualified"
    )


class AutoBlocks(Record):
    """Two stages: a pilot, then as many blocks in all as its variance asks for."""

    pilot: int = Field(ge=4, multiple_of=2)
    most: int = Field(ge=4, multiple_of=2, description="what the budget allows")
    difference: float = Field(gt=0, description="to be found, on the ratio: 0.02 is 2%")
    power: float = Field(gt=0, lt=1)
    rule: str


class SuspectRule(Record):
    """Which blocks are marked, and left out of the sensitivity estimate."""

    sentinel_factor: float = Field(
        gt=1, description="a slot's median sentinel over the run's, either way"
    )
    others_cpu: float | None = Field(
        default=None, ge=0, le=1, description="a slot's `others_cpu`; null before that was measured"
    )
    most: float | None = Field(
        default=None, ge=0, le=1, description="share of the blocks that a quiet machine may mark"
    )
    rule: str


class AdapterRule(Record):
    """What an adapter's speed says of it, beside that of all of this machine's cores."""

    hardware_flops: float = Field(gt=1, description="above this many times theirs: hardware")
    hardware_bandwidth: float = Field(gt=1, description="or above this many times theirs")
    software_flops: float = Field(
        gt=0, description="up to this many times theirs, and no such bandwidth: as software is"
    )
    rule: str


class Evaluator(Record):
    """The code that turns raw samples into numbers and verdicts."""

    version: str
    sha256: str = Field(description="over the statistics, parity and reference sources")


class Plan(Record):
    """Everything decided before the first slot; frozen, then hashed."""

    question: str
    tracking_url: str | None = None
    frozen_utc: str
    preset: dict[str, Any]
    config: ModelConfig
    seed: int = Field(ge=0, lt=2**53)
    corpus: CorpusFacts
    state_sha256: str
    tokens_sha256: str
    arms: tuple[ArmPlan, ArmPlan]
    order: tuple[tuple[Side, Side, Side, Side], ...]
    auto: AutoBlocks | None = Field(
        default=None, description="where blocks are auto: the first of `order` run, even in number"
    )
    suspects: SuspectRule | None = None
    adapter_rule: AdapterRule | None = Field(
        default=None, description="null in receipts whose adapter's speed did not count"
    )
    gates: tuple[GatePlan, ...]
    reference_steps: int = Field(ge=0)
    budget_s: float
    estimated_s: float
    reductions: tuple[str, ...] = Field(description="what the budget took away, in words")
    budget_rule: str
    stop_rule: str
    allowed_decisions: tuple[str, ...]
    margin: float = Field(description="equivalence margin on the ratio, e.g. 0.02")
    require_hardware: bool
    evaluator: Evaluator
    sha256: str = Field(default="", description="over the RFC 8785 form of the other fields")


class Artifact(Record):
    """A file that the page used."""

    name: str
    sha256: str
    size_bytes: int
    flags: tuple[str, ...] = ()
    compiler: str | None = None


class Subject(Record):
    """What was measured: source, artefacts, compiler."""

    driver_version: str
    revision: str | None = Field(description="git commit, null where there is no repository")
    dirty: bool | None
    artifacts: tuple[Artifact, ...]


class OthersCpu(Record):
    """Share of the machine's CPU time that others used right before the run: 1 is all cores."""

    shares: tuple[Number, ...] = Field(description="one after another, nothing of ours running")
    reason: str | None = Field(default=None, description="why there are none")

    @property
    def share(self) -> float | None:
        """Their median."""
        return median(self.shares) if self.shares else None


class Environment(Record):
    """Where it was measured."""

    machine: dict[str, Any]
    load_before: dict[str, Any]
    load_after: dict[str, Any] | None
    others_cpu: OthersCpu | None = Field(
        default=None, description="null in receipts from before it was measured"
    )
    browser: dict[str, Any]
    page: dict[str, Any]
    adapter: dict[str, Any] | None
    cpu_roofline: Roofline | None = Field(
        default=None,
        description="of all cores, to set the adapter's beside; null where no arm uses one",
    )
    adapter_verdict: Literal["hardware", "software", "unknown", "not-applicable"]
    adapter_reasons: tuple[str, ...]
    features: dict[str, Any]
    threads: ThreadChoice | None = Field(
        default=None, description="null where every arm's number of threads was given"
    )


class ParamsDeviation(Record):
    """Largest deviation of a float32 replica's parameters from the reference's."""

    step: int = Field(ge=1, description="steps of the curve before it")
    rel_l2: Number = Field(description="of the tensor that is furthest off")
    tensor: str


class ReferenceFacts(Record):
    """The NumPy float64 reference: its curve and its first gradients."""

    dtype: str
    losses: list[Number]
    grad_norms: list[Number]
    first_step_grad_norms: dict[str, Number]
    band: list[Number] | None = Field(
        description="largest relative deviation of a float32 replica's loss, step by step"
    )
    band_reason: str | None = Field(description="why there is none")
    band_grad_norms: list[Number] | None = Field(default=None, description="of gradient norms")
    band_params: tuple[ParamsDeviation, ...] = Field(
        default=(), description="at the ends of the arms' curves, where the replicas went so far"
    )
    band_replicas: int | None = Field(default=None, ge=1)
    first_loss: Number | None = Field(
        default=None, description="of a forward pass alone, where there is no curve"
    )
    reason: str | None = Field(default=None, description="why there is no curve")


class TensorError(Record):
    """How far one tensor is from the reference's."""

    rel_l2: Number
    cosine: Number | None
    worst_scaled: Number = Field(description="largest |error| over the reference's RMS")
    left_out: int = Field(
        default=0, ge=0, description="elements whose first update a gradient's rounding decides"
    )


class TeacherPoint(Record):
    """One step of an arm from the reference's own state, compared with the reference's step."""

    t: int = Field(ge=0, description="AdamW steps taken before this one")
    state: Literal["curve", "wide"] = Field(
        default="curve",
        description="the reference's after t steps, or its first with weights widened",
    )
    loss: Number
    reference_loss: Number
    grad_norm: Number
    reference_grad_norm: Number
    grads: dict[str, TensorError]
    params: dict[str, TensorError]
    key_bias_ratio: Number = Field(
        description="largest norm of a key third of attn.bqkv's gradient over the rest's"
    )


class ArmParity(Record):
    """What the prepare phase and the last slot found of one side."""

    side: Side
    applicable: bool
    reason: str | None = None
    points: tuple[TeacherPoint, ...] = ()
    points_reason: str | None = Field(default=None, description="why only the first loss is known")
    first_loss: Number | None = None
    reference_first_loss: Number | None = None
    export_equal: bool | None = None
    export_reason: str | None = None
    final_slot: int | None = None
    final_step: int | None = None
    final_params: dict[str, TensorError] = {}
    final_reason: str | None = None


class SlotEvent(Record):
    """Something that a page or browser reported."""

    kind: str
    message: str


class Slot(Record):
    """Raw data of one slot: one arm, a fresh page and worker, the initial state."""

    index: int = Field(ge=0)
    block: int = Field(ge=0)
    position: int = Field(ge=0, le=3)
    side: Side
    arm: str
    status: Literal["ok", "failed"]
    failure: PageFailure | None = None
    started_utc: str
    compile_ms: Number | None = None
    upload_ms: Number | None = None
    first_step_ms: Number | None = None
    steps_per_window: int = Field(ge=1)
    windows_ms: list[Number] = []
    arrivals_ms: list[Number] = Field(
        default=[],
        description="by the driver's own clock, since the page was asked for: when it told of the "
        "instruction before the first window, then of each window",
    )
    tell_ms: list[Number] = Field(
        default=[], description="by the same clock, instructions that do nothing but tell of it"
    )
    losses: list[Number] = []
    grad_norms: list[Number] = []
    sentinel_ms: list[Number] = []
    gpu_sentinel_ms: list[Number] = Field(
        default=[], description="empty where no arm of the run uses an adapter"
    )
    others_cpu: Number | None = Field(
        default=None,
        description="share of the machine's CPU time that others than the driver and its browser "
        "used from the arm's opening to its last window; null where that cannot be seen",
    )
    param_sha256: str | None = Field(default=None, description="of the parameters at its end")
    param_reason: str | None = Field(
        default=None, description="why it is the SHA-256 of those of the section's pieces"
    )
    memory: dict[str, Any] = {}
    ran: dict[str, Any] = {}
    adapter: dict[str, Any] | None = None
    page: dict[str, Any] | None = None
    events: list[SlotEvent] = []
    wall_ms: Number | None = None


class ArmSummary(Record):
    """One side's steady-state figures over all of its windows."""

    side: Side
    arm: str
    slots: int
    windows: int
    median_step_ms: Number | None
    quartile1_step_ms: Number | None
    quartile3_step_ms: Number | None
    gflops: Number | None = Field(description="model FLOPs of a step over the median, in 1e9/s")
    first_loss: Number | None
    last_loss: Number | None


class BlockValue(Record):
    """mean log t over the block's A slots minus that over its B slots; t a slot's median window."""

    block: int
    order: str
    log_ratio: Number | None
    reason: str | None = None
    suspect: tuple[str, ...] = Field(default=(), description="why the plan's rule marks it")


class Estimate(Record):
    """Time of A over time of B."""

    ratio: Number | None
    low: Number | None
    high: Number | None
    confidence: float
    blocks: int
    degrees_of_freedom: int | None
    word: Word
    reason: str | None
    median_ratio: Number | None = Field(description="median step A / median step B, all windows")
    detectable_80: Number | None = Field(
        default=None, description="smallest change of the ratio found in 80% of such runs; 0.02: 2%"
    )
    detectable_95: Number | None = None


class AutoOutcome(Record):
    """What the pilot's variance asked for."""

    pilot_sd: Number | None = Field(description="within-order deviation of the log ratios")
    blocks: int = Field(ge=0, description="in all")
    reason: str


class CurveError(Record):
    """Largest relative deviation of a curve over all steps, and where."""

    steps: int
    loss: Number | None
    loss_step: int | None
    grad_norm: Number | None
    grad_norm_step: int | None


class Comparison(Record):
    """Everything derived from the raw slots."""

    arms: tuple[ArmSummary, ArmSummary]
    blocks: tuple[BlockValue, ...]
    estimate: Estimate
    sensitivity: Estimate | None = Field(
        default=None, description="without the suspect blocks; null where there are none"
    )
    auto: AutoOutcome | None = None
    curve_errors: dict[Side, CurveError]
    band_errors: dict[Side, CurveError] | None = Field(
        default=None, description="as curve_errors, over the steps of the float32 band alone"
    )
    drift: CurveError = Field(description="A against B, paired within a block, |A−B|/max")
    slots_repeat: dict[Side, bool | None]


class Gate(Record):
    """A gate's outcome."""

    name: str
    gate_class: GateClass
    limit: float | None
    measured: Number | None
    status: GateStatus
    reason: str


class Verdict(Record):
    """What may be said."""

    status: VerdictStatus
    reasons: tuple[str, ...]
    headline: str


class NonFinite(Record):
    """A number that JSON cannot hold, written as null at `path` (JSON pointer)."""

    path: str
    kind: Literal["NaN", "Infinity", "-Infinity"]


class Receipt(Record):
    """driver-receipt/1. History of the format: 1 (2026-11) first version."""

    format: Literal["driver-receipt/1"] = "driver-receipt/1"
    plan: Plan
    subject: Subject
    environment: Environment
    reference: ReferenceFacts
    parity: tuple[ArmParity, ArmParity]
    slots: tuple[Slot, ...]
    comparison: Comparison
    gates: tuple[Gate, ...]
    verdict: Verdict
    nonfinite: tuple[NonFinite, ...] = ()
    digest: str = ""

"""The model, the job given to a page, and the result that the page posts."""

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(value: object) -> object:
    """JSON has no NaN: the page writes the three names that JavaScript gives them."""
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


Number = Annotated[float, BeforeValidator(_number)]


class Record(BaseModel):
    """An immutable record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


# --------------------------------------------------------------------------- the model


class ModelConfig(Record):
    """Shape and recipe of one GPT; the same keys as a case file's `config`.

    L = n_layer, H = n_head, C = d_model, F = d_ff, T = ctx, B = batch, V = vocab, N = B*T.
    """

    n_layer: int = Field(ge=1, le=1024)
    n_head: int = Field(ge=1, le=1024)
    d_model: int = Field(ge=1, le=65536)
    d_ff: int = Field(ge=1, le=262144)
    ctx: int = Field(ge=1, le=65536)
    batch: int = Field(ge=1, le=65536)
    vocab: int = Field(ge=2, le=1_000_000)
    lr: float = Field(gt=0, lt=10)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    eps: float = Field(ge=1e-30, lt=1, description="a normal number in float32")
    weight_decay: float = Field(ge=0, lt=10)
    grad_clip: float = Field(ge=0, lt=1e6, description="0 turns clipping off")

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelConfig":
        if self.d_model % self.n_head:
            raise ValueError(
                f"d_model {self.d_model} is not divisible by n_head {self.n_head}; "
                "heads are contiguous slices of equal size"
            )
        return self

    @property
    def head_dim(self) -> int:
        """D = C / H."""
        return self.d_model // self.n_head

    @property
    def positions(self) -> int:
        """N = B * T."""
        return self.batch * self.ctx


class TensorSlot(Record):
    """Where one tensor lies in the flat arrays of parameters, gradients and moments."""

    name: str
    shape: tuple[int, ...]
    offset: int = Field(ge=0, description="in float32 elements; a multiple of 64")
    size: int = Field(ge=1, description="in float32 elements, without padding")
    decay: bool = Field(description="weight decay applies (two-dimensional tensors only)")


# --------------------------------------------------------------------------- driver → page

Section = Literal["param", "grad", "m", "v"]


class ArmJob(Record):
    """What one arm is to run, everything resolved: no `auto` reaches the page."""

    name: str = Field(description="the arm's name in the grammar: wasm, wasm64, webgpu, null")
    module: str = Field(description="the page module that implements it, e.g. arm_wasm.js")
    options: dict[str, str | int | float | bool]


class StateRef(Record):
    """A training state that the page can fetch: flat float32 sections, one after another."""

    url: str
    sections: tuple[Section, ...]
    t: int = Field(ge=0, description="AdamW steps already taken")
    at: int = Field(ge=0, description="index of the batch that the next step trains on")


class TokensRef(Record):
    """All batches of a job: int32 (steps, B, T+1), little-endian."""

    url: str
    steps: int = Field(ge=1)


Product = Literal["mm_fwd", "mm_da", "mm_db"]


class Kernel(Record):
    """One product C (M,N) = A·B, K deep, by one kernel.

    `product` says how the operands lie: mm_fwd has A as (M,K) and B as (K,N), mm_da has B as (N,K),
    mm_db has A as (K,M).
    """

    product: Product
    kernel: Literal["naive", "tiled", "blocked", "subgroup"]
    tile: str = Field(description="of the blocked kernel, rows x columns: 4x8")
    workgroup: str | None = Field(
        default=None, description="invocations of a workgroup, x by y, where the kernel lets choose"
    )
    M: int = Field(ge=1, le=1 << 20)
    N: int = Field(ge=1, le=1 << 20)
    K: int = Field(ge=1, le=1 << 20)
    split: int = Field(
        default=1,
        ge=1,
        le=16,
        description="parts into which a GPU cuts the depth of mm_db, blocked",
    )

    @property
    def manner(self) -> str:
        """Tile, workgroup and parts as people are told: 4x8 in 8x8 in 4 parts."""
        words = [self.tile, self.workgroup, f"{self.split} parts" if self.split > 1 else None]
        return " in ".join(word for word in words if word)


class Operand(Record):
    """An array that an operation reads (`in`), writes (`out`), or writes over (`inout`)."""

    name: str
    role: Literal["in", "out", "inout"]
    size_bytes: int = Field(ge=4, multiple_of=4)


class Operation(Record):
    """One of a step's operations beside the products, at one shape, on inputs of its own."""

    name: str
    sizes: tuple[int, ...] = Field(description="in the order of the operation's entry")
    operands: tuple[Operand, ...] = Field(description="in the order of the operation's entry")
    inputs: str = Field(description="asset with the bytes of all that is read, in that order")
    bound_by: Literal["memory", "arithmetic"]
    most_calls: int | None = Field(
        default=None, ge=1, description="so often it may run on what it wrote; null: without end"
    )


class Op(Record):
    """One instruction of a job's program; web/README.md describes each."""

    op: Literal[
        "open",
        "load",
        "train",
        "read",
        "digest",
        "reimport",
        "readback",
        "probe",
        "empty",
        "sentinel",
        "gpu_sentinel",
        "roofline",
        "kernel",
        "operation",
        "fork",
        "profile",
        "threads",
        "geometry",
        "count",
    ]
    state: str | None = None
    steps: int | None = None
    label: str | None = None
    what: Section | None = None
    count: int | None = None
    kernel: Kernel | None = None
    alone: bool = Field(
        default=False, description="a kernel's samples without those of the roofline in between"
    )
    operation: Operation | None = None


class Job(Record):
    """Everything a page needs for one piece of work; fetched as `job.json`."""

    format: Literal["driver-job/1"] = "driver-job/1"
    job: str
    arm: ArmJob | None = None
    config: ModelConfig | None = None
    tensors: tuple[TensorSlot, ...] = ()
    flat_size: int = 0
    assets: dict[str, str] = Field(default_factory=dict, description="logical name → URL")
    tokens: TokensRef | None = None
    states: dict[str, StateRef] = Field(default_factory=dict)
    program: tuple[Op, ...]
    plan_sha256: str | None = Field(default=None, description="echoed in the result's `ran`")


# --------------------------------------------------------------------------- page → driver


class OpResult(Record):
    """What one instruction gave."""

    op: str
    label: str | None = None
    ms: Number | None = None
    first_step: int | None = None
    steps: int | None = None
    losses: list[Number] = []
    grad_norms: list[Number] = []
    values_ms: list[Number] = []
    compile_ms: Number | None = None
    upload_ms: Number | None = None
    detail: dict[str, Any] = {}


class PageEvent(Record):
    """Something that happened beside a job's result: a console line, a failed request, a crash."""

    kind: Literal[
        "console-error",
        "console-warning",
        "page-error",
        "request-failed",
        "http-error",
        "bad-request",
        "crash",
        "disconnected",
        "hidden",
        "frozen",
    ]
    message: str


class Progress(Record):
    """What a page says between two instructions."""

    op: int = Field(ge=0, description="index of the instruction in the program")
    steps_done: int = Field(ge=0)
    loss: Number | None = None
    result: OpResult = Field(description="what it gave; kept should the page die later")


class PageFailure(Record):
    """Why a job's program stopped early."""

    kind: Literal[
        "unsupported",
        "compile",
        "validation",
        "out-of-memory",
        "device-lost",
        "internal",
        "crash",
        "hang",
        "protocol",
        "failed",
    ]
    message: str
    op: str | None = None


class PageFacts(Record):
    """What the page says of itself, as seen from the worker where it differs."""

    user_agent: str
    cross_origin_isolated: bool
    hardware_concurrency: int
    timer_step_ms: Number | None
    visibility: str
    hidden_events: int = 0
    frozen_events: int = 0
    stalled_ms: Number = 0.0


class JobResult(Record):
    """What a page posts when its program has ended, well or not."""

    format: Literal["driver-job-result/1"]
    job: str
    status: Literal["ok", "failed"]
    error: PageFailure | None = None
    ops: list[OpResult]
    ran: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    adapter: dict[str, Any] | None = None
    page: PageFacts

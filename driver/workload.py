"""What every arm trains, and what the reference makes of it: a curve, or less."""

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from driver import presets
from driver.corpus import Corpus, batches
from driver.jobs import read_refusal, state_echo
from driver.parity import GRADS_LIMIT, PARAMS_LIMIT, Mask, undetermined
from driver.presets import Preset
from driver.records import ModelConfig, ReferenceFacts, Section
from driver.reference import Reference, StepResult, Tensors, clip_scale, loss_only
from driver.replicas import REPLICAS, band
from driver.tensors import F32, State, flatten, initial_flat, unflatten

# Steps after which an arm takes one step from the reference's state.
TEACHER_STEPS = (0, 1, 4)
# And one step from the initial state with what follows a layer norm widened, so that its outputs
# deviate by this much: at initial weights GELU's inputs lie so near 0, and scores so near each
# other, that another formula there moves a gradient by less than float32 may. With these the
# float32 replicas deviate by at most 1e-6 at all presets' shapes, a tanh GELU by at least 3e-4.
SPREAD = {"mlp.w1": 2.0, "attn.wqkv": 1.0}


@dataclass(frozen=True)
class Workload:
    """What every arm trains: model, initial state, batches; all randomness is drawn here."""

    preset: Preset
    config: ModelConfig
    seed: int
    corpus: Corpus
    state: State  # views of `flat`
    flat: F32
    state_sha256: str
    state_echo: dict[str, str]

    @classmethod
    def draw(cls, preset: Preset, corpus: Corpus, seed: int) -> "Workload":
        """Draws the initial state from the seed."""
        config = preset.model
        flat = initial_flat(config, seed, preset.init)
        flat.flags.writeable = False  # the server offers these very bytes
        digest = hashlib.sha256(flat.astype("<f4", copy=False).data).hexdigest()
        state = unflatten(config, flat)
        return cls(preset, config, seed, corpus, state, flat, digest, state_echo(flat))

    def batches(self, steps: int) -> NDArray[np.int32]:
        """The first `steps` batches, int32 (steps, B, T+1)."""
        return batches(self.corpus, self.config, steps, self.seed, self.preset.offsets)


@dataclass(frozen=True)
class Lesson:
    """A state, in float32, from which an arm takes one step, and the reference's step from it."""

    label: str
    kind: Literal["curve", "wide"]
    t: int
    sections: dict[Section, F32]  # flat; without moments these are 0
    pupil: Reference
    step: StepResult

    def undetermined(
        self, grads_limit: float = GRADS_LIMIT, params_limit: float = PARAMS_LIMIT
    ) -> dict[str, Mask]:
        """As `driver.parity.undetermined` for this step; nothing where moments are warm."""
        if self.t:
            return {}
        config = self.pupil.config
        scale = clip_scale(self.step.grad_norm, config.grad_clip)
        return undetermined(self.step.grads, scale, config.eps, grads_limit, params_limit)


@dataclass
class Teacher:
    """The reference's own states at the teacher points, and its step from each, in float64.

    Each state is rounded to float32 before the reference takes its step, so that an arm starts from
    exactly the same numbers.
    """

    workload: Workload
    lessons: tuple[Lesson, ...] = ()
    step_s: float = 0.0

    def compute(
        self, at: tuple[int, ...] = TEACHER_STEPS, go_on: Callable[[], None] = lambda: None
    ) -> None:
        """Runs the reference up to the last point; `step_s` is the time of one of its steps.

        `go_on` is called after every step and may raise, which leaves nothing of use.
        """
        w = self.workload
        tokens = w.batches(max(at) + 1)
        walker, spent, lessons = Reference(w.config, w.state), [], []
        for index in range(max(at) + 1):
            if index in at:
                kept: dict[Section, Tensors] = {
                    "param": walker.params,
                    "m": walker.m,
                    "v": walker.v,
                }
                lessons.append(self._lesson(f"t{index}", "curve", index, kept, tokens[index]))
            began = time.perf_counter()
            walker.step(tokens[index])
            spent.append(time.perf_counter() - began)
            go_on()
        lessons.append(self._lesson("wide", "wide", 0, {"param": widened(w.state)}, tokens[0]))
        go_on()
        self.lessons = tuple(lessons)
        self.step_s = median(spent)

    def _lesson(
        self,
        label: str,
        kind: Literal["curve", "wide"],
        t: int,
        state: dict[Section, Tensors],
        tokens: NDArray[np.int32],
    ) -> Lesson:
        config = self.workload.config
        sections: dict[Section, F32] = {what: flatten(config, x) for what, x in state.items()}
        given = {what: unflatten(config, flat) for what, flat in sections.items()}
        pupil = Reference(config, given["param"])
        pupil.t = t
        if "m" in given:
            pupil.m, pupil.v = (
                {name: a.astype(np.float64) for name, a in given[what].items()}
                for what in ("m", "v")
            )
        return Lesson(label, kind, t, sections, pupil, pupil.step(tokens))


def reference_step_s(workload: Workload, go_on: Callable[[], None] = lambda: None) -> float:
    """Time of one float64 reference step, in seconds, where no teacher has told it.

    The faster of two: the first one also opens threads and touches memory.
    """
    reference, spent = Reference(workload.config, workload.state), []
    for tokens in workload.batches(2):
        began = time.perf_counter()
        reference.step(tokens)
        spent.append(time.perf_counter() - began)
        go_on()
    return min(spent)


def widened(state: State) -> State:
    """The state with the matrices of `SPREAD` scaled, outputs of rows of unit variance in mind."""
    found = dict(state)
    for name, weights in state.items():
        for ending, spread in SPREAD.items():
            if name.endswith(ending):
                rms = math.sqrt(float(np.mean(weights.astype(np.float64) ** 2)))
                found[name] = weights * np.float32(spread / (rms * math.sqrt(weights.shape[0])))
    return found


def reference_curve(
    workload: Workload, steps: int, checkpoints: frozenset[int], on_step: Callable[[int], None]
) -> tuple[ReferenceFacts, dict[int, Tensors]]:
    """The float64 reference over `steps` steps, and its parameters after each of `checkpoints`.

    `on_step` gets the number of steps done and may raise to end the work.
    """
    reference = Reference(workload.config, workload.state)
    tokens = workload.batches(max(steps, 1))
    losses, norms = [], []
    first: dict[str, float] = {}
    kept: dict[int, Tensors] = {}
    for index in range(steps):
        result = reference.step(tokens[index])
        losses.append(result.loss)
        norms.append(result.grad_norm)
        if index == 0:
            first = {name: float(np.linalg.norm(g)) for name, g in result.grads.items()}
        if index + 1 in checkpoints:
            kept[index + 1] = dict(reference.params)
        on_step(index + 1)
    facts = ReferenceFacts(
        dtype="float64",
        losses=losses,
        grad_norms=norms,
        first_step_grad_norms=first,
        band=None,
        band_reason="not computed: no arm trains, or the budget leaves no time for its replicas",
    )
    return facts, kept


def with_band(
    workload: Workload,
    reference: ReferenceFacts,
    checkpoints: Mapping[int, Tensors],
    leave_out: Mapping[str, Mask],
    steps: int,
    on_step: Callable[[int], None],
) -> ReferenceFacts:
    """The reference with the float32 band of its first `steps` steps, and of its parameters at the
    checkpoints among them, without the elements of `leave_out`."""
    found = band(
        workload.config, workload.state, workload.batches(steps), reference.losses,
        reference.grad_norms, checkpoints, leave_out, on_step,
    )  # fmt: skip
    return reference.model_copy(
        update={
            "band": found.losses,
            "band_grad_norms": found.grad_norms,
            "band_params": tuple(worst for _, worst in sorted(found.params.items())),
            "band_replicas": REPLICAS,
            "band_reason": None,
        }
    )


def forward_facts(
    workload: Workload, reason: str, go_on: Callable[[], None] = lambda: None
) -> ReferenceFacts:
    """The reference where it is a forward pass of the first batch, in float32, and nothing else.

    `go_on` is called after every layer and may raise to end the work.
    """
    tokens = workload.batches(1)[0]
    return ReferenceFacts(
        dtype="float32",
        losses=[],
        grad_norms=[],
        first_step_grad_norms={},
        band=None,
        band_reason=reason,
        first_loss=loss_only(workload.config, workload.state, tokens, go_on),
        reason=reason,
    )


def forward_reason(config: ModelConfig, available_bytes: int) -> str | None:
    """Why the reference does no more than a forward pass; None where it trains."""
    reason = read_refusal(config)
    need, free = presets.reference_bytes(config), available_bytes - presets.run_bytes(config)
    if need > free:
        reason = (
            f"the float64 reference needs about {need / 2**30:.1f} GiB, "
            f"{max(free, 0) / 2**30:.1f} GiB are left beside the arm"
        )
    return f"only a forward pass of the reference: {reason}" if reason else None

"""Error measures against the reference.

The exact gradient of the key bias is 0 (a constant added to every key leaves the softmax alone), so
float32 noise decides its AdamW step: comparisons leave that third of `attn.bqkv` out and bound its
gradient instead. Where any other gradient of the first step happens to lie near 0, noise decides as
well (`undetermined`): those elements' parameters are left out.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from driver.records import CurveError, ReferenceFacts, Side, Slot, TensorError

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Curve = Sequence[float]

# What a gradient of one step and a parameter after it may be off, in relative L2.
GRADS_LIMIT = 2e-5
PARAMS_LIMIT = 5e-5


def tensor_error(
    reference: Array, got: Array, name: str, leave_out: Mask | None = None
) -> TensorError:
    """Relative L2, cosine, and worst element over the reference's RMS; computed in float64.

    Elements of `leave_out` do not count, unless they are no finite numbers.
    """
    want, have = without_key_bias(reference, name), without_key_bias(got, name)
    want, have = want.astype(np.float64).reshape(-1), have.astype(np.float64).reshape(-1)
    left_out = 0
    if leave_out is not None and leave_out.any():
        out = without_key_bias(leave_out, name).reshape(-1) & np.isfinite(have)
        left_out = int(out.sum())
        want, have = want[~out], have[~out]
    difference = have - want
    norm, other = float(np.linalg.norm(want)), float(np.linalg.norm(have))
    rms = norm / math.sqrt(max(want.size, 1))
    cosine = float(want @ have) / (norm * other) if norm > 0 and other > 0 else None
    return TensorError(
        rel_l2=float(np.linalg.norm(difference)) / max(norm, 1e-12),
        cosine=cosine,
        worst_scaled=float(np.max(np.abs(difference), initial=0.0)) / max(rms, 1e-12),
        left_out=left_out,
    )


def undetermined(
    grads: Mapping[str, Array],
    scale: float,
    eps: float,
    grads_limit: float = GRADS_LIMIT,
    params_limit: float = PARAMS_LIMIT,
) -> dict[str, Mask]:
    """By tensor: the elements whose first AdamW step is decided by the gradient's rounding.

    That step moves an element by lr · g / (|g| + eps), g the gradient times `scale` (Kingma & Ba
    2015, algorithm 1, at t = 1). It is undetermined where a gradient that is off by as much as
    `grads_limit` allows, of the tensor's RMS, changes that fraction by more than `params_limit`: g
    lies near 0 by chance, or all of the tensor's gradients are not far above eps. Never more than a
    tenth of normally distributed gradients, 3 to 5% of the presets'. In later steps the moments
    hold other gradients too.
    """
    found = {}
    for name, grad in grads.items():
        g = scale * grad.astype(np.float64)
        off = grads_limit * math.sqrt(float(np.mean(np.square(g))))
        least, most = (x / (np.abs(x) + eps) for x in (g - off, g + off))
        found[name] = most - least > 2 * params_limit
    return found


def without_key_bias(array: Array, name: str) -> Array:
    """The query and value thirds of `attn.bqkv`; any other tensor as it is."""
    if not name.endswith("attn.bqkv"):
        return array
    q, _, v = np.split(array, 3)
    return np.concatenate([q, v])


def key_bias_ratio(grads: Mapping[str, Array]) -> float:
    """Largest norm of a key third of `attn.bqkv`'s gradient over the norm of the other two."""
    worst = 0.0
    for name, grad in grads.items():
        if name.endswith("attn.bqkv"):
            q, k, v = np.split(grad.astype(np.float64), 3)
            rest = float(np.linalg.norm(np.concatenate([q, v])))
            worst = nan_max(worst, float(np.linalg.norm(k)) / max(rest, 1e-12))
    return worst


def curve_error(reference: ReferenceFacts, slots: Iterable[Slot], side: Side) -> CurveError:
    """Largest relative error of `side`'s losses and norms over the reference's prefix."""
    steps, loss, norm = 0, _Worst(_second), _Worst(_second)
    for slot in slots:
        if slot.side != side:
            continue
        steps = max(steps, min(len(slot.losses), len(reference.losses)))
        loss.add(slot.losses, reference.losses)
        norm.add(slot.grad_norms, reference.grad_norms)
    return CurveError(
        steps=steps, loss=loss.value, loss_step=loss.step, grad_norm=norm.value,
        grad_norm_step=norm.step,
    )  # fmt: skip


def within_band(reference: ReferenceFacts) -> ReferenceFacts:
    """The reference as far as its float32 band goes."""
    steps = len(reference.band or ())
    return reference.model_copy(
        update={"losses": reference.losses[:steps], "grad_norms": reference.grad_norms[:steps]}
    )


def slots_by_block(slots: Sequence[Slot]) -> dict[int, list[Slot]]:
    """Each block's slots, in order."""
    found: dict[int, list[Slot]] = {}
    for slot in slots:
        found.setdefault(slot.block, []).append(slot)
    return found


def paired_drift(slots: Sequence[Slot]) -> CurveError:
    """|A−B| / max(|A|, |B|) at every step, between all A and B slots of the same block."""
    steps, loss, norm = 0, _Worst(_larger), _Worst(_larger)
    by_block = slots_by_block(slots)
    for a in slots:
        for b in by_block[a.block] if a.side == "A" else ():
            if b.side != "B":
                continue
            steps = max(steps, min(len(a.losses), len(b.losses)))
            loss.add(a.losses, b.losses)
            norm.add(a.grad_norms, b.grad_norms)
    return CurveError(
        steps=steps, loss=loss.value, loss_step=loss.step, grad_norm=norm.value,
        grad_norm_step=norm.step,
    )  # fmt: skip


def loss_errors(reference: ReferenceFacts, slots: Iterable[Slot], side: Side) -> list[float]:
    """As `curve_error`, of the losses alone and step by step: the largest over `side`'s slots."""
    curves = (slot.losses for slot in slots if slot.side == side)
    return _largest(_relative(curve, reference.losses, reference.losses) for curve in curves)


def loss_drift(slots: Sequence[Slot]) -> list[float]:
    """As `paired_drift`, of the losses alone and step by step: the largest over all pairs."""
    by_block = slots_by_block(slots)
    pairs = (
        (a.losses, b.losses)
        for a in slots
        if a.side == "A"
        for b in by_block[a.block]
        if b.side == "B"
    )
    return _largest(_relative(a, b, _larger(a, b)) for a, b in pairs)


def slots_repeat(slots: Sequence[Slot], side: Side) -> bool | None:
    """Whether all slots of `side` gave the same bits; None when fewer than two finished."""
    mine = [slot for slot in slots if slot.side == side and slot.status == "ok"]
    if len(mine) < 2:
        return None
    first = (mine[0].losses, mine[0].grad_norms, mine[0].param_sha256)
    return all(_same(first, (s.losses, s.grad_norms, s.param_sha256)) for s in mine[1:])


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return repr(a) == repr(b)  # NaN equals NaN here, as its bits do


def _larger(a: Curve, b: Curve) -> Curve:
    return [max(abs(x), abs(y)) for x, y in zip(a, b, strict=False)]


def _second(_: Curve, b: Curve) -> Curve:
    return b


def _relative(xs: Sequence[float], ys: Sequence[float], scales: Sequence[float]) -> Iterator[float]:
    """|x − y| / |scale| step by step, as far as all three go."""
    for x, y, scale in zip(xs, ys, scales, strict=False):
        yield abs(x - y) / max(abs(scale), 1e-300)


def _largest(curves: Iterable[Iterable[float]]) -> list[float]:
    """Step by step the largest of several curves' values, as far as the longest goes."""
    found: list[float] = []
    for curve in curves:
        for step, value in enumerate(curve):
            if step == len(found):
                found.append(value)
            else:
                found[step] = nan_max(found[step], value)
    return found


def nan_max(a: float, b: float) -> float:
    """Maximum that a NaN wins, so that it can never hide behind a comparison."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


class _Worst:
    """Running maximum of |x − y| / |scale| with the step where it lies; NaN wins."""

    def __init__(self, scale: Callable[[Curve, Curve], Curve]) -> None:
        self.value: float | None = None
        self.step: int | None = None
        self._scale = scale
        self._added: set[tuple[Curve, Curve]] = set()

    def add(self, xs: Curve, ys: Curve) -> None:
        pair = tuple(xs), tuple(ys)
        if pair in self._added:  # most slots of an arm give the same bits
            return
        self._added.add(pair)
        for step, error in enumerate(_relative(xs, ys, self._scale(xs, ys))):
            worse = self.value is None or math.isnan(error) or error > self.value
            if worse and not (self.value is not None and math.isnan(self.value)):
                self.value, self.step = error, step

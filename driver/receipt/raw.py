"""Raw data that cannot be what a run wrote: numbers that no measurement gives, names that the model
does not have, and the same thing told twice and differently.

Whoever writes raw data that agree with each other is not found out here, nor by any digest.
"""

import itertools
import math
from collections.abc import Iterator, Mapping

from driver.records import ArmParity, ArmPlan, Receipt, TensorError
from driver.tensors import table


def raw_faults(receipt: Receipt) -> Iterator[str]:
    """What is wrong with the raw data of reference, parity and slots; each begins with its path."""
    sizes = {tensor.name: tensor.size for tensor in table(receipt.plan.config)}
    yield from _reference_faults(receipt, sizes)
    for index, (arm, parity) in enumerate(zip(receipt.plan.arms, receipt.parity, strict=True)):
        yield from _parity_faults(receipt, arm, parity, sizes, f"parity/{index}")
    for index, slot in enumerate(receipt.slots):
        arrivals = slot.arrivals_ms or []
        if any(late < early for early, late in itertools.pairwise(arrivals)):
            yield f"slots/{index}/arrivals_ms do not ascend"


def _reference_faults(receipt: Receipt, sizes: Mapping[str, int]) -> Iterator[str]:
    reference = receipt.reference
    if reference.losses and reference.grad_norms:
        norms = reference.first_step_grad_norms
        yield from _names("reference/first_step_grad_norms", norms, sizes)
        total = math.sqrt(sum(norm * norm for norm in norms.values()))
        if not _close(total, reference.grad_norms[0]):
            yield (
                f"reference/first_step_grad_norms make {total:.6g} together, "
                f"reference/grad_norms/0 is {reference.grad_norms[0]:.6g}"
            )
    band = reference.band
    if (band is not None or reference.band_params) and reference.band_replicas is None:
        yield "reference/band_replicas is missing beside a band"
    for name, deviations in (("band", band), ("band_grad_norms", reference.band_grad_norms)):
        if deviations is not None and len(deviations) > len(reference.losses):
            yield f"reference/{name} has {len(deviations)} steps, the curve {len(reference.losses)}"
        if any(deviation < 0 for deviation in deviations or ()):
            yield f"reference/{name} has a negative deviation"
    ends = {min(arm.total_steps, receipt.plan.reference_steps) for arm in receipt.plan.arms}
    ends |= {len(band or ())}
    steps = [found.step for found in reference.band_params]
    if len(set(steps)) != len(steps) or not ends.issuperset(steps):
        yield f"reference/band_params are not of the ends of curves and band, {sorted(ends)}"
    for found in reference.band_params[:2]:
        if found.tensor not in sizes or found.rel_l2 < 0:
            yield f"reference/band_params: {found.rel_l2:.6g} of {found.tensor!r:.60} cannot be"


def _parity_faults(
    receipt: Receipt, arm: ArmPlan, parity: ArmParity, sizes: Mapping[str, int], path: str
) -> Iterator[str]:
    reference = receipt.reference
    for index, point in enumerate(parity.points):
        yield from _error_faults(f"{path}/points/{index}/grads", point.grads, sizes, whole=True)
        yield from _error_faults(f"{path}/points/{index}/params", point.params, sizes)
        same = point.t == 0 and point.state == "curve" and bool(reference.losses)
        if same and not _close(point.reference_loss, reference.losses[0]):
            yield (
                f"{path}/points/{index}/reference_loss is {point.reference_loss:.9g}, "
                f"reference/losses/0 is {reference.losses[0]:.9g}"
            )
    first = parity.reference_first_loss
    if first is not None and not _close(first, reference.first_loss):
        yield f"{path}/reference_first_loss is {first:.9g}, the reference's {reference.first_loss}"
    if not parity.final_params:
        return
    yield from _error_faults(f"{path}/final_params", parity.final_params, sizes)
    end = min(arm.total_steps, receipt.plan.reference_steps)
    if parity.final_step != end:
        yield f"{path}/final_step is {parity.final_step}, the curve ends after {end}"
    at = parity.final_slot
    if at is not None and not any(s.index == at and s.side == parity.side for s in receipt.slots):
        yield f"{path}/final_slot is {at}, which is no slot of {parity.side}"


def _error_faults(
    path: str, errors: Mapping[str, TensorError], sizes: Mapping[str, int], whole: bool = False
) -> Iterator[str]:
    """Every tensor once; `whole`: no element of it may be left out."""
    yield from _names(path, errors, sizes)
    for name, error in errors.items():
        most = 0 if whole else sizes.get(name, 0)
        if error.left_out > most:
            yield f"{path}/{name}/left_out is {error.left_out}, at most {most} can be"
        if error.rel_l2 < 0 or error.worst_scaled < 0:
            yield f"{path}/{name} has a negative error"


def _names(path: str, found: Mapping[str, object], sizes: Mapping[str, int]) -> Iterator[str]:
    odd = sorted(found.keys() ^ sizes.keys())
    if odd:
        what = "is missing" if odd[0] in sizes else "is no tensor of this model"
        yield f"{path}: {odd[0]!r:.60} {what}" + (f", and {len(odd) - 1} more" if odd[1:] else "")


def _close(a: float, b: float | None) -> bool:
    """Equal but for the order of a sum; what is not finite is other gates' business."""
    return b is not None and (
        not math.isfinite(a) or not math.isfinite(b) or math.isclose(a, b, rel_tol=1e-9)
    )

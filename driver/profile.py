"""Raw samples of a profile → where a step's time goes, operation by operation.

Windows without and with the profiler alternate, two of each in a round, in the order A B B A, which
cancels a linear drift of the machine within the round; so the profiler's cost is a ratio per round.
"""

import math
from collections.abc import Sequence
from statistics import median

from driver.records import ModelConfig, Profile, ProfileOp, ProfileSamples
from driver.tensors import operation_flops


def profile_of(samples: ProfileSamples, config: ModelConfig) -> Profile:
    """The profile that these samples give."""
    steps = samples.steps
    wall_profiled_ms = median(samples.profiled_ms) / steps
    flops = operation_flops(config)
    ops = []
    for op in samples.ops:
        ms, work = median(op.windows_ms) / steps, flops.get(op.op)
        share = _ratio(ms, wall_profiled_ms)
        gflops = None if work is None else _ratio(work / 1e6, ms)
        ops.append(
            ProfileOp(
                op=op.op, calls=op.calls, ms=ms, share=share, flops=work, gflops=gflops,
                below_clock_step=ms / op.calls < (samples.clock_step_ms or 0.0),
            )
        )  # fmt: skip
    costs = [
        _ratio(profiled, plain)
        for profiled, plain in zip(
            _rounds(samples.profiled_ms), _rounds(samples.plain_ms), strict=True
        )
    ]
    known = [cost for cost in costs if cost is not None]
    covered = [sum(window) for window in zip(*(op.windows_ms for op in samples.ops), strict=True)]
    uncovered = [wall - inside for wall, inside in zip(samples.profiled_ms, covered, strict=True)]
    return Profile(
        samples=samples,
        rounds=len(costs),
        wall_ms=median(samples.plain_ms) / steps,
        wall_profiled_ms=wall_profiled_ms,
        cost=median(known) if known else None,
        cost_range=(min(known), max(known)) if known else None,
        uncovered_ms=median(uncovered) / steps,
        ops=tuple(ops),
    )


def _rounds(windows_ms: Sequence[float]) -> list[float]:
    """The time of each round's two windows."""
    return [first + second for first, second in zip(windows_ms[::2], windows_ms[1::2], strict=True)]


def _ratio(a: float, b: float) -> float | None:
    """a / b, None where that is no number."""
    ratio = a / b if b else math.inf
    return ratio if math.isfinite(ratio) else None

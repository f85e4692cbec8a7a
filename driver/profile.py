"""Raw samples of a profile → where a step's time goes, operation by operation.

Windows without and with the profiler alternate, two of each in a round, in the order A B B A, which
cancels a linear drift of the machine within the round; so the profiler's cost is a ratio per round.

All figures come from one round, the one whose windows with the profiler took least: whatever else
the machine does makes a window longer, so that round was disturbed least. Medians of each operation
apart would come from different windows and not add up to any step.
"""

import math
from collections.abc import Sequence

from driver.records import ModelConfig, Profile, ProfileOp, ProfileSamples
from driver.tensors import operation_flops


def profile_of(samples: ProfileSamples, config: ModelConfig) -> Profile:
    """The profile that these samples give."""
    steps = 2 * samples.steps  # of a round's two windows
    plain, profiled = _rounds(samples.plain_ms), _rounds(samples.profiled_ms)
    at = profiled.index(min(profiled))
    flops = operation_flops(config)
    ops, covered_ms = [], 0.0
    for op in samples.ops:
        round_ms, work = _rounds(op.windows_ms)[at], flops.get(op.op)
        ms = round_ms / steps
        covered_ms += round_ms
        ops.append(
            ProfileOp(
                op=op.op, calls=op.calls, ms=ms, share=_ratio(round_ms, profiled[at]), flops=work,
                gflops=None if work is None else _ratio(work / 1e6, ms),
                below_clock_step=ms / op.calls < (samples.clock_step_ms or 0.0),
            )
        )  # fmt: skip
    costs = [_ratio(*pair) for pair in zip(profiled, plain, strict=True)]
    known = [cost for cost in costs if cost is not None]
    return Profile(
        samples=samples,
        rounds=len(costs),
        round=at + 1,
        wall_ms=plain[at] / steps,
        wall_profiled_ms=profiled[at] / steps,
        cost=costs[at],
        cost_range=(min(known), max(known)) if known else None,
        uncovered_ms=(profiled[at] - covered_ms) / steps,
        ops=tuple(ops),
    )


def _rounds(windows_ms: Sequence[float]) -> list[float]:
    """The time of each round's two windows."""
    return [first + second for first, second in zip(windows_ms[::2], windows_ms[1::2], strict=True)]


def _ratio(a: float, b: float) -> float | None:
    """a / b, None where that is no number."""
    ratio = a / b if b else math.inf
    return ratio if math.isfinite(ratio) else None

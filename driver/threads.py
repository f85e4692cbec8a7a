"""How many threads a WASM arm gets: what the browser says, checked by measurement.

A page may be told any number of cores, and a system may give less than it counts. The number is
that of the cores which the system lets this process use, unless fewer threads are seen to do as
much, every time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from driver.arms import AUTO, ArmSpec, parse_arm, resolve, shares_memory
from driver.errors import Unsupported
from driver.jobs import threads_op
from driver.records import ArmJob, ThreadChoice, ThreadSamples
from driver.wording import counted
from driver.workbench import Workbench

ROUNDS = 5
# More threads must add this much to the fewer. A thread on a core of its own adds far more.
WORTHWHILE = 0.1
QUIET = 0.5  # load per core, as the gate `quiet` has it
# A person may well ask for some more threads than cores, to see what that costs.
PER_CORE, LEAST_REFUSED = 4, 16
MOST = 128  # half of the chunks that the module runs at once


def wanted(specs: Sequence[ArmSpec]) -> bool:
    """Some arm's number of threads was left open."""
    return any(
        spec.is_wasm and spec.options["threads"] == AUTO and spec.options["shared"] != "off"
        for spec in specs
    )


def check_count(spec: ArmSpec, cores: int) -> None:
    """Raises Unsupported for a given number of threads that can only wait for each other."""
    given, most = spec.options.get("threads"), max(LEAST_REFUSED, PER_CORE * cores)
    if isinstance(given, int) and given > most:
        raise Unsupported(
            f"arm {spec.name}: threads={given}, and this machine has "
            f"{counted(cores, 'usable core')}: more than {most} threads are refused here, since "
            f"they would only wait for each other; use threads={min(cores, MOST)}, "
            "or leave it out and the number is measured"
        )


async def choose_threads(
    bench: Workbench, features: Mapping[str, Any], cores: int, load: float | None
) -> ThreadChoice:
    """Measures in the page, on threads of the WASM arm's own pool. Raises SlotError.

    `cores` are those that the browser's machine lets it use, `load` is the average of the last
    minute, if known, from before anything of ours ran.
    """
    said = features.get("hardware_concurrency")
    concurrency = said if isinstance(said, int) and said > 0 else None
    counts = candidates(concurrency, cores)
    if len(counts) == 1 or not shares_memory(features):
        alone = "one core is usable" if len(counts) == 1 else "the page has no shared memory"
        return ThreadChoice(
            hardware_concurrency=concurrency,
            cores_usable=cores,
            measured=(),
            threads=1,
            reason=f"{alone}: one thread, without a measurement",
        )
    # In rounds: what disturbs the machine for a moment meets all of them. The first sample is left
    # out: engines compile a function well only once it has run for a while.
    program = [threads_op(counts[-1])]
    program += [threads_op(count) for _ in range(ROUNDS) for count in counts]
    outcome = await bench.ask("threads", all_cores(features, cores), program)
    samples: dict[int, list[float]] = {count: [] for count in counts}
    for op in outcome.ops[2:]:
        samples[int(op.detail["threads"])].append(float(op.detail["gflops"]))
    threads, reason = choice(samples, (load or 0.0) / cores)
    return ThreadChoice(
        hardware_concurrency=concurrency,
        cores_usable=cores,
        measured=tuple(ThreadSamples(threads=n, gflops=s) for n, s in samples.items()),
        threads=threads,
        reason=reason,
    )


def all_cores(features: Mapping[str, Any], cores: int) -> ArmJob:
    """The WASM arm on all usable cores, on one where the page has no shared memory."""
    most = min(cores, MOST) if shares_memory(features) else 1
    return resolve(parse_arm(f"wasm:threads={most}"), dict(features))


def candidates(hardware_concurrency: int | None, cores_usable: int) -> tuple[int, ...]:
    """Numbers to measure, ascending: 1, 2, 3, 4, 6, 8, 12, … and both that were told.

    More threads than usable cores gain nothing whatever the browser says, and are not tried.
    """
    most = min(cores_usable, MOST)
    steps = {1, most} | {n << k for n in (2, 3) for k in range(8)}
    told = set() if hardware_concurrency is None else {hardware_concurrency}
    return tuple(sorted(n for n in steps | told if n <= most))


def choice(samples: Mapping[int, Sequence[float]], busy: float = 0.0) -> tuple[int, str]:
    """Number of threads and the reason, from samples in 1e9/s by number of threads, in rounds.

    The fewest that no larger number beats in any round. On a busy machine samples differ by tens
    of percent: too many threads cost a little, a core that is left out costs all that it gives, so
    one round in which more threads did more is enough to keep them. Where `busy`, the load per
    core, says that others compute here, samples tell of them and lower nothing.
    """
    if busy > QUIET:
        most = max(samples)
        cores = counted(most, "usable core")
        return most, f"{cores}; with a load of {busy:.2f} per core samples tell little"
    threads = next(n for n in sorted(samples) if not _beaten(n, samples))
    best = {n: max(values) for n, values in samples.items()}
    reason = f"{threads} of up to {max(best)} threads reach {best[threads]:.3g} GFLOP/s together"
    fewer = [n for n in best if n < threads]
    more = {n: value for n, value in best.items() if n > threads}
    if fewer:
        reason += f", {max(fewer)} reach {best[max(fewer)]:.3g}"
    if more:
        reason += f"; more never add a tenth to that ({max(more.values()):.3g} at most)"
    return threads, reason


def _beaten(n: int, samples: Mapping[int, Sequence[float]]) -> bool:
    """More threads than `n` did clearly more than these in some round."""
    return any(
        value * (1 - WORTHWHILE) > own
        for other in samples
        if other > n
        for own, value in zip(samples[n], samples[other], strict=True)
    )

"""The gates: their limits, and how each is judged from raw data and the plan's own limits."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from driver.parity.measures import GRADS_LIMIT, PARAMS_LIMIT, nan_max
from driver.parity.precision import NAMES, Precision, precision_of, reduced_limits
from driver.records import (
    ArmParity,
    ArmPlan,
    Comparison,
    Environment,
    Gate,
    GateClass,
    GatePlan,
    GateStatus,
    Plan,
    ReferenceFacts,
    Side,
    Slot,
    TeacherPoint,
)

SIDES: tuple[Side, Side] = ("A", "B")
LEAST_CURVE_TO_LEARN = 8
LEAST_BLOCKS = 4
# What telling the driver of a window may always take. On loopback it takes a few milliseconds.
TELL_MS = 30.0
# Whatever replicas show: a curve this far off tells nothing of how an arm computes. Norms of small
# models move most: replicas of one with 24 channels were 6e-4 apart after 265 steps.
MOST_LIMITS = {"curve.loss": 1e-4, "curve.grad_norm": 1e-2, "final.params": 10 * PARAMS_LIMIT}
# Judged only where the reference trains too.
FULL_REFERENCE = (
    "parity.grads", "parity.wide", "parity.params", "parity.key_bias", "curve.loss",
    "curve.grad_norm", "band.loss", "band.grad_norm", "final.params",
)  # fmt: skip
# What the worker that trains must say of its adapter as the probe did.
ADAPTER_IDENTITY = ("vendor", "architecture", "device", "description", "is_fallback")

_PER_SIDE: tuple[tuple[str, GateClass, float | None, str], ...] = (
    ("parity.grads", "blocking", GRADS_LIMIT,
     "worst relative L2 error of a gradient, one step from the reference's state"),
    ("parity.wide", "blocking", GRADS_LIMIT,
     "the same from the initial state with weights widened, so that GELU's inputs and the scores "
     "spread; float32 replicas deviate by at most 1e-6 there, a tanh GELU by at least 3e-4"),
    ("parity.params", "blocking", PARAMS_LIMIT,
     "worst relative L2 error of a parameter after such a step; elements whose first update a "
     "gradient's rounding decides are left out"),
    ("parity.key_bias", "blocking", 2e-6,
     "key third of attn.bqkv's gradient over the rest; its exact value is 0"),
    ("parity.first_loss", "blocking", 1e-4,
     "relative error of the first step's loss against the reference's, in every slot too"),
    ("parity.export", "blocking", None,
     "exported state, loaded again and exported again, is the same bits"),
    ("curve.loss", "blocking", 1e-5,
     "largest relative error of a loss against the float64 reference, every step and slot; the "
     "band's limit where that is more, at most 1e-4"),
    ("curve.grad_norm", "blocking", 1e-4,
     "the same for gradient norms; the band's limit where that is more, at most 1e-2"),
    ("band.loss", "blocking", None,
     "largest relative error of a loss over the band's steps; 4 x the largest deviation of a "
     "float32 replica + 1e-7"),
    ("band.grad_norm", "blocking", None, "the same for gradient norms"),
    ("final.params", "blocking", PARAMS_LIMIT,
     "worst relative L2 error of a parameter at the end of the curve, without those elements; 4 x "
     "the largest deviation of a float32 replica up to there + 1e-7 where that is more, at most "
     "5e-4"),
    ("finite", "blocking", None, "every loss, norm and time is a finite number, no time negative"),
    ("identity", "blocking", None, "what the arm echoed from its worker is what was configured"),
    ("clock", "blocking", 0.1,
     "share of a window by which the page's clock and the driver's own differ, in the window where "
     f"they differ least, beyond {TELL_MS:g} ms or twice what empty instructions took"),
    ("repeat", "blocking", None, "all slots of a WASM arm gave the same bits"),
    ("learned", "blocking", 0.02, "the loss fell by more than this, in nats"),
    ("beyond_unigrams", "blocking", 0.05,
     "where the reference's last quarter is this far below the entropy of single bytes, in nats, "
     "the arm's is below that entropy too; unknown in a shorter run, where `learned` has to do"),
)  # fmt: skip
# Most presets' slots are too short for an answer, and what they measure is their speed.
_MAY_BE_UNKNOWN = {"beyond_unigrams"}
_WHOLE: tuple[tuple[str, GateClass, float | None, str], ...] = (
    ("adapter", "qualifying", None, "the WebGPU adapter is hardware"),
    ("errors", "blocking", None, "every slot of the plan ran to its end without an error"),
    ("drift.loss", "blocking", 2e-5, "largest paired |A−B|/max of a loss within a block"),
    ("blocks", "qualifying", float(LEAST_BLOCKS), "blocks finished; an even number is needed"),
    ("quiet", "qualifying", 0.1,
     "share of the machine's CPU time that others use right before the run, and in the median "
     "slot; and not more than half of the blocks are suspect"),
    ("arms", "qualifying", None, "both arms really train"),
)  # fmt: skip


def gate_plans(
    require_hardware: bool,
    reference: ReferenceFacts | None = None,
    arms: Sequence[ArmPlan] = (),
    n_layer: int = 0,
) -> tuple[GatePlan, ...]:
    """All gates with their limits; `--require hardware` makes the adapter gate blocking.

    The band's limits come from the reference's float32 replicas and are None without them; those
    of whole curves and of final parameters are fixed ones at least. All are float32's, except
    where an arm of a model of `n_layer` layers asks for less precision.
    """
    bands = {
        "band.loss": band_limit(reference.band) if reference else None,
        "band.grad_norm": band_limit(reference.band_grad_norms) if reference else None,
    }
    explained = {"curve.loss": bands["band.loss"], "curve.grad_norm": bands["band.grad_norm"]}
    wider = {arm.side: reduced_limits(precision_of(arm.options), n_layer) for arm in arms}
    words = {arm.side: NAMES[precision_of(arm.options)] for arm in arms}
    plans = []
    final = {arm.side: _final_params_band(reference, arm) for arm in arms if reference}
    for name, kind, default, meaning in _PER_SIDE:
        for side in SIDES:
            limit = bands.get(name, default)
            if name in MOST_LIMITS and limit is not None:
                found = final.get(side) if name == "final.params" else explained[name]
                limit = max(limit, min(found or 0.0, MOST_LIMITS[name]))
            reduced = wider.get(side, {}).get(name)
            own = limit if reduced is None else max(reduced, limit or 0.0)
            said = meaning if reduced is None else f"{meaning}; {words[side]}"
            plans.append(
                GatePlan(
                    name=f"{name}.{side}", gate_class=kind, limit=own, meaning=said,
                    may_be_unknown=name in _MAY_BE_UNKNOWN,
                )
            )  # fmt: skip
    for name, kind, fixed, meaning in _WHOLE:
        limit = fixed
        if name == "drift.loss":  # both may be off, in opposite ways
            limit = sum(plan.limit or 0.0 for plan in plans if plan.name[:-2] == "curve.loss")
        blocking = kind == "blocking" or (name == "adapter" and require_hardware)
        plans.append(
            GatePlan(
                name=name,
                gate_class="blocking" if blocking else "qualifying",
                limit=limit,
                meaning=meaning,
            )
        )
    return tuple(plans)


def _final_params_band(reference: ReferenceFacts, arm: ArmPlan) -> float | None:
    """What float32 explains at the end of an arm's curve, by how far replicas were off until then.

    In a small model one weight whose first update rounding decides moves all the others' gradients
    a little; the replicas, which have such a weight too, say how far. What has moved apart stays
    so: where replicas do not go as far as the curve, their own end tells.
    """
    end = min(arm.total_steps, len(reference.losses))
    return band_limit([band.rel_l2 for band in reference.band_params if band.step <= end])


def band_limit(deviations: Sequence[float] | None) -> float | None:
    """What float32 explains of an arm's deviation; None without a band, or an unbounded one."""
    if not deviations:
        return None
    worst = max(deviations)
    return 4 * worst + 1e-7 if all(0 <= x < math.inf for x in deviations) else None


def gate_limits(precision: Precision, n_layer: int) -> dict[str, float]:
    """The numerical limits of one side, by gate, for a model of `n_layer` layers."""
    wider = reduced_limits(precision, n_layer)
    limits = {name: wider.get(name, limit) for name, _, limit, _ in _PER_SIDE}
    return {name: limit for name, limit in limits.items() if limit is not None}


def judge(
    plan: Plan,
    environment: Environment,
    parity: Sequence[ArmParity],
    slots: Sequence[Slot],
    comparison: Comparison,
    reference: ReferenceFacts,
) -> tuple[Gate, ...]:
    """Every gate of the plan, judged by the plan's own limits."""
    outcomes: dict[str, tuple[float | None, GateStatus, str]] = {}
    limits = {gate.name: gate.limit for gate in plan.gates}
    for arm, found in zip(plan.arms, parity, strict=True):
        side = _judge_side(plan, arm, environment, found, slots, comparison, limits, reference)
        for name, outcome in side.items():
            outcomes[f"{name}.{arm.side}"] = outcome
    outcomes |= _judge_whole(plan, environment, slots, comparison, limits)
    gates = []
    for gate in plan.gates:
        unknown: tuple[float | None, GateStatus, str] = (None, "unknown", "no such gate is known")
        measured, status, reason = outcomes.get(gate.name, unknown)
        if status == "unknown" and gate.name[:-2] in _MAY_BE_UNKNOWN and not gate.may_be_unknown:
            status = "not-applicable"  # as receipts were judged whose plan does not have the word
        gates.append(
            Gate(
                name=gate.name, gate_class=gate.gate_class, limit=gate.limit, measured=measured,
                status=status, reason=reason,
            )
        )  # fmt: skip
    return tuple(gates)


Outcome = tuple[float | None, GateStatus, str]


def _below(measured: float | None, limit: float | None, what: str) -> Outcome:
    """pass when 0 ≤ measured ≤ limit, never a NaN or infinity; unknown when nothing is measured."""
    if measured is None or limit is None:
        return None, "unknown", f"{what}: not measured"
    status: GateStatus = "pass" if 0 <= measured <= limit and measured < math.inf else "fail"
    return measured, status, f"{what} {measured:.2e}, limit {limit:.0e}"


def _worst(named: Iterable[tuple[str, float]]) -> tuple[str, float] | None:
    worst: tuple[str, float] | None = None
    # By name: whoever sorts a receipt's keys must find the same one among equals.
    for name, value in sorted(named, key=lambda pair: pair[0]):
        if math.isnan(value):
            return name, value
        if worst is None or value > worst[1]:
            worst = name, value
    return worst


def _judge_side(
    plan: Plan,
    arm: ArmPlan,
    environment: Environment,
    found: ArmParity,
    slots: Sequence[Slot],
    comparison: Comparison,
    limits: dict[str, float | None],
    reference: ReferenceFacts,
) -> dict[str, Outcome]:
    side = arm.side
    mine = [slot for slot in slots if slot.side == side]
    outcomes: dict[str, Outcome] = {
        "finite": _finite(mine),
        "identity": _identity(plan, arm, environment, mine),
    }
    if not found.applicable:
        reason = found.reason or "this arm does not train"
        for name, _, _, _ in _PER_SIDE:
            outcomes.setdefault(name, (None, "not-applicable", reason))
        return outcomes

    def limit(name: str) -> float | None:
        return limits.get(f"{name}.{side}")

    curve_points = [point for point in found.points if point.state == "curve"]
    wide_points = [point for point in found.points if point.state == "wide"]
    for name, kind, points in (
        ("parity.grads", "grads", curve_points),
        ("parity.wide", "grads", wide_points),
        ("parity.params", "params", curve_points),
    ):
        errors = (
            (f"{tensor} at {_where(point)}", error.rel_l2)
            for point in points
            for tensor, error in getattr(point, kind).items()
        )
        worst = _worst(errors)
        nothing = f"{kind} at widened weights" if points is wide_points else kind
        outcomes[name] = _below(worst and worst[1], limit(name), worst[0] if worst else nothing)
    key = _worst((f"key bias at {_where(p)}", p.key_bias_ratio) for p in curve_points)
    outcomes["parity.key_bias"] = _below(
        key and key[1], limit("parity.key_bias"), key[0] if key else "key bias"
    )
    outcomes["parity.first_loss"] = _first_loss(found, mine, limit("parity.first_loss"))
    if found.export_equal is None:
        outcomes["parity.export"] = None, "unknown", found.export_reason or "not tried"
    else:
        same = found.export_equal
        outcomes["parity.export"] = (
            None, "pass" if same else "fail",
            "same bits after a round trip" if same else found.export_reason or "bits differ",
        )  # fmt: skip

    curve = comparison.curve_errors[side]
    steps = f"{curve.steps} steps, "
    outcomes["curve.loss"] = _below(
        curve.loss, limit("curve.loss"), steps + _worst_at(curve.loss_step)
    )
    outcomes["curve.grad_norm"] = _below(
        curve.grad_norm, limit("curve.grad_norm"), _worst_at(curve.grad_norm_step)
    )
    outcomes |= _band(comparison, side, limit("band.loss"), limit("band.grad_norm"))
    final = _worst((tensor, error.rel_l2) for tensor, error in found.final_params.items())
    if final is None:
        why = found.final_reason or "the run ended before they were compared"
        outcomes["final.params"] = None, "unknown", why
    else:
        where = f"{final[0]} after {found.final_step} steps"
        outcomes["final.params"] = _below(final[1], limit("final.params"), where)
    if found.points_reason:  # a forward pass is all that the reference did
        for name in FULL_REFERENCE:
            if outcomes[name][1] == "unknown":
                outcomes[name] = None, "unknown", found.points_reason
    outcomes["clock"] = _clock(mine, limit("clock"))
    outcomes["repeat"] = _repeat(arm, comparison.slots_repeat[side])
    outcomes["learned"] = _learned(mine, limit("learned"))
    outcomes["beyond_unigrams"] = _beyond_unigrams(plan, reference, mine, limit("beyond_unigrams"))
    return outcomes


def _where(point: TeacherPoint) -> str:
    return f"t={point.t}" if point.state == "curve" else "widened weights"


def _band(
    comparison: Comparison, side: Side, loss_limit: float | None, norm_limit: float | None
) -> dict[str, Outcome]:
    if comparison.band_errors is None:
        unknown: Outcome = (None, "unknown", "the float32 band was not computed")
        return {"band.loss": unknown, "band.grad_norm": unknown}
    error = comparison.band_errors[side]
    first = f"first {error.steps} steps, "
    return {
        "band.loss": _below(error.loss, loss_limit, first + _worst_at(error.loss_step)),
        "band.grad_norm": _below(
            error.grad_norm, norm_limit, first + _worst_at(error.grad_norm_step)
        ),
    }


def _worst_at(step: int | None) -> str:
    return "no slot finished" if step is None else f"worst at step {step}:"


def _first_loss(found: ArmParity, mine: Sequence[Slot], limit: float | None) -> Outcome:
    """The prepare phase's first loss from the initial state, and every slot's."""
    want, have = found.reference_first_loss, found.first_loss
    start = next((p for p in found.points if p.t == 0 and p.state == "curve"), None)
    if start:
        want, have = start.reference_loss, start.loss
    if want is None or have is None:
        return None, "unknown", "no first loss: not measured"
    firsts = [("prepare", have), *((f"slot {s.index}", s.losses[0]) for s in mine if s.losses)]
    worst = _worst((where, abs(loss - want) / max(abs(want), 1e-300)) for where, loss in firsts)
    return _below(worst and worst[1], limit, f"first loss ({worst[0]})" if worst else "first loss")


def _finite(mine: Sequence[Slot]) -> Outcome:
    for slot in mine:
        for what in ("losses", "grad_norms", "windows_ms", "arrivals_ms", "tell_ms", "sentinel_ms"):
            for index, value in enumerate(getattr(slot, what)):
                # No norm and no time is below 0, and no window takes none.
                negative = value < 0 and what != "losses"
                if not math.isfinite(value) or negative or (value == 0 and what == "windows_ms"):
                    return None, "fail", f"slot {slot.index}: {what}[{index}] is {value}"
        for what in ("compile_ms", "upload_ms", "first_step_ms", "wall_ms"):
            value = getattr(slot, what)
            if value is not None and not 0 <= value < math.inf:
                return None, "fail", f"slot {slot.index}: {what} is {value}"
    if not any(slot.losses for slot in mine):
        return None, "unknown", "no slot reported a loss"
    return None, "pass", "all numbers are finite, no time is negative"


def _identity(plan: Plan, arm: ArmPlan, environment: Environment, mine: Sequence[Slot]) -> Outcome:
    ran = [slot for slot in mine if slot.status == "ok"]
    if not ran:
        return None, "unknown", "no slot finished"
    expected = dict(arm.expected) | {"plan_sha256": plan.sha256}
    for slot in ran:
        found = differences(expected, slot.ran)
        if arm.name == "webgpu":
            probed = environment.adapter or {}
            same = {key: probed.get(key) for key in ADAPTER_IDENTITY}
            found += differences(same, slot.adapter or {}, "adapter.")
        if found:
            return None, "fail", f"slot {slot.index}: {'; '.join(found[:3])}"
    return None, "pass", f"{len(expected)} facts agree in {len(ran)} slots"


def _clock(mine: Sequence[Slot], limit: float | None) -> Outcome:
    """The page's clock against the driver's, which no page can stop.

    Between two arrivals a page does nothing but train a window and tell of it; what telling takes
    here, empty instructions say. Whatever else takes time on a busy machine does not do so in every
    window, so the least difference counts: a clock that stops before the work is done, or runs
    slowly, differs in all of them.
    """
    told = [ms for slot in mine for ms in slot.tell_ms]
    way_ms = max([TELL_MS, *(2 * ms for ms in told if math.isfinite(ms))])
    shares = []
    for slot in mine:
        by_driver = [b - a for a, b in itertools.pairwise(slot.arrivals_ms)]
        both = zip(slot.windows_ms, by_driver, strict=False)
        shares += [_apart(page, driver, way_ms) for page, driver in both]
    if not shares:
        return None, "unknown", "the driver's own times of the windows: not recorded"
    least = math.nan if any(map(math.isnan, shares)) else min(shares)
    words = f"beside {way_ms:.0f} ms for telling of it, clocks differ in every window by"
    return _below(least, limit, words)


def _apart(by_page: float, by_driver: float, way_ms: float) -> float:
    """Share of a window, in ms by each clock, that telling of it does not explain."""
    if math.isnan(by_page) or math.isnan(by_driver):
        return math.nan
    more = max(0.0, abs(by_driver - by_page) - way_ms)
    return more / by_driver if by_driver > 0 else math.inf


def differences(expected: Mapping[str, Any], ran: Mapping[str, Any], at: str = "") -> list[str]:
    """What an arm echoed other than expected. Numbers agree to float32, as kernels hold them."""
    found: list[str] = []
    for key in sorted(expected):
        want = expected[key]
        have, where = ran.get(key), f"{at}{key}"
        if isinstance(want, Mapping) and isinstance(have, Mapping):
            # An arm loads some of the kernels: each that it loaded must be one of ours.
            some = {name: want.get(name) for name in have} if key == "wgsl_sha256" else {}
            found += differences(some or want, have, f"{where}.")
        elif (
            isinstance(want, float) and isinstance(have, int | float) and not isinstance(have, bool)
        ):
            if not math.isclose(want, have, rel_tol=1e-6):
                found.append(f"{where}: ran {have!r}, configured {want!r}")
        elif have != want or isinstance(have, bool) != isinstance(want, bool):
            found.append(f"{where}: ran {have!r}, configured {want!r}")
    return found


def _repeat(arm: ArmPlan, same: bool | None) -> Outcome:
    if same is None:
        return None, "unknown", "fewer than two slots finished"
    words = "all slots gave the same bits" if same else "slots of the same arm gave other bits"
    if arm.name not in ("wasm", "wasm64"):
        return None, "not-applicable", f"{words} (reported, not required of this arm)"
    return None, "pass" if same else "fail", words


def _learned(mine: Sequence[Slot], least: float | None) -> Outcome:
    curves = [slot.losses for slot in mine if slot.status == "ok" and slot.losses]
    if not curves or least is None:
        return None, "unknown", "no slot finished"
    if any(len(losses) < LEAST_CURVE_TO_LEARN for losses in curves):
        shortest = min(map(len, curves))
        return None, "unknown", f"{shortest} steps are too few to tell whether it learns"
    # Quarter means: a single batch's loss says little.
    fall = math.inf
    for losses in curves:
        quarter = max(1, len(losses) // 4)
        first, last = losses[:quarter], losses[-quarter:]
        fall = -nan_max(-fall, -(sum(first) / quarter - sum(last) / quarter))
    status: GateStatus = "pass" if fall > least else "fail"
    return fall, status, f"loss fell by {fall:.3f} nats (first to last quarter), least {least:g}"


def _beyond_unigrams(
    plan: Plan, reference: ReferenceFacts, mine: Sequence[Slot], margin: float | None
) -> Outcome:
    """Whether the loss went below what the frequencies of single bytes explain.

    Over the steps that the reference has too: whether that many are enough, the reference tells.
    """
    entropy = plan.corpus.unigram_entropy_nats
    curves = [slot.losses[: len(reference.losses)] for slot in mine if slot.status == "ok"]
    steps = min(map(len, curves), default=0)
    if margin is None or steps < LEAST_CURVE_TO_LEARN:
        return None, "unknown", f"cannot be told from {steps} steps with a reference"
    able = _last_quarter(reference.losses[:steps])
    if not able < entropy - margin:
        return (
            None,
            "unknown",
            f"cannot be told from {steps} steps: the reference too is at {able:.3f} nats, the "
            f"entropy of single bytes is {entropy:.3f}",
        )
    worst = -math.inf
    for losses in curves:
        worst = nan_max(worst, _last_quarter(losses[:steps]))
    words = f"last quarter of {steps} steps at {worst:.3f} nats, single bytes explain {entropy:.3f}"
    return worst, "pass" if worst < entropy else "fail", words


def _last_quarter(losses: Sequence[float]) -> float:
    quarter = max(1, len(losses) // 4)
    return sum(losses[-quarter:]) / quarter


def _judge_whole(
    plan: Plan,
    environment: Environment,
    slots: Sequence[Slot],
    comparison: Comparison,
    limits: dict[str, float | None],
) -> dict[str, Outcome]:
    applicable = all(arm.name != "null" for arm in plan.arms)
    outcomes: dict[str, Outcome] = {
        "errors": _errors(plan, slots, len(comparison.blocks)),
        "drift.loss": (None, "not-applicable", "an arm does not train")
        if not applicable
        else _below(
            comparison.drift.loss,
            limits.get("drift.loss"),
            f"{comparison.drift.steps} common steps, {_worst_at(comparison.drift.loss_step)}",
        ),
        "adapter": _adapter(plan, environment),
        "blocks": _blocks(comparison, limits.get("blocks")),
        "quiet": _quiet(plan, environment, slots, comparison, limits.get("quiet")),
    }
    fakes = [arm.canonical for arm in plan.arms if arm.name == "null"]
    outcomes["arms"] = (
        (None, "fail", f"a fake arm for testing the driver took part: {fakes[0]}")
        if fakes
        else (None, "pass", "both arms train")
    )
    return outcomes


def _errors(plan: Plan, slots: Sequence[Slot], blocks: int) -> Outcome:
    """`blocks`: how many of the plan's were to run."""
    for slot in slots:
        if slot.status == "failed":
            failure = slot.failure
            why = f"{failure.kind}: {failure.message}" if failure else "no reason recorded"
            return None, "fail", f"slot {slot.index} ({slot.side}): {why}"
    planned = [side for order in plan.order[:blocks] for side in order]
    ran = [slot.side for slot in slots]
    shape = [(slot.index, slot.block, slot.position) for slot in slots]
    wanted = [(4 * b + p, b, p) for b in range(blocks) for p in range(4)]
    if ran != planned or shape != wanted:
        many = f"{len(slots)} slots ran" if slots else "no slot ran"
        return None, "fail", f"{many}, not the {len(planned)} of the plan in order"
    for slot in slots:
        arm = plan.arms[SIDES.index(slot.side)]
        counts = (len(slot.losses), len(slot.grad_norms), len(slot.windows_ms))
        wanted_counts = (arm.total_steps, arm.total_steps, arm.windows)
        if counts != wanted_counts or slot.steps_per_window != arm.steps_per_window:
            return (
                None,
                "fail",
                (
                    f"slot {slot.index} has {counts[0]} losses, {counts[1]} norms, {counts[2]} "
                    f"windows; planned {wanted_counts[0]}, {wanted_counts[1]}, {wanted_counts[2]}"
                ),
            )
    return None, "pass", f"all {len(slots)} slots ran to their end"


def _adapter(plan: Plan, environment: Environment) -> Outcome:
    if all(arm.name != "webgpu" for arm in plan.arms):
        return None, "not-applicable", "no arm uses an adapter"
    verdict = environment.adapter_verdict
    first, *others = environment.adapter_reasons or ("no reason given",)
    more = f", and {len(others)} more signals" if others else ""
    reason = f"{first}{more}"
    status: GateStatus = "unknown"
    if verdict == "hardware":
        status = "pass"
    elif verdict == "software" or plan.require_hardware:
        status = "fail"  # what is required has to be shown
    return None, status, f"{verdict} adapter ({reason})"


def _blocks(comparison: Comparison, least: float | None) -> Outcome:
    done = sum(1 for block in comparison.blocks if block.log_ratio is not None)
    enough = least is not None and done >= least and done % 2 == 0
    words = f"{done} finished block{'s' if done != 1 else ''}"
    if not enough:
        words += f"; an interval needs an even number of at least {LEAST_BLOCKS}"
    return float(done), "pass" if enough else "fail", words


def _quiet(
    plan: Plan,
    environment: Environment,
    slots: Sequence[Slot],
    comparison: Comparison,
    limit: float | None,
) -> Outcome:
    """Quiet before the run, and during it: one that began quietly may have been disturbed."""
    before = _quiet_before(environment, limit)
    if before[1] != "pass" or limit is None:  # nothing is known of another machine's quiet
        return before
    shares = [slot.others_cpu for slot in slots if slot.others_cpu is not None]
    during = _median(shares) if shares else None
    words = f"others used {during:.1%} of it in the median slot" if shares else ""
    if during is not None and not 0 <= during <= limit:
        return during, "fail", f"{words}, limit {limit:.0%}; {before[2]}"
    finished = [block for block in comparison.blocks if block.log_ratio is not None]
    marked = [block for block in finished if block.suspect]
    most = plan.suspects.most if plan.suspects else None
    if most is not None and len(marked) > most * len(finished):
        first = marked[0].suspect[0]
        return (
            float(len(marked)),
            "fail",
            f"{len(marked)} of {len(finished)} blocks are suspect, at most {most:.0%} may be; the "
            f"first because of {first}",
        )
    if during is None or before[0] is None:
        return before
    return max(before[0], during), before[1], f"{before[2]}; {words}"


def _median(values: Sequence[float]) -> float:
    """NaN where one of them is."""
    return math.nan if any(map(math.isnan, values)) else median(values)


def _quiet_before(environment: Environment, limit: float | None) -> Outcome:
    others = environment.others_cpu
    if others is None:
        return _quiet_by_load(environment, limit)
    if others.share is None or limit is None:
        return others.share, "unknown", others.reason or "no limit in the plan"
    status: GateStatus = "pass" if 0 <= others.share <= limit else "fail"
    words = f"others used {others.share:.1%} of the machine's CPU time before the run"
    return others.share, status, f"{words}, limit {limit:.0%}"


def _quiet_by_load(environment: Environment, limit: float | None) -> Outcome:
    """As receipts were judged before the others' share was measured."""
    load, cores = environment.load_before.get("load_1min"), environment.machine.get("cores_logical")
    if not isinstance(load, int | float) or not isinstance(cores, int) or cores < 1:
        return None, "unknown", "this system gives no load average"
    per_core = load / cores
    if limit is None:
        return per_core, "unknown", "no limit in the plan"
    status: GateStatus = "pass" if per_core <= limit else "fail"
    return per_core, status, f"load {per_core:.2f} per core before the run, limit {limit:g}"

"""`--axis precision` of the ladder: what less precision did, and whether to adopt it. No I/O."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import rfc8785

from driver.errors import SlotError
from driver.parity import NAMES, gate_limits, precision_of
from driver.records import (
    LadderPair,
    ModelConfig,
    PrecisionCheck,
    PrecisionReport,
    PrecisionRung,
    Quality,
    Receipt,
    Rung,
    Side,
)
from driver.reference import logits_of
from driver.tensors import State
from driver.wording import interval_text, told_apart_from

LIMITS_RULE = (
    "Float32's limits are the defaults of every run. Those of halves follow from their format (11 "
    "significant bits) and the number of products on the way to a gradient; driver/parity/"
    "precision.py derives them. Learning is as good when the loss over the last quarter of the "
    "steps is no further above the reference's than a loss of the curve may be."
)
DECISION_RULE = (
    "From float32 on, each lower precision in turn is adopted when it passes every blocking gate, "
    "learns as well, and is faster end to end: the lower ends of the intervals since the one "
    "adopted, multiplied, are above 1. The first failure of numbers or behaviour stops."
)
TEXT_BYTES = 80
PROMPT_BYTES = 24


@dataclass
class Evidence:
    """One pair of rungs: its receipt, and the last weights that each side exported."""

    before: str
    after: str
    receipt: Receipt
    weights: dict[Side, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    """The limits of every rung, fixed before the first run."""

    utc: str
    limits: dict[str, dict[str, float]]

    @classmethod
    def of(cls, rungs: Sequence[Rung], config: ModelConfig, utc: str) -> "Frozen":
        """From the formats and the model's depth alone."""
        return cls(
            utc,
            {r.label: gate_limits(precision_of(r.options), config.n_layer) for r in rungs},
        )

    @property
    def sha256(self) -> str:
        """Over the RFC 8785 form of the limits."""
        return hashlib.sha256(rfc8785.dumps(self.limits)).hexdigest()


def precision_report(
    frozen: Frozen,
    rungs: Sequence[Rung],
    pairs: Sequence[LadderPair],
    evidence: Sequence[Evidence],
    corpus: bytes,
) -> PrecisionReport:
    """Everything that the pairs' receipts and weights say, and the decision."""
    prompt = corpus[:PROMPT_BYTES]
    found = tuple(_rung(frozen, rung, pairs, evidence, prompt) for rung in rungs)
    adopted, reasons = decide(found, pairs)
    environment = evidence[0].receipt.environment if evidence else None
    verdict = environment.adapter_verdict if environment else "unknown"
    return PrecisionReport(
        frozen_utc=frozen.utc,
        limits=frozen.limits,
        limits_sha256=frozen.sha256,
        limits_rule=LIMITS_RULE,
        adapter=verdict,
        adapter_reasons=tuple(environment.adapter_reasons) if environment else (),
        hardware_fallback={"software": True, "hardware": False}.get(verdict),
        prompt=_shown(prompt),
        rungs=found,
        decision_rule=DECISION_RULE,
        adopted=adopted,
        reasons=reasons,
    )


# --------------------------------------------------------------------------- one rung


def _rung(
    frozen: Frozen,
    rung: Rung,
    pairs: Sequence[LadderPair],
    evidence: Sequence[Evidence],
    prompt: bytes,
) -> PrecisionRung:
    words = NAMES[precision_of(rung.options)]
    blank = PrecisionRung(label=rung.label, precision=words, status="not run")
    if rung.status == "unsupported":
        why = (rung.reason or "it does not run here",)
        return blank.model_copy(update={"status": "unsupported", "reasons": why})
    side, seen = _seen(rung.label, evidence)
    if seen is None:
        pair = next((p for p in pairs if rung.label in (p.after, p.before)), None)
        if pair is None or pair.after != rung.label or not pair.exit_code:
            return blank
        # Bad input or a short budget says nothing about the precision.
        status = "failed" if pair.exit_code in (1, SlotError.exit_code) else "not run"
        return blank.model_copy(update={"status": status, "reasons": pair.reasons})
    checks = _checks(seen.receipt, side)
    slots = [slot for slot in seen.receipt.slots if slot.side == side]
    quality = _quality(seen, side, frozen.limits[rung.label]["curve.loss"])
    failures = [f"{c.name}: {c.reason}" for c in checks if c.status == "fail"]
    failures += _behaviour(quality)
    text, text_reason = _text(seen.receipt.plan.config, seen.weights.get(side), prompt)
    summary = seen.receipt.comparison.arms[0 if side == "A" else 1]
    memory = next((slot.memory for slot in slots if slot.memory), {})
    return PrecisionRung(
        label=rung.label,
        precision=words,
        status="failed" if failures else "ok",
        reasons=tuple(failures),
        checks=checks,
        drift=seen.receipt.comparison.drift.loss if side == "B" else None,
        nonfinite=sum(
            not math.isfinite(value) for s in slots for value in (*s.losses, *s.grad_norms)
        ),
        quality=quality,
        text=text,
        text_reason=text_reason,
        step_ms=summary.median_step_ms,
        memory_bytes=_sizes(memory),
        receipt_digest=seen.receipt.digest,
    )


def _seen(label: str, evidence: Sequence[Evidence]) -> tuple[Side, Evidence | None]:
    """The run in which a rung was the later one, else the one that it began."""
    for found in evidence:
        if found.after == label:
            return "B", found
    return "A", next((found for found in evidence if found.before == label), None)


def _checks(receipt: Receipt, side: Side) -> tuple[PrecisionCheck, ...]:
    """The side's own blocking gates, and the errors of its slots; limits are the frozen ones."""
    failed = any(slot.status == "failed" and slot.side == side for slot in receipt.slots)
    kept = []
    for gate in receipt.gates:
        name, _, whose = gate.name.rpartition(".")
        mine = whose == side and gate.gate_class == "blocking"
        shared = side == "B" and gate.name == "drift.loss"
        if mine or shared or (gate.name == "errors" and failed):
            kept.append(
                PrecisionCheck(
                    name=name if mine else gate.name, limit=gate.limit, measured=gate.measured,
                    status=gate.status, reason=gate.reason,
                )
            )  # fmt: skip
    return tuple(kept)


def _quality(seen: Evidence, side: Side, limit: float) -> Quality | None:
    """None where there is no curve of numbers to compare; the gate `finite` judges the others."""
    slots = seen.receipt.slots
    curves = {s: next((x.losses for x in slots if x.side == s), []) for s in ("A", "B")}
    other = "B" if side == "A" else "A"
    reference = seen.receipt.reference.losses
    steps = min(len(curves["A"]), len(curves["B"]), len(reference))
    if not steps:
        return None
    last = slice(steps - max(1, steps // 4), steps)
    mine, theirs, true = (
        float(np.mean(curve[last])) for curve in (curves[side], curves[other], reference)
    )
    if not all(map(math.isfinite, (mine, theirs, true))):
        return None
    return Quality(
        steps=steps,
        loss=mine,
        reference_loss=true,
        before=seen.before if side == "B" else seen.after,
        before_loss=theirs,
        excess=(mine - true) / true,
        limit=limit,
    )


def _behaviour(quality: Quality | None) -> list[str]:
    if quality is None or quality.excess <= quality.limit:
        return []
    by = f"{quality.excess:+.1%}, limit {quality.limit:.0%}"
    return [
        f"learning: loss {quality.loss:.4f} over the last quarter of {quality.steps} steps, the "
        f"reference's {quality.reference_loss:.4f}: {by}"
    ]


def _sizes(memory: Mapping[str, Any]) -> dict[str, int]:
    sizes = memory.get("buffer_bytes")
    return {str(k): int(v) for k, v in sizes.items()} if isinstance(sizes, Mapping) else {}


# --------------------------------------------------------------------------- text


def _text(
    config: ModelConfig, weights: State | None, prompt: bytes
) -> tuple[str | None, str | None]:
    if weights is None:
        return None, "no slot exported its weights"
    if config.vocab < 256:
        return None, f"a vocabulary of {config.vocab} is not one of bytes"
    if not all(np.isfinite(tensor).all() for tensor in weights.values()):
        return None, "weights that are not finite write nothing"
    return _shown(greedy(config, weights, prompt, TEXT_BYTES)), None


def greedy(config: ModelConfig, params: State, prompt: bytes, count: int) -> bytes:
    """The `count` likeliest bytes after `prompt`, one after another, by the NumPy reference.

    The model sees its last `ctx` bytes, alone.
    """
    tokens = list(prompt)
    for _ in range(count):
        seen = np.array([tokens[-config.ctx :]])
        tokens.append(int(np.argmax(logits_of(config, params, seen)[0, -1, :256])))
    return bytes(tokens[len(prompt) :])


def _shown(text: bytes) -> str:
    return text.decode("ascii", "backslashreplace")


# --------------------------------------------------------------------------- the decision


def decide(
    rungs: Sequence[PrecisionRung], pairs: Sequence[LadderPair]
) -> tuple[str, tuple[str, ...]]:
    """The adopted label, and a sentence for every other rung; by DECISION_RULE."""
    after = {pair.after: pair for pair in pairs}
    adopted, sure, stopped = rungs[0].label, 1.0, ""
    reasons = []
    if rungs[0].status == "failed":
        stopped = adopted
        reasons.append(f"{adopted} itself failed: {'; '.join(rungs[0].reasons)}")
    for rung in rungs[1:]:
        pair = after.get(rung.label)
        if stopped:
            reasons.append(f"{rung.label} not adopted: {stopped} failed before it")
            continue
        if rung.status in ("unsupported", "not run"):
            why = "; ".join(rung.reasons) or "it was not run"
            reasons.append(f"{rung.label} not adopted: {why}")
            if rung.status == "not run":
                sure = 0.0  # the next pair's gain is over this one, not over what is adopted
            continue
        if rung.status == "failed":
            reasons.append(f"{rung.label} rejected: {'; '.join(rung.reasons)}")
            stopped = rung.label
            continue
        if pair is None or not pair.claims or pair.low is None:
            why = "; ".join(pair.reasons) if pair and not pair.claims else "no interval of a ratio"
            reasons.append(f"{rung.label} not adopted: it was not shown to be faster ({why})")
            sure = 0.0
            continue
        sure *= pair.low
        if sure > 1:
            reasons.append(f"{adopted} left: {rung.label} passes and is faster")
            adopted, sure = rung.label, 1.0
        else:
            interval = interval_text(pair.low, pair.high or 0.0)
            times = f"{told_apart_from(pair.ratio or 0.0)} times as fast [{interval}]"
            reasons.append(f"{rung.label} not adopted: no proven gain, {times} as {pair.before}")
    return adopted, tuple(reasons)

"""A receipt's run once more: the same preset, arms, seed and choices, then what agrees.

Everything comes from the receipt's plan, nothing from files on disk, and is read as a stranger's:
the preset is validated as a file's keys are, every option as if a person had written it.

*Losses* agree bit for bit where a WASM arm ran the same module (a relaxed-SIMD module on the same
machine: what its multiply-add rounds is the processor's choice), else within `TOLERANCE` at every
step of the common prefix. *Times*, compared on the same machine only, agree where the change's
interval, between-run noise included, overlaps the margin around no change.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from driver import corpus as corpora
from driver import presets
from driver.arms import ArmSpec, parse_arm
from driver.compare import Noise, changes_of, other_place, other_work
from driver.errors import ReceiptError, UsageError
from driver.parity import SIDES
from driver.plan import Purpose
from driver.records import (
    Agreement,
    ArmPlan,
    Aspect,
    Change,
    Pinned,
    Receipt,
    Reproduction,
    Side,
    Slot,
)
from driver.run import Request
from driver.wording import interval_text, told_apart_from

# Twice what either arm's curve may be away from the reference's.
TOLERANCE = 2e-5
_WIDE = 1.2  # the ends of an interval: from here on agreement says little
_MOST_BUDGET_S = 30 * 86400.0
_REVISION = re.compile(r"[0-9a-f]{40,64}")
_KERNELS = ("module_sha256", "wgsl_sha256")


# --------------------------------------------------------------------------- the run


def request_for(
    receipt: Receipt, out: Path, corpus_file: str | None, budget_s: float | None
) -> Request:
    """The run that the receipt's plan describes.

    Raises ReceiptError, PresetError, ArmError or CorpusError for a plan that cannot be run here,
    UsageError where the corpus is not there.
    """
    plan = receipt.plan
    if receipt.verdict.status == "failed":
        reasons = "; ".join(receipt.verdict.reasons)[:300]
        raise ReceiptError(f"a failed run claims nothing to reproduce ({reasons!r})")
    preset = presets.from_keys("the receipt's preset", plan.preset)
    if preset.model != plan.config:
        raise ReceiptError("the receipt's preset and config describe two models")
    a, b = (_spec(arm, receipt.digest) for arm in plan.arms)
    corpus = _corpus(receipt, corpus_file)
    corpora.check(corpus, preset.model, preset.corpus_sha256)
    seconds = budget_s or plan.budget_s
    if not 0 < seconds <= _MOST_BUDGET_S:
        raise ReceiptError(f"the receipt's budget of {seconds:g} s cannot be kept; give --budget")
    return Request(
        preset=preset,
        arms=(a, b),
        corpus=corpus,
        seed=plan.seed,
        purpose=Purpose(
            blocks=len(plan.order),
            auto=plan.auto is not None,  # its own pilot then says how many blocks
            budget_s=seconds,
            require_hardware=plan.require_hardware,
            question=f"Does receipt {receipt.digest[:12]} reproduce here?",
        ),
        out=out,
    )


def _spec(arm: ArmPlan, receipt_digest: str) -> ArmSpec:
    """The arm with every choice of the receipt, each read as if a person had written it."""
    source = arm.options.get("source")
    if source and not _REVISION.fullmatch(str(source)):  # a stranger's folder, whatever is in it
        raise ReceiptError(
            f"arm {arm.side} was built from {source!r:.80}, no revision of this project; what was "
            "there cannot be known here"
        )
    options = "+".join(f"{key}={arm.options[key]}" for key in sorted(arm.options))
    spec = parse_arm(f"{arm.name}:{options}" if options else arm.name)
    taken = tuple(sorted(arm.options))
    return spec.model_copy(
        update={"pinned": Pinned(receipt_digest=receipt_digest, side=arm.side, options=taken)}
    )


def _corpus(receipt: Receipt, file: str | None) -> corpora.Corpus:
    """The corpus of that digest: the generated one, or the file that was given."""
    wanted = receipt.plan.corpus
    found = corpora.load(file)
    if found.sha256 != wanted.sha256:
        given = f"{file} has {found.sha256}" if file else "the generated corpus is another one"
        raise UsageError(
            f"not comparable: the receipt trained on {wanted.name!r:.100}, {wanted.size_bytes} "
            f"bytes, SHA-256 {wanted.sha256!r:.80}; {given}. Name its file with --corpus"
        )
    return found


# --------------------------------------------------------------------------- the answer


def judge(
    base: Receipt,
    new: Receipt,
    name: str,
    margin: float,
    calibrations: Sequence[Noise | None],
) -> Reproduction:
    """What of BASE the receipt NEW (a file called `name`) repeats."""
    aspects = tuple(_aspects(base, new, margin, calibrations))
    return Reproduction(
        receipt_digest=base.digest,
        reproduction_digest=new.digest,
        reproduction=name,
        margin=margin,
        outcome=overall([aspect.outcome for aspect in aspects]),
        aspects=aspects,
    )


def overall(outcomes: Sequence[Agreement]) -> Agreement:
    """disagree where anything does, agree where everything does."""
    if "disagree" in outcomes:
        return "disagree"
    return "agree" if outcomes and all(o == "agree" for o in outcomes) else "not comparable"


def _aspects(
    base: Receipt, new: Receipt, margin: float, calibrations: Sequence[Noise | None]
) -> Iterator[Aspect]:
    if new.verdict.status == "failed":
        reasons = "; ".join(new.verdict.reasons)
        yield Aspect(name="verdict", outcome="disagree", reason=f"this run failed: {reasons}")
        return
    work = [*other_work(base, new)]
    if base.plan.state_sha256 != new.plan.state_sha256:
        work.append("the same seed gave other initial weights here")
    place = [*other_place(base, new)]
    for parity, side in zip(new.parity, SIDES, strict=True):
        if parity.applicable:
            yield _losses(base, new, side, work, same_machine=not place)
    apart = work + place + [*_other_source(base, new)]
    for change in changes_of(base, new, margin, calibrations):
        yield _times(change, margin, apart)


def _losses(
    base: Receipt, new: Receipt, side: Side, reasons: Sequence[str], same_machine: bool
) -> Aspect:
    name = f"losses {side}"
    one, two = _first_slot(base, side), _first_slot(new, side)
    if reasons or one is None or two is None:
        why = "; ".join(reasons) or "no slot finished"
        return Aspect(name=name, outcome="not comparable", reason=why)
    steps = min(len(one.losses), len(two.losses))
    pairs = list(zip(one.losses[:steps], two.losses[:steps], strict=True))
    different = [i for i, (x, y) in enumerate(pairs) if x != y]
    if not different:
        words = f"the same bits at all {steps} steps"
        if one.param_sha256 != two.param_sha256 and len(one.losses) == len(two.losses):
            outcome: Agreement = "disagree" if _bits(base, new, side, same_machine) else "agree"
            return Aspect(name=name, outcome=outcome, reason=f"{words}, other bits in parameters")
        return Aspect(name=name, outcome="agree", reason=words)
    worst = max(abs(x - y) / max(abs(x), abs(y), 1e-300) for x, y in pairs)
    if _bits(base, new, side, same_machine):
        words = f"the same module gave other losses from step {different[0]} on ({worst:.1e})"
        return Aspect(name=name, outcome="disagree", reason=words)
    close = worst <= TOLERANCE
    words = f"largest relative difference {worst:.1e} in {steps} steps, limit {TOLERANCE:.0e}"
    return Aspect(name=name, outcome="agree" if close else "disagree", reason=words)


def _first_slot(receipt: Receipt, side: Side) -> Slot | None:
    slots = (s for s in receipt.slots if s.side == side and s.status == "ok" and s.losses)
    return next(slots, None)


def _bits(base: Receipt, new: Receipt, side: Side, same_machine: bool) -> bool:
    """Whether the two have to be the same bits."""
    one, two = (r.plan.arms[SIDES.index(side)] for r in (base, new))
    module = one.expected.get("module_sha256")
    same = module is not None and module == two.expected.get("module_sha256")
    return same and (same_machine or one.options.get("simd") != "relaxed")


def _other_source(base: Receipt, new: Receipt) -> Iterator[str]:
    for one, two in zip(base.plan.arms, new.plan.arms, strict=True):
        if any(one.expected.get(key) != two.expected.get(key) for key in _KERNELS):
            yield f"arm {one.side} ran kernels from another source"


def _times(change: Change, margin: float, reasons: Sequence[str]) -> Aspect:
    name = "ratio" if change.of == "B against A" else f"time {change.of}"
    if reasons:
        return Aspect(name=name, outcome="not comparable", reason="; ".join(reasons))
    if change.low is None or change.high is None or change.change is None:
        why = change.reason or "no interval"
        return Aspect(name=name, outcome="not comparable", reason=why)
    overlaps = change.low <= 1 + margin and change.high >= 1 / (1 + margin)
    words = (
        f"{told_apart_from(change.change)} times the receipt's, 95% interval "
        f"{interval_text(change.low, change.high, (1.0, 1 + margin))}, margin {margin:.3g}"
    )
    if overlaps:
        if change.high > _WIDE * change.low:
            words += "; so wide an interval is weak evidence"
        return Aspect(name=name, outcome="agree", reason=words)
    if change.between_run_sd is None:
        return Aspect(name=name, outcome="not comparable", reason=f"{words}; {change.reason}")
    return Aspect(name=name, outcome="disagree", reason=words)

"""Reduced precision without a browser: limits, receipts' words, the report, the decision, text."""

import math
from typing import Any

import numpy as np
import pytest
import receipts
from receipts import parts

from driver import report
from driver.apart import no_gain
from driver.parity import gate_limits, gate_plans, precision_of, reduced_limits
from driver.plan import evaluator
from driver.precision import Evidence, Frozen, decide, greedy, precision_report
from driver.receipt import parse, verify
from driver.records import (
    LadderPair,
    LadderReport,
    ModelConfig,
    PrecisionRung,
    Rung,
)
from driver.reference import Reference
from driver.tensors import initial_state

PAIR = LadderPair(
    before="off", after="storage", budget_s=60, exit_code=0, ratio=1.2, low=1.1, high=1.3,
    confidence=0.95, word="faster", blocks=4, verdict="qualified", apart=no_gain("no kernels"),
)  # fmt: skip


def webgpu_pair(*precisions: str) -> receipts.Parts:
    """A good receipt whose arms are `webgpu` in these precisions, with the limits that belong."""
    built = parts(names=("webgpu", "webgpu"))
    arms = tuple(
        arm.model_copy(update={"options": arm.options | {"f16": precision}})
        for arm, precision in zip(built.plan.arms, precisions, strict=True)
    )
    gates = gate_plans(False, built.reference, arms, built.plan.config.n_layer)
    return built.with_plan(arms=arms, gates=gates, evaluator=evaluator())


def rungs(*labels: str, unsupported: str = "") -> tuple[Rung, ...]:
    return tuple(
        Rung(
            label=label, arm=f"webgpu:f16={label}", options={"f16": label},
            status="unsupported" if label == unsupported else "ok",
            reason="no shader-f16" if label == unsupported else None,
        )
        for label in labels
    )  # fmt: skip


def reported(built: receipts.Parts, pair: LadderPair = PAIR, **weights: Any) -> Any:
    receipt = parse(built.sealed())
    offered = rungs("off", "storage", "compute", unsupported="compute")
    frozen = Frozen.of(offered, receipt.plan.config, "2026-11-30T07:00:00.000000+00:00")
    seen = [Evidence("off", "storage", receipt, weights)]
    return precision_report(frozen, offered, [pair], seen, b"a corpus of some bytes and more")


# --------------------------------------------------------------------------- limits


def test_the_limits_are_these_numbers() -> None:
    """Frozen before anything ran in halves: a change of them is a change of what was promised."""
    assert reduced_limits("off", 6) == {}
    assert reduced_limits("storage", 3) == {
        "parity.grads": 5e-3, "parity.wide": 5e-3, "parity.params": 1e-2,
        "parity.first_loss": 1e-3, "curve.loss": 1e-2, "curve.grad_norm": 5e-2, "band.loss": 1e-2,
        "band.grad_norm": 5e-2, "final.params": 1e-1,
    }  # fmt: skip
    assert reduced_limits("compute", 3) == {
        "parity.grads": 2e-2, "parity.wide": 2e-2, "parity.params": 3e-2,
        "parity.first_loss": 3e-3, "curve.loss": 3e-2, "curve.grad_norm": 2e-1, "band.loss": 3e-2,
        "band.grad_norm": 2e-1, "final.params": 3e-1,
    }  # fmt: skip


@pytest.mark.parametrize("layers", [1, 2, 8, 24])
def test_less_precision_has_wider_limits_and_deeper_models_too(layers: int) -> None:
    plain, storage, compute = (gate_limits(p, layers) for p in ("off", "storage", "compute"))
    assert plain == gate_limits("off", layers + 5), "float32's do not depend on the model"
    for name, limit in plain.items():
        if name in reduced_limits("storage", layers):
            assert limit < storage[name] < compute[name] < 1
        else:
            assert limit == storage[name] == compute[name], name
    assert plain["parity.key_bias"] == 2e-6
    assert storage["parity.grads"] <= gate_limits("storage", layers + 20)["parity.grads"]


def test_limits_belong_to_the_side_that_computes_in_halves() -> None:
    built = webgpu_pair("off", "storage")
    limits = {gate.name: gate.limit for gate in built.plan.gates}
    default = {gate.name: gate.limit for gate in gate_plans(False, built.reference)}
    wider = reduced_limits("storage", built.plan.config.n_layer)
    for name, limit in limits.items():
        if name == "drift.loss":
            assert limit == default["curve.loss.A"] + wider["curve.loss"]
        elif name.endswith(".B") and name[:-2] in wider:
            assert limit == wider[name[:-2]]
            gate = next(g for g in built.plan.gates if g.name == name)
            assert gate.meaning.endswith("; f16 weights")
        else:
            assert limit == default[name], name


@pytest.mark.parametrize(
    ("options", "precision"),
    [({}, "off"), ({"f16": "off"}, "off"), ({"f16": "storage"}, "storage"), ({"f16": "x"}, "off")],
)
def test_precision_of_options(options: dict[str, Any], precision: str) -> None:
    assert precision_of(options) == precision


def test_a_receipt_names_its_precision_and_cannot_have_other_limits() -> None:
    built = webgpu_pair("off", "storage")
    data = built.sealed()
    assert verify(data, evaluator())[0] == []
    receipt = parse(data)
    assert "A float32, B f16 weights)" in receipt.verdict.headline
    assert "float32)" in parse(webgpu_pair("off", "off").sealed()).verdict.headline
    assert ", f16 weights)" in parse(webgpu_pair("storage", "storage").sealed()).verdict.headline
    generous = built.with_plan(
        gates=gate_plans(False, built.reference, built.plan.arms, built.plan.config.n_layer + 40)
    )
    assert any("plan/gates" in fault for fault in verify(generous.sealed(), evaluator())[0])


def test_float32_errors_pass_and_those_of_halves_fail_on_a_float32_side() -> None:
    """The wider limit is not a licence for the other arm."""
    for precisions, fails in ((("off", "off"), True), (("off", "storage"), False)):
        built = webgpu_pair(*precisions)
        points = [
            point.model_copy(update={"grads": {
                name: error.model_copy(update={"rel_l2": 1e-3})
                for name, error in point.grads.items()
            }})
            for point in built.parity[1].points
        ]  # fmt: skip
        receipt = parse(built.with_parity(1, points=tuple(points)).sealed())
        gate = next(g for g in receipt.gates if g.name == "parity.grads.B")
        assert (gate.status == "fail") == fails


@pytest.mark.parametrize(("ran", "status"), [("storage", "pass"), ("off", "fail")])
def test_what_ran_in_another_precision_fails_identity(ran: str, status: str) -> None:
    built = webgpu_pair("off", "storage")
    a, b = built.plan.arms
    b = b.model_copy(update={"expected": b.expected | {"f16": "storage"}})
    built = built.with_plan(arms=(a, b))
    for index, slot in enumerate(built.slots):
        if slot.side == "B":
            built = built.with_slot(index, ran=slot.ran | {"f16": ran})
    gate = next(g for g in parse(built.sealed()).gates if g.name == "identity.B")
    assert gate.status == status
    assert ("f16: ran 'off', configured 'storage'" in gate.reason) == (ran == "off")


# --------------------------------------------------------------------------- the report


def test_the_report_tells_errors_learning_memory_and_decision() -> None:
    built = webgpu_pair("off", "storage")
    for index, slot in enumerate(built.slots):
        memory = {"buffer_bytes": {"state": 1000, "halves": 500 if slot.side == "B" else 0}}
        built = built.with_slot(index, memory=memory)
    found = reported(built)
    off, storage, compute = found.rungs
    assert [rung.status for rung in found.rungs] == ["ok", "ok", "unsupported"]
    assert storage.memory_bytes["halves"] == 500
    assert {check.name for check in storage.checks} >= set(gate_limits("storage", 1))
    assert storage.drift is not None
    assert off.drift is None
    assert storage.nonfinite == 0
    assert storage.quality.reference_loss == pytest.approx(off.quality.reference_loss)
    assert abs(storage.quality.excess) < storage.quality.limit
    assert storage.text is None
    assert "no slot exported" in storage.text_reason
    assert compute.reasons == ("no shader-f16",)
    assert found.adopted == "storage"
    assert found.limits["storage"] == gate_limits("storage", 1)
    assert len(found.limits_sha256) == 64
    page = report.ladder(ladder_of(found), width=160)
    for words in ("precision", "adopted: storage", "f16 weights", "gradients, one step",
                  "compute not adopted: no shader-f16", "frozen 2026-11-30T07:00:00Z"):  # fmt: skip
        assert words in page


def ladder_of(found: Any) -> LadderReport:
    return LadderReport(
        axis="precision", meaning="half", arm="webgpu", preset={"name": "tiny"}, seed=1, blocks=4,
        budget_s=60, budget_rule="", machine={}, load_before={}, load_after={}, browser={},
        interrupted=False, rungs=rungs("off", "storage", "compute", unsupported="compute"),
        pairs=(PAIR,), fastest=None, fastest_apart=None, precision=found,
    )  # fmt: skip


def test_a_report_survives_its_json() -> None:
    found = ladder_of(reported(webgpu_pair("off", "storage")))
    assert LadderReport.model_validate_json(found.model_dump_json()) == found


def harmed(name: str) -> receipts.Parts:
    built = webgpu_pair("off", "storage")
    for index, slot in enumerate(built.slots):
        if slot.side != "B":
            continue
        losses = list(slot.losses)
        if name == "nan":
            losses[-1] = math.nan
        elif name == "learns worse":
            losses = [loss * (1 + 0.02 * (i > len(losses) // 2)) for i, loss in enumerate(losses)]
        built = built.with_slot(index, losses=losses)
    return built


@pytest.mark.parametrize("name", ["nan", "learns worse"])
def test_a_failure_of_numbers_or_behaviour_rejects_the_fastest(name: str) -> None:
    found = reported(harmed(name))
    assert found.adopted == "off"
    storage = found.rungs[1]
    assert storage.status == "failed"
    assert bool(storage.nonfinite) == (name == "nan")
    first = "finite" if name == "nan" else "learning"
    assert any(words.startswith(first) for words in storage.reasons)
    assert found.reasons[0].startswith("storage rejected: ")
    assert "storage rejected" in report.ladder(ladder_of(found), width=160)
    assert found.rungs[0].status == "ok", "the fault is B's alone"
    text = ladder_of(found).model_dump_json()
    assert LadderReport.model_validate_json(text).precision.adopted == "off"


@pytest.mark.parametrize(("code", "status"), [(4, "failed"), (1, "failed"), (2, "not run")])
def test_a_run_that_ended_before_its_receipt_keeps_its_reason(code: int, status: str) -> None:
    """A crash speaks against a precision, a budget that was too short does not."""
    broken = PAIR.model_copy(
        update={"exit_code": code, "ratio": None, "reasons": ("f16=storage: weights beyond 65504",)}
    )
    offered = rungs("off", "storage")
    config = receipts.CONFIG
    found = precision_report(Frozen.of(offered, config, "now"), offered, [broken], [], b"abc")
    assert found.rungs[1].status == status
    assert found.rungs[1].reasons == ("f16=storage: weights beyond 65504",)
    assert found.adopted == "off"
    assert found.hardware_fallback is None


# --------------------------------------------------------------------------- the decision


def rung(label: str, status: Any = "ok", *failures: str) -> PrecisionRung:
    return PrecisionRung(label=label, precision=label, status=status, reasons=failures)


def pair_of(before: str, after: str, low: float | None, **changes: Any) -> LadderPair:
    return PAIR.model_copy(
        update={"before": before, "after": after, "low": low, "ratio": 1.1, **changes}
    )


@pytest.mark.parametrize(
    ("lows", "statuses", "adopted"),
    [
        ((1.1, 1.1), ("ok", "ok"), "compute"),
        ((1.1, 0.9), ("ok", "ok"), "storage"),
        ((0.9, 1.3), ("ok", "ok"), "compute"),  # 1.17 times as fast as float32 at least
        ((0.8, 1.1), ("ok", "ok"), "off"),
        ((None, 1.3), ("ok", "ok"), "off"),
        ((1.1, 1.1), ("failed", "ok"), "off"),  # the first failure stops
        ((1.1, 1.1), ("not run", "ok"), "off"),  # faster than what did not run says nothing
        ((1.1, 1.1), ("ok", "failed"), "storage"),
        ((1.1, 1.1), ("ok", "unsupported"), "storage"),
        ((1.1, 1.1), ("unsupported", "ok"), "compute"),
    ],
)
def test_the_lowest_precision_that_passes_and_wins(
    lows: tuple[float | None, ...], statuses: tuple[str, ...], adopted: str
) -> None:
    found = [rung("off"), rung("storage", statuses[0], "why"), rung("compute", statuses[1], "why")]
    pairs = [pair_of("off", "storage", lows[0]), pair_of("storage", "compute", lows[1])]
    label, reasons = decide(found, pairs)
    assert label == adopted
    assert len(reasons) == 2, "every loser keeps its reason"


def test_a_pair_without_a_claim_adopts_nothing() -> None:
    failed = pair_of("off", "storage", 1.5, verdict="failed", reasons=("too warm",))
    label, reasons = decide([rung("off"), rung("storage")], [failed])
    assert label == "off"
    assert "too warm" in reasons[0]


def test_float32_itself_failing_stops_everything() -> None:
    found = [rung("off", "failed", "wrong"), rung("storage")]
    label, reasons = decide(found, [pair_of("off", "storage", 1.5)])
    assert label == "off"
    assert reasons == ("off itself failed: wrong", "storage not adopted: off failed before it")


# --------------------------------------------------------------------------- text


def test_greedy_text_is_what_the_model_has_learned() -> None:
    config = ModelConfig(
        n_layer=1, n_head=2, d_model=16, d_ff=32, ctx=8, batch=4, vocab=256, lr=1e-2, beta1=0.9,
        beta2=0.95, eps=1e-8, weight_decay=0.0, grad_clip=1.0,
    )  # fmt: skip
    text = b"abcdefg " * 40
    model = Reference(config, initial_state(config, 1))
    data = np.frombuffer(text, np.uint8).astype(np.int32)
    rng = np.random.default_rng(1)
    for _ in range(150):
        at = rng.integers(0, 200, 4)
        model.step(np.stack([data[i : i + 9] for i in at]))
    assert greedy(config, model.params, b"abcd", 20) == b"efg abcdefg abcdefg "


def test_text_of_weights_that_are_no_numbers_is_refused() -> None:
    config = receipts.CONFIG
    built = webgpu_pair("off", "storage")
    assert config.vocab < 256
    found = reported(built, B=initial_state(config, 1))
    assert "vocabulary of 5" in found.rungs[1].text_reason

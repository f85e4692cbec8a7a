"""Receipts: sealed, read back, verified; changed, forged and hostile ones refused."""

import contextlib
import copy
import hashlib
import json
import math
import os
import random
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import receipts
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from receipts import EVALUATOR

from driver import receipt, report, store
from driver.errors import ReceiptError, UsageError
from driver.records import Evaluator, Plan

RUNS = receipts.everything()
SEALED = {name: run.sealed() for name, run in RUNS.items()}
GOOD = SEALED["good"]
Json = Any


def verify(data: Json) -> list[str]:
    return receipt.verify(data, EVALUATOR)[0]


def copied(data: Json = GOOD) -> Json:
    return copy.deepcopy(data)


def resealed(data: Json) -> Json:
    """As a forger would leave it: the digest recomputed."""
    return data | {"digest": receipt.digest(data)}


def refrozen(data: Json) -> Json:
    """A more careful forger: the plan's digest recomputed and echoed by every slot."""
    plan = Plan.model_validate(data["plan"])
    data["plan"]["sha256"] = receipt.plan_digest(plan)
    for slot in data["slots"]:
        slot["ran"]["plan_sha256"] = data["plan"]["sha256"]
    return resealed(data)


# --------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", RUNS)
def test_what_is_sealed_is_valid_when_read_back(name: str, tmp_path: Path) -> None:
    run, path = RUNS[name], tmp_path / "r.receipt.json"
    store.write_json(path, receipt.assemble(
        run.plan, run.subject, run.environment, run.reference, run.parity, run.slots
    ))  # fmt: skip
    data = store.read_json(path)
    assert data == SEALED[name]
    assert receipt.verify(data, EVALUATOR) == ([], [])
    read = receipt.parse(data)
    assert repr(read.slots) == repr(run.slots)  # NaN is not equal to itself
    assert read.plan == run.plan


@pytest.mark.parametrize(
    ("name", "status"),
    {
        "good": "qualified", "software": "unqualified", "required": "failed", "failed": "failed",
        "no slots": "failed", "one block": "unqualified", "odd": "unqualified",
        "six": "qualified", "not finite": "failed", "failed, not finite": "failed",
        "null": "unqualified", "wasm": "unqualified",
    }.items(),
)  # fmt: skip
def test_verdicts(name: str, status: str) -> None:
    assert SEALED[name]["verdict"]["status"] == status


def test_top_level_keys() -> None:
    assert list(GOOD) == [
        "format", "plan", "subject", "environment", "reference", "parity", "slots", "comparison",
        "gates", "verdict", "nonfinite", "digest",
    ]  # fmt: skip


def test_numbers_that_json_lacks_are_listed() -> None:
    data = SEALED["not finite"]
    first = next(i for i, slot in enumerate(data["slots"]) if slot["side"] == "B")
    kinds = {entry["path"]: entry["kind"] for entry in data["nonfinite"]}
    assert kinds[f"/slots/{first}/losses/5"] == "NaN"
    assert kinds[f"/slots/{first}/losses/6"] == "Infinity"
    assert kinds[f"/slots/{first}/losses/7"] == "-Infinity"
    assert data["slots"][first]["losses"][5:8] == [None, None, None]
    assert "NaN" not in json.dumps({k: v for k, v in data.items() if k != "nonfinite"})


def test_large_integers_become_strings() -> None:
    memory = {"big": 2**53, "edge": 2**53 - 1, "low": -(2**60), "yes": True}
    data = RUNS["good"].with_slot(0, memory=memory).sealed()
    assert data["slots"][0]["memory"] == {
        "big": "9007199254740992", "edge": 2**53 - 1, "low": str(-(2**60)), "yes": True,
    }  # fmt: skip
    assert verify(data) == []


def test_reasons_quote_what_the_receipt_holds() -> None:
    # What cannot be written is replaced before the gates are judged, not after.
    run = RUNS["good"]
    for odd in (2**60, "\ud800 half a pair", (1, 2), math.nan):
        data = run.with_slot(0, ran=run.slots[0].ran | {"arm": odd}).sealed()
        assert data["verdict"]["status"] == "failed"
        assert verify(data) == []


def test_half_a_pair_from_a_page_costs_no_receipt() -> None:
    run = receipts.failed_slot(RUNS["good"])
    failure = run.slots[2].failure
    assert failure is not None
    lost = failure.model_copy(update={"message": "\udc00 lost \ud83d\ude00"})
    data = run.with_slot(2, failure=lost, page={"\ud800": "x"}).sealed()
    assert data["slots"][2]["failure"]["message"] == "\N{REPLACEMENT CHARACTER} lost 😀"
    assert verify(data) == []


# --------------------------------------------------------------------------- digest


def shuffled(value: Json, rng: random.Random) -> Json:
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: shuffled(item, rng) for key, item in items}
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


def test_the_digest_knows_no_order_and_no_layout(tmp_path: Path) -> None:
    data = shuffled(GOOD, random.Random(1))
    assert list(data) != list(GOOD)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data, indent=7, ensure_ascii=True), encoding="utf-8")
    assert receipt.digest(store.read_json(path)) == GOOD["digest"]
    assert verify(store.read_json(path)) == []


def test_the_digest_knows_numbers_not_their_spelling(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    text = json.dumps(GOOD)
    assert '"budget_s": 600.0' in text
    path.write_text(text.replace('"budget_s": 600.0', '"budget_s": 6.00e2'), encoding="utf-8")
    assert verify(store.read_json(path)) == []
    path.write_text(text.replace('"budget_s": 600.0', '"budget_s": 600'), encoding="utf-8")
    assert verify(store.read_json(path)) == []
    path.write_text(text.replace('"budget_s": 600.0', '"budget_s": 600.5'), encoding="utf-8")
    assert verify(store.read_json(path)) != []


def test_the_digest_is_that_of_rfc_8785() -> None:
    # printf '{"a":[1e+21,1e-7,"€"],"b":1}' | sha256sum
    assert receipt.digest({"b": 1.0, "a": [1e21, 1e-7, "€"], "digest": "x"}) == (
        "8e2df0db977c383092cd241bb8206e2bb4b68adad459a683076009c7cddc20cc"
    )


def test_the_evaluator_is_a_remark() -> None:
    faults, remarks = receipt.verify(GOOD, Evaluator(version="9", sha256="0" * 64))
    assert faults == []
    assert len(remarks) == 1
    assert "evaluator changed" in remarks[0]


# --------------------------------------------------------------------------- single changes


def leaves(value: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all leaves; an empty list or object is one."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, (*path, key))
    else:
        yield path


def kind(path: tuple[str | int, ...]) -> tuple[str, ...]:
    return tuple("*" if isinstance(key, int) else key for key in path)


def other(value: Json) -> list[Json]:
    """A few values that differ from `value`."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int | float):
        return [value + 1, value * (1 + 1e-12) if value else 1e-12, None]
    if isinstance(value, str):
        return [value + "x", "", None]
    return ["x", 1.5] if value is None else [["x"], None]


def target(data: Json, path: tuple[str | int, ...]) -> Json:
    for key in path[:-1]:
        data = data[key]
    return data


def check_change(data: Json, path: tuple[str | int, ...], most: int = 9) -> None:
    holder = target(data, path)
    before = holder[path[-1]]
    for value in [value for value in other(before) if value != before][:most]:
        holder[path[-1]] = value
        assert verify(data) != [], (path, before, value)
    if isinstance(holder, dict):
        del holder[path[-1]]
        assert verify(data) != [], (path, before, "removed")
    holder[path[-1]] = before


@pytest.mark.parametrize("name", ["one block", "failed, not finite"])
def test_one_leaf_of_every_kind(name: str) -> None:
    data = copied(SEALED[name])
    by_kind = {kind(path): path for path in leaves(data)}
    assert len(by_kind) > 200
    for path in by_kind.values():
        check_change(data, path, most=1)
    assert data == SEALED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["good", "one block", "failed, not finite", "null"])
def test_every_leaf(name: str) -> None:
    data = copied(SEALED[name])
    for path in list(leaves(data)):
        check_change(data, path, most=2)
    assert verify(data) == []


def test_an_added_field() -> None:
    for path in ((), ("plan",), ("slots", 3), ("slots", 3, "ran"), ("verdict",)):
        data = copied()
        target(data, (*path, "x"))["note"] = "hello"
        assert verify(data) != [], path


# --------------------------------------------------------------------------- profiles


PROFILE = ("plan", "arms", 0, "profile")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("cost",), 1.0, "plan/arms/0/profile/cost is 1.0"),
        (("uncovered_ms",), 0.0, "plan/arms/0/profile/uncovered_ms"),
        (("ops", 1, "ms"), 0.5, "plan/arms/0/profile/ops/1/ms"),
        (("ops", 0, "flops"), 1, "plan/arms/0/profile/ops/0/flops"),
        (("ops", 2, "op"), "sgd", "plan/arms/0/profile/ops/2/op"),
        (("samples", "profiled_ms", 2), 1.0, "plan/arms/0/profile/"),
        (("samples", "ops", 0, "calls"), 9, "plan/arms/0/profile/ops/0/calls"),
        (("samples", "steps"), 0, "plan/arms/0/profile/samples/steps should be "),
        (("samples", "plain_ms", 0), None, "plan/arms/0/profile/samples/plain_ms/0 should be "),
        (
            ("samples", "plain_ms"),
            [1.0] * 5000,
            "plan/arms/0/profile/samples/plain_ms should have ",
        ),
        (("ops", 0, "ms"), None, "plan/arms/0/profile/ops/0/ms should be "),
    ],
)
def test_a_forged_profile(path: tuple[str | int, ...], value: Json, said: str) -> None:
    """Whatever its digests say: what is derived is derived again."""
    data = copied()
    target(data, (*PROFILE, *path))[path[-1]] = value
    with contextlib.suppress(ValidationError):
        refrozen(data)
    faults = verify(resealed(data))
    assert any(said in fault for fault in faults), faults[:5]


def test_a_receipt_from_before_there_were_profiles() -> None:
    """Its plan was hashed without the fields that came later."""
    data = copied(SEALED["null"])
    for arm in data["plan"]["arms"]:
        for later in ("roofline", "profile", "profile_reason"):
            del arm[later]
    old = {key: value for key, value in data["plan"].items() if key != "sha256"}
    data["plan"]["sha256"] = hashlib.sha256(rfc8785.dumps(old)).hexdigest()
    for slot in data["slots"]:
        slot["ran"]["plan_sha256"] = data["plan"]["sha256"]
    assert verify(resealed(data)) == []
    assert receipt.parse(resealed(data)).plan.arms[0].profile is None


# --------------------------------------------------------------------------- forgeries


def set_at(*path: str | int, to: Json) -> Callable[[Json], None]:
    def change(data: Json) -> None:
        target(data, path)[path[-1]] = to

    return change


def scaled(*path: str | int, by: float) -> Callable[[Json], None]:
    def change(data: Json) -> None:
        target(data, path)[path[-1]] *= by

    return change


def reorder_slots(data: Json) -> None:
    data["slots"][1], data["slots"][2] = data["slots"][2], data["slots"][1]


def gate_at(data: Json, name: str) -> int:
    return next(i for i, gate in enumerate(data["gates"]) if gate["name"] == name)


SOFTWARE = SEALED["software"]
FORGERIES: dict[str, tuple[Callable[[Json], None], str]] = {
    "ratio": (scaled("comparison", "estimate", "ratio", by=1.001), "comparison/estimate/ratio"),
    "low": (scaled("comparison", "estimate", "low", by=1.0001), "comparison/estimate/low"),
    "no interval": (set_at("comparison", "estimate", "high", to=None), "comparison/estimate/high"),
    "word": (set_at("comparison", "estimate", "word", to="slower"), "comparison/estimate/word"),
    "blocks": (set_at("comparison", "estimate", "blocks", to=40), "comparison/estimate/blocks"),
    "median": (scaled("comparison", "arms", 1, "median_step_ms", by=0.9),
               "comparison/arms/1/median_step_ms"),
    "gflops": (scaled("comparison", "arms", 0, "gflops", by=2), "comparison/arms/0/gflops"),
    "block": (scaled("comparison", "blocks", 2, "log_ratio", by=1.01),
              "comparison/blocks/2/log_ratio"),
    "drift": (set_at("comparison", "drift", "loss", to=0.0), "comparison/drift/loss"),
    "curve": (set_at("comparison", "curve_errors", "B", "loss", to=0.0),
              "comparison/curve_errors/B/loss"),
    "repeat": (set_at("comparison", "slots_repeat", "A", to=False), "comparison/slots_repeat/A"),
    "gate": (set_at("gates", 3, "status", to="not-applicable"), "gates/3/status"),
    "measured": (set_at("gates", 0, "measured", to=0.0), "gates/0/measured"),
    "gate limit": (set_at("gates", 0, "limit", to=1.0), "gates/0/limit"),
    "gate removed": (lambda data: data["gates"].pop(), "gates has"),
    "verdict": (set_at("verdict", "status", to="unqualified"), "verdict/status"),
    "reason": (set_at("verdict", "reasons", to=["all is well"]), "verdict/reasons"),
    "headline": (set_at("verdict", "headline", to="WebGPU is 900 times faster"),
                 "verdict/headline"),
    "plan limit": (set_at("plan", "gates", 0, "limit", to=1.0), "plan/sha256"),
    "margin": (set_at("plan", "margin", to=0.5), "plan/sha256"),
    "seed": (set_at("plan", "seed", to=12), "plan/sha256"),
    "question": (set_at("plan", "question", to="Which is best?"), "plan/sha256"),
    "order": (set_at("plan", "order", 0, to=["A", "A", "B", "B"]), "plan/sha256"),
    "slot order": (reorder_slots, "gates/"),
    "slot twice": (lambda data: data["slots"].insert(4, data["slots"][3]),
                   "slots has 17 entries, planned were 16"),
    "slot removed": (lambda data: data["slots"].pop(5), "comparison/"),
    "block removed": (lambda data: data["slots"].__delitem__(slice(12, 16)), "comparison/blocks/3"),
    "window": (scaled("slots", 3, "windows_ms", 1, by=3), "comparison/"),
    "steps per window": (set_at("slots", 3, "steps_per_window", to=8), "gates/"),
    "loss": (scaled("slots", 6, "losses", 9, by=1.01), "comparison/curve_errors/"),
    "side": (set_at("slots", 0, "side", to="A"), "comparison/"),
    "status": (set_at("slots", 0, "status", to="failed"), "comparison/blocks/0"),
    "echo": (set_at("slots", 2, "ran", "arm", to="numpy"), "gates/"),
    "slot's arm": (set_at("slots", 2, "arm", to="wasm:simd=off"), "slots/2/arm"),
    "reference": (scaled("reference", "losses", 4, by=1.001), "comparison/curve_errors/"),
    "short reference": (set_at("reference", "losses", to=[1.61]), "reference/losses has 1 steps"),
    "parity": (set_at("parity", 0, "points", 0, "grads", "wte", "rel_l2", to=0.5), "gates/0/"),
    "parity's side": (set_at("parity", 0, "side", to="B"), "parity/0/side is B, expected A"),
    "parity left out": (set_at("parity", 1, "applicable", to=False), "gates/"),
    "export": (set_at("parity", 1, "export_equal", to=False), "gates/"),
    "others' share": (set_at("environment", "others_cpu", "shares", to=[0.5]), "gates/"),
    "no share": (set_at("environment", "others_cpu", to=None), "gates/"),
    "frozen late": (set_at("plan", "frozen_utc", to="2026-11-30T07:30:00.000000+00:00"),
                    "slots/0 started before the plan was frozen"),
    "started early": (set_at("slots", 5, "started_utc", to="2026-11-30T07:01:01.000000+00:00"),
                      "slots/5 started before slot 4 started"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forger_who_recomputes_the_digest(name: str) -> None:
    change, place = FORGERIES[name]
    data = copied()
    change(data)
    faults = verify(resealed(data))
    assert any(place in fault for fault in faults), faults[:5]
    assert not any(fault.startswith("digest") for fault in faults)


def test_a_weaker_limit_in_a_plan_frozen_again() -> None:
    data = copied()
    data["plan"]["gates"][0]["limit"] = data["gates"][0]["limit"] = 1.0
    faults = verify(refrozen(data))
    assert any(fault.startswith("plan/gates/0/limit is 1.0") for fault in faults), faults


def test_a_gate_taken_out_of_a_plan_frozen_again() -> None:
    data = copied(SOFTWARE)
    at = gate_at(data, "adapter")
    del data["plan"]["gates"][at], data["gates"][at]
    data["verdict"] |= {"status": "qualified", "reasons": []}
    faults = verify(refrozen(data))
    assert any(fault.startswith("plan/gates") for fault in faults), faults


def test_a_software_adapter_called_hardware() -> None:
    data = copied(SOFTWARE)
    data["environment"] |= {"adapter_verdict": "hardware", "adapter_reasons": ["nvidia"]}
    at = gate_at(data, "adapter")
    data["gates"][at] = copied()["gates"][at] | {"reason": "hardware adapter (nvidia)"}
    headline = data["verdict"]["headline"].replace("software adapter", "hardware adapter")
    data["verdict"] |= {"status": "qualified", "reasons": [], "headline": headline}
    first, *others = verify(resealed(data))
    assert first == "environment/adapter_verdict is hardware, its signals give software"
    assert others and all(line.startswith("environment/adapter_reasons") for line in others)


def test_a_software_adapter_with_the_names_of_a_gpu() -> None:
    """Names changed in all three places: its speed, which the plan holds, still tells."""
    data, good = copied(SOFTWARE), copied()
    for key in ("adapter", "browser", "features", "adapter_verdict", "adapter_reasons"):
        data["environment"][key] = good["environment"][key]
    for slot in data["slots"]:
        slot["adapter"] = slot["adapter"] and good["environment"]["adapter"]
    assert "environment/adapter_verdict is hardware, its signals give unknown" in verify(
        resealed(data)
    )


def test_sides_that_do_not_fit() -> None:
    for run in ("good", "wasm"):
        data = copied(SEALED[run])
        data["plan"]["arms"].reverse()
        faults = verify(refrozen(data))
        assert "plan/arms/0/side is B, expected A" in faults


# --------------------------------------------------------------------------- hostile input


def hostile(data: Json, show: bool = True) -> list[str]:
    """The faults; whatever it is, no traceback from verify, parse or report."""
    faults, remarks = receipt.verify(data, EVALUATOR)
    for line in (*faults, *remarks):
        assert "\x1b" not in line
        line.encode("utf-8")
    try:
        parsed = receipt.parse(data)
    except ReceiptError as error:
        assert faults
        str(error).encode("utf-8")
    else:
        if show:
            report.text(parsed).encode("utf-8")
    return faults


@pytest.mark.parametrize("data", [None, 1, 1.5, True, "x", [], [GOOD], {}, {"format": None}])
def test_not_a_receipt(data: Json) -> None:
    assert len(hostile(data)) == 1


@pytest.mark.parametrize(
    "found", [None, "driver-receipt/2", "driver-receipt/0", "", 1, ["driver-receipt/1"], {}]
)
def test_another_format(found: Json) -> None:
    assert "this version reads 'driver-receipt/1'" in hostile(GOOD | {"format": found})[0]


ODD: list[Json] = [
    None, True, 0, -1, 2**53, 1.5, -0.0, 1e308, "", "NaN", "\x1b[2J", "\ud800", [], {}, [[]],
    {"": None}, [None, "x", 3], {"\x1b[31m": {"\ud800": 1}},
]  # fmt: skip


def places(data: Json) -> list[tuple[str | int, ...]]:
    """One path to every kind of leaf, list and object."""
    found = {kind(path[:n]): path[:n] for path in leaves(data) for n in range(1, len(path) + 1)}
    return list(found.values())


def check_odd(path: tuple[str | int, ...], value: Json, show: bool) -> None:
    data = copied_along(ODD_BASE, path)
    target(data, path)[path[-1]] = value
    try:
        hostile(data, show)
    except Exception as error:
        raise AssertionError((path, value)) from error


ODD_BASE = SEALED["failed, not finite"]


def test_wrong_types_everywhere() -> None:
    for i, path in enumerate(places(ODD_BASE)):
        for value in (ODD[i % len(ODD)], ODD[7 * i % len(ODD)]):
            check_odd(path, value, show=i % 10 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("value", ODD, ids=ascii)
def test_every_wrong_type_everywhere(value: Json) -> None:
    for path in places(ODD_BASE):
        check_odd(path, value, show=True)


def copied_along(data: Json, path: tuple[str | int, ...]) -> Json:
    """A copy of what lies on the path; the rest is shared, which makes it fast."""
    top = data = copy.copy(data)
    for key in path[:-1]:
        data[key] = copy.copy(data[key])
        data = data[key]
    return top


NOWHERE: list[Json] = [
    {"path": "/slots/99/losses/0", "kind": "NaN"},
    {"path": "/slots/-1/losses/0", "kind": "NaN"},
    {"path": "/slots/0/losses/x", "kind": "NaN"},
    {"path": "/slots/0/losses/" + "9" * 5000, "kind": "NaN"},
    {"path": "/slots/٠/losses/0", "kind": "NaN"},
    {"path": "/no/such", "kind": "NaN"},
    {"path": "/digest/0", "kind": "NaN"},
    {"path": "/plan/seed/0", "kind": "NaN"},
    {"path": "/slots/0/losses/0", "kind": "NaN"},
    {"path": "/\x1b[2J", "kind": "NaN"},
    {"path": "/slots", "kind": "Infinity"},
    {"path": "", "kind": "NaN"},
    {"path": "/", "kind": "NaN"},
    {"path": "slots/0", "kind": "NaN"},
    {"path": None, "kind": "NaN"},
    {"path": "/slots/0/failure", "kind": "nan"},
    {"path": "/slots/0/failure", "kind": ["NaN"]},
    {"path": "/slots/0/failure", "kind": {}},
    {"path": "/slots/0/failure", "kind": None},
    {"path": "/slots/0/failure"},
    {"kind": "NaN"},
    "NaN",
    None,
    [],
    7,
]


@pytest.mark.parametrize("entry", NOWHERE, ids=lambda entry: ascii(entry)[:60])
def test_a_pointer_to_nowhere(entry: Json) -> None:
    faults = hostile(resealed(GOOD | {"nonfinite": [entry]}))
    assert faults[0].startswith("nonfinite")


@pytest.mark.parametrize("entries", [None, {}, "x", 3, {"path": "/x"}])
def test_nonfinite_that_is_no_list(entries: Json) -> None:
    assert hostile(resealed(GOOD | {"nonfinite": entries})) == ["nonfinite is not a list"]


def test_a_number_cannot_be_put_where_none_belongs() -> None:
    for path in ("/slots/0/failure", "/environment/features/webgl_renderer"):
        assert hostile(resealed(GOOD | {"nonfinite": [{"path": path, "kind": "NaN"}]}))


def test_numbers_that_are_none_but_not_listed() -> None:
    data = copied(SEALED["not finite"])
    data["nonfinite"].pop()
    assert hostile(resealed(data))
    data = copied()
    data["slots"][0]["losses"][0] = math.nan
    assert hostile(data)


@pytest.mark.parametrize(
    "change",
    [
        set_at("slots", 0, "steps_per_window", to=0),
        set_at("slots", 0, "steps_per_window", to=-4),
        set_at("slots", 0, "windows_ms", to=[1e-308, 1e308, 1e308]),
        set_at("plan", "margin", to=-1.0),
        set_at("plan", "margin", to=-7.5),
        set_at("plan", "order", to=[]),
        set_at("environment", "browser", "gpu_devices", to=[{"deviceId": "x", "vendorId": []}]),
        set_at("environment", "browser", "gpu_devices", to="x"),
        set_at("environment", "features", "webgl_renderer", to=7),
        set_at("plan", "arms", 1, "expected", to={"wgsl_sha256": "x"}),
        set_at("environment", "machine", to={"cores_logical": 10**15}),
    ],
)
def test_values_that_cannot_be_evaluated(change: Callable[[Json], None]) -> None:
    data = copied()
    change(data)
    for slot in data["slots"]:
        slot["ran"]["wgsl_sha256"] = {"x": "y"}
    assert hostile(data)
    assert hostile(resealed(data))


def nested(depth: int) -> Json:
    value: Json = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [200, 900, 5000, 50_000])
def test_deep_nesting(depth: int) -> None:
    for path in (("slots", 0, "memory"), ("plan", "preset"), ("nonfinite", 0), ("format",)):
        data = copied()
        data["nonfinite"] = [{"path": "/x", "kind": "NaN"}]
        value = nested(depth) if path[-1] in ("format", 0) else {"x": nested(depth)}
        target(data, path)[path[-1]] = value
        assert hostile(data)


# --------------------------------------------------------------------------- files


def unreadable(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ReceiptError) as error:
        store.read_json(path)
    assert str(path) in str(error.value)
    assert error.value.exit_code == 2
    return str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not the JSON"),
        ("{", "not the JSON"),
        ('{"a": 1,}', "not the JSON"),
        ("{'a': 1}", "not the JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": Infinity}', "Infinity is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": 1e999}', "the number 1e999 is beyond float64"),
        ('{"a": -1e999}', "the number -1e999"),
        ('{"a": 9007199254740992}', "2^53 or more"),
        ('{"a": -9007199254740992}', "2^53 or more"),
        ('{"a": ' + "9" * 10_000 + "}", "2^53 or more"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', "the key 'c' stands twice"),
        ('{"\\u001b[2J": 1, "\\u001b[2J": 2}', r"the key '\x1b[2J' stands twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (b"\xff\xfe{}", "cannot be read"),
        ('{"a": "\N{EURO SIGN}"}'.encode("latin-1", "replace")[:-3] + b"\xe9", "cannot be read"),
        ("\ufeff{}", "not the JSON"),
        (b'{"a": "\xed\xa0\x80"}', "cannot be read"),
        ('{"a": "\x00"}', "not the JSON"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_text_that_is_no_receipt(tmp_path: Path, content: bytes | str, said: str) -> None:
    assert said in unreadable(tmp_path / "r.json", content)


def test_truncated_anywhere(tmp_path: Path) -> None:
    text = json.dumps(GOOD)
    for length in range(0, len(text) - 1, len(text) // 40):
        unreadable(tmp_path / "r.json", text[:length])


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, Path("a\0b")):
        with pytest.raises(ReceiptError, match="cannot be read"):
            store.read_json(path)


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.json").write_text(" " * 1001)
    monkeypatch.setattr(store, "MAX_BYTES", 1000)
    with pytest.raises(ReceiptError, match="at most 1000 bytes"):
        store.read_json(tmp_path / "r.json")


def test_what_is_no_regular_file() -> None:
    """Reading it might never end. Folders are short, since a socket's path may not be long."""
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listening:
        pipe, door, link = (Path(name) / kind for kind in ("pipe", "socket", "link"))
        os.mkfifo(pipe)
        listening.bind(str(door))
        link.symlink_to(pipe)
        for path in (pipe, door, link, Path("/dev/zero")):
            if path.exists():
                with pytest.raises(ReceiptError, match="not a regular file"):
                    store.read_json(path)


def test_the_largest_integer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"a": 9007199254740991, "b": -9007199254740991}')
    assert store.read_json(path) == {"a": 2**53 - 1, "b": -(2**53) + 1}


def test_lone_surrogates_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for place in ('"How much faster?"', '"a warning"', '"chromium"', '"GeForce"', '"mini"'):
        text = json.dumps(GOOD)
        path.write_text(text.replace(place, r'"\ud800\u001b[2J"'))
        assert hostile(store.read_json(path)) or place not in text


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_mutated_file(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(MUTABLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from(PIECES))
        cut = data.draw(st.sampled_from([0, 1, 1, 1, 20]))
        content[place : place + cut] = piece
    path = tmp_path / "r.json"
    path.write_bytes(content)
    try:
        read = store.read_json(path)
    except ReceiptError:
        return
    assert hostile(read) or read == SEALED["failed"]


MUTABLE = json.dumps(SEALED["failed"]).encode()
PIECES = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"1e999", b"-", b"0", b"true", b"\\u"]


# --------------------------------------------------------------------------- writing


def test_a_write_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out" / "r.json"
    path.parent.mkdir()
    store.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        store.write_json(path, {"a": math.nan})
    with pytest.raises(UnicodeEncodeError):
        store.write_text(path, "\ud800")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in path.parent.iterdir()] == ["r.json"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for attempt in (
        lambda: store.write_json(blocked / "r.json", {}),
        lambda: store.check_writable(blocked),
    ):
        with pytest.raises(UsageError, match="cannot be written"):
            attempt()


def test_a_plan_is_frozen_once() -> None:
    plan = RUNS["good"].plan
    assert plan.sha256 == receipt.plan_digest(plan)
    assert receipt.frozen(plan) == plan
    changed = replace(RUNS["good"], plan=plan.model_copy(update={"margin": 0.03}))
    assert receipt.plan_digest(changed.plan) != plan.sha256


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    """A pipe, a device or a folder stays what it is; a link is followed to its file."""
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    for path in (pipe, tmp_path, tmp_path / "none" / "r.json"):
        with pytest.raises(UsageError):
            store.write_text(path, "x")
    assert pipe.is_fifo()
    store.write_text(link, "x")
    assert link.is_symlink()
    assert file.read_text() == "x"


# --------------------------------------------------------------------------- the canonical form


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**70), 2**70).map(float)
    | st.text()
    | st.text('"\\1.0e+-16,:[]{} \n\x7f\u2028\ue000\U0001f600\0u')
    | st.floats(9e-7, 2e-5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.text('"\\0u\0'), inner),
    max_leaves=20,
)


@given(_JSON)
def test_the_canonical_form_is_that_of_rfc_8785(data: Any) -> None:
    assert receipt.canonical(data) == rfc8785.dumps(data)


@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, 1.0, 1e15, 1e16, 1.5e16, 1e20, 1e21, 1.25e22, 9007199254740991, -9007199254740991,
     1e-4, 1e-5, 1.5e-6, 1e-7, 5e-324, 1.7976931348623157e308, 0.1234567890123456, 10.05, 100.0],
)  # fmt: skip
def test_numbers_as_rfc_8785_writes_them(value: float) -> None:
    for data in (value, [value, value], {"a": value, "1.0": f"{value},1.0e-5"}):
        assert receipt.canonical(data) == rfc8785.dumps(data)


@pytest.mark.parametrize("value", [2**53, -(2**53), 10**20, math.nan, math.inf, "\ud800", {1, 2}])
def test_what_has_no_canonical_form(value: Any) -> None:
    for make in (receipt.canonical, rfc8785.dumps):
        with pytest.raises((rfc8785.CanonicalizationError, UnicodeEncodeError)):
            make([value])


def test_the_canonical_form_of_a_receipt() -> None:
    data = receipts.parts().sealed()
    assert receipt.canonical(data) == rfc8785.dumps(data)

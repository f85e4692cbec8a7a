"""`driver verify` on what a stranger sends: answers, other evaluators, mutations, rebuilding."""

import hashlib
import json
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import receipts
from receipts import EVALUATOR

from driver import build, presets, rebuild, store
from driver import corpus as corpora
from driver.cli import receipts as receipt_commands
from driver.errors import BuildError
from driver.plan import evaluator
from driver.presets import Preset
from driver.receipt import digest, examine
from driver.records import Artifact, Evaluator, Subject
from driver.workload import Workload

RUNS = receipts.everything()
SEALED = {name: run.sealed() for name, run in RUNS.items()}
OTHER = Evaluator(version="0.0.9", sha256="0" * 64)
Json = Any
Verify = Callable[..., tuple[int, str]]


@pytest.fixture
def verify(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> Verify:
    """`driver verify` of a file with this content; gives exit code and everything printed."""
    monkeypatch.setattr(receipt_commands, "evaluator", lambda: EVALUATOR)

    def run(content: bytes | Json, *flags: str) -> tuple[int, str]:
        path = tmp_path / "r.receipt.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        code, out, err = driver("verify", path, *flags)
        return code, out + err

    return run


# --------------------------------------------------------------------------- answers


def test_valid(verify: Verify) -> None:
    code, printed = verify(SEALED["good"])
    assert code == 0
    assert "r.receipt.json: valid" in printed


def resealed(data: Json) -> Json:
    return data | {"digest": digest(data)}


def copied(name: str = "good") -> Json:
    return json.loads(json.dumps(SEALED[name]))


def test_another_evaluator_that_agrees() -> None:
    found = examine(SEALED["good"], OTHER)
    assert found.status == "valid"
    assert "it comes to the same" in found.remarks[0]


def test_another_evaluator_that_comes_to_something_else() -> None:
    """Neither valid nor a proved lie: the answer says which, and no forger gets `valid` from it."""
    data = copied()
    data["comparison"]["estimate"]["low"] *= 1.01
    data["gates"][0]["measured"] = 0.0
    data["verdict"]["headline"] = "WebGPU is 900 times faster"
    found = examine(resealed(data), OTHER)
    assert (found.status, found.faults) == ("unconfirmed", ())
    places = [line.split(" is ")[0] for line in found.unconfirmed]
    assert places == ["comparison/estimate/low", "verdict/headline", "gates/0/measured"]
    assert "3 of them differ" in found.remarks[0]
    assert examine(resealed(data), EVALUATOR).status == "invalid"


def test_what_the_format_fixes_is_checked_under_any_evaluator() -> None:
    for path in (("arms", 1, "median_step_ms"), ("blocks", 0, "log_ratio")):
        data = copied()
        name, index, key = path
        data["comparison"][name][index][key] *= 0.9
        assert examine(resealed(data), OTHER).status == "invalid"


def test_the_exit_code_of_unconfirmed(verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    data = copied()
    data["comparison"]["estimate"]["low"] *= 1.01
    monkeypatch.setattr(receipt_commands, "evaluator", lambda: OTHER)
    code, printed = verify(resealed(data))
    assert code == 1
    assert "unconfirmed" in printed
    assert "evaluator changed" in printed
    code, printed = verify(resealed(data), "--json")
    (answer,) = json.loads(printed)
    assert answer["status"] == "unconfirmed"
    assert answer["unconfirmed"]


# --------------------------------------------------------------------------- raw data


def test_a_slot_of_another_plan() -> None:
    run = RUNS["good"].with_slot(3, ran=RUNS["good"].slots[3].ran | {"plan_sha256": "00" * 32})
    found = examine(run.sealed(), EVALUATOR)
    assert any(line.startswith("slots/3 ran under the plan") for line in found.faults)


@pytest.mark.parametrize("time", ["", "yesterday", "2026-11-30", "2026-11-30T07:00:00", "9"])
def test_times_that_are_none(time: str) -> None:
    run = RUNS["good"].with_plan(frozen_utc=time)
    assert any("not a time in UTC" in line for line in examine(run.sealed(), EVALUATOR).faults)


def test_times_are_compared_as_times() -> None:
    """Not as text: half past seven in Berlin is before seven in London."""
    run = RUNS["good"].with_plan(frozen_utc="2026-11-30T07:30:00.000000+01:00")
    assert examine(run.sealed(), EVALUATOR).status == "valid"
    run = RUNS["good"].with_plan(frozen_utc="2026-11-30T06:30:00.000000-01:00")
    (fault,) = examine(run.sealed(), EVALUATOR).faults
    assert fault == "slots/0 started before the plan was frozen"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state_sha256", "11" * 32), ("tokens_sha256", "11" * 32),
        ("hyper", receipts.CONFIG.model_dump() | {"lr": 1e-3}), ("module_sha256", "11" * 32),
        ("module_sha256", 7), ("wgsl_sha256", {"gelu_forward.wgsl": "11" * 32}),
    ],
)  # fmt: skip
def test_an_arm_that_was_to_run_something_else(key: str, value: Json) -> None:
    """Other weights, batches, hyperparameters or files than the plan and the subject name."""
    run = RUNS["good"]
    a, b = run.plan.arms
    run = run.with_plan(arms=(a.model_copy(update={"expected": a.expected | {key: value}}), b))
    for index, slot in enumerate(run.slots):
        run = run.with_slot(index, ran=slot.ran | {key: value})
    faults = examine(run.sealed(), EVALUATOR).faults
    assert any(f"plan/arms/0/expected/{key}" in fault for fault in faults), faults


def test_a_preset_that_is_not_the_config() -> None:
    run = RUNS["good"].with_plan(preset=RUNS["good"].plan.preset | {"lr": 1e-3})
    assert any("plan/preset/lr" in fault for fault in examine(run.sealed(), EVALUATOR).faults)


# --------------------------------------------------------------------------- mutated files


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


# Pieces of JSON that a number, a name or a whole value is replaced by.
PIECES = (
    "NaN", "-Infinity", "1e999", "1e308", "-1", "0", "9007199254740993", "9" * 3000, "null", "true",
    '""', '"\\u001b[2J"', '"\\ud800"', "[]", "{}", '{"a":1,"a":2}', nested(300), nested(40_000),
    "[" + "0," * 20_000 + "0]", '"' + "x" * 200_000 + '"',
)  # fmt: skip


def mutated(rng: random.Random, name: str) -> bytes:
    """One of the receipts with one to three things wrong, its digests as a forger would leave."""
    data = copied(name)
    text = ""
    for _ in range(rng.randint(1, 3)):
        holder, key = _place(rng, data)
        choice = rng.randrange(5)
        if choice == 0 and isinstance(holder, dict):
            del holder[key]
        elif choice == 1 and isinstance(holder[key], int | float):
            holder[key] = holder[key] * rng.choice([1.5, -1, 1 + 1e-6]) + rng.choice([0, 1])
        elif choice == 2 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), holder[key])
        else:
            holder[key] = f"\0{rng.choice(PIECES)}\0"
    if rng.random() < 0.5:
        data["digest"] = digest(data)
    text = json.dumps(data)
    for piece in PIECES:  # what json.dumps would not write
        text = text.replace(json.dumps(f"\0{piece}\0"), piece)
    raw = bytearray(text.encode())
    for _ in range(rng.choice([0, 0, 1, 5])):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def _place(rng: random.Random, data: Json) -> tuple[Json, Json]:
    """A random container on a random way down, and a key of it."""
    while True:
        key = rng.choice(list(data) if isinstance(data, dict) else range(len(data)))
        below = data[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.15:
            return data, key
        data = below


@pytest.mark.parametrize("seed", range(8))
def test_25_mutated_receipts(verify: Verify, seed: int) -> None:
    """No traceback, and code 1 or 2 for whatever is not the receipt itself."""
    rng = random.Random(seed)
    names = list(SEALED)
    for number in range(25):
        name = names[number % len(names)]
        content = mutated(rng, name)
        code, printed = verify(content)
        if code == 0:  # a byte that was replaced by itself, 1.0 by 1
            assert json.loads(content) == SEALED[name]
        assert code in (0, 1, 2)
        assert "\x1b" not in printed
        assert len(printed) < 20_000


def test_memory_is_bounded(verify: Verify) -> None:
    """A value that is large and deep costs a few times its own size."""
    data = copied()
    data["slots"][0]["memory"] = {"x": [[0, "y" * 50]] * 20_000}
    tracemalloc.start()
    try:
        assert verify(data)[0] == 1
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


def test_work_is_bounded() -> None:
    """More slots or blocks than a plan can have are refused before anything is computed."""
    data = copied()
    data["slots"] *= 500
    (fault,) = examine(data, EVALUATOR).faults
    assert fault == "slots has 8000 entries, planned were 16"
    data = copied()
    data["plan"]["order"] *= 5000
    (fault,) = examine(data, EVALUATOR).faults
    assert fault == "plan/order has 20000 blocks, at most 10000 can be planned"


def test_a_million_keys(tmp_path: Path) -> None:
    """The key that stands twice is found without comparing all with all."""
    path = tmp_path / "r.json"
    keys = ",".join(f'"{i}":0' for i in range(300_000))
    path.write_text("{" + keys + ',"299999":1}')
    with pytest.raises(Exception, match="the key '299999' stands twice"):
        store.read_json(path)


# --------------------------------------------------------------------------- rebuilding


def _artifact(made: build.Artifact, **changes: Any) -> Artifact:
    facts = {
        "name": made.name, "sha256": made.sha256, "size_bytes": made.bytes, "flags": made.flags,
        "compiler": made.compiler,
    }  # fmt: skip
    return Artifact(**(facts | changes))


def _subject(*artifacts: Artifact) -> Subject:
    return Subject(driver_version="0.1.0", revision="0f" * 20, dirty=False, artifacts=artifacts)


def test_rebuild() -> None:
    """The module is compiled anew, with its flags; other files are read."""
    module = build.build_wasm("relaxed", "wasm32")
    kernel = build.gather_wgsl()["gelu_forward.wgsl"]
    larger = tuple(flag.replace("=1048576", "=2097152") for flag in module.flags)
    assert larger != module.flags
    found = rebuild.rebuild(_subject(
        _artifact(module), _artifact(kernel), _artifact(module, flags=larger),
        _artifact(kernel, sha256="11" * 32), _artifact(module, sha256="11" * 32, compiler="gcc 1"),
    ))  # fmt: skip
    assert [file.same for file in found] == [True, True, False, False, False]
    other = found[2]
    assert other.rebuilt_sha256 not in (None, module.sha256)
    assert "compiled by 'gcc 1'" in (found[4].reason or "")
    assert len(rebuild.differing(found)) == 3


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("gpt-relaxed-wasm32.wasm", ("-O3", "-fplugin=/tmp/x.so", "--no-entry"), "-fplugin"),
        ("gpt-relaxed-wasm32.wasm", ("-o", "/etc/passwd", "--no-entry"), "'-o'"),
        ("gpt-relaxed-wasm32.wasm", ("@/etc/passwd",), "@/etc/passwd"),
        ("gpt-relaxed-wasm32.wasm", ("-mcpu=x\n-o",), "-mcpu"),
        ("gpt-relaxed-wasm32.wasm", ("-O3",), "no linker's part"),
        ("../../etc/passwd.wasm", (), "no module"),
    ],
)
def test_flags_of_a_stranger_are_not_passed_on(
    name: str, flags: tuple[str, ...], said: str
) -> None:
    with pytest.raises(BuildError, match=said):
        build.rebuild_wasm(name, flags)


@pytest.mark.parametrize("name", ["web/../README.md", "web//etc/passwd", "web/", "x"])
def test_names_of_a_stranger_open_nothing(name: str) -> None:
    artifact = Artifact(name=name, sha256="11" * 32, size_bytes=1)
    (file,) = rebuild.rebuild(_subject(artifact))
    assert file.rebuilt_sha256 is None
    assert "has no file" in (file.reason or "")


def test_files_of_another_source_are_not_taken_for_ours() -> None:
    module = build.build_wasm("relaxed", "wasm32")
    (file,) = rebuild.rebuild(_subject(_artifact(module, name=f"{'ab' * 20}/{module.name}")))
    assert not file.same
    assert "another source" in (file.reason or "")


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A corpus for the receipts' vocabulary, none of bytes that text has."""
    path = tmp_path / "text.bin"
    path.write_bytes(bytes(i * i % 5 for i in range(301)))
    return str(path)


def drawn(text: str, **plan_changes: Any) -> receipts.Parts:
    """A run whose state and batches are what its seed gives; then changes that all echo."""
    built = RUNS["good"]
    corpus = corpora.load(text)
    keys = presets.load("tiny").model_dump() | built.plan.config.model_dump()
    preset = Preset(**keys | {"name": "mini"})
    workload = Workload.draw(preset, corpus, built.plan.seed)
    tokens = workload.batches(receipts.STEPS).astype("<i4").tobytes()
    facts = built.plan.corpus.model_copy(
        update={"name": "text.bin", "sha256": corpus.sha256, "size_bytes": len(corpus.data)}
    )
    changes = {
        "preset": preset.model_dump(mode="json"), "corpus": facts,
        "state_sha256": workload.state_sha256, "tokens_sha256": hashlib.sha256(tokens).hexdigest(),
    } | plan_changes  # fmt: skip
    echoed = {key: changes[key] for key in ("state_sha256", "tokens_sha256")}
    a, b = (arm.model_copy(update={"expected": arm.expected | echoed}) for arm in built.plan.arms)
    for i, slot in enumerate(built.slots):
        built = built.with_slot(i, ran=slot.ran | echoed)
    kernel = build.gather_wgsl()["gelu_forward.wgsl"]
    built = replace(built, subject=_subject(_artifact(kernel)))
    return built.with_plan(arms=(a, b), **changes)


def test_rebuild_from_the_command(verify: Verify, text: str) -> None:
    run = drawn(text)
    code, printed = verify(run.sealed(), "--rebuild", "--corpus", text)
    assert (code, "4 of 4 are the same here" in printed) == (0, True), printed
    kernel = build.gather_wgsl()["gelu_forward.wgsl"]
    wrong = replace(run, subject=_subject(_artifact(kernel, sha256="11" * 32))).sealed()
    code, printed = verify(wrong, "--rebuild", "--corpus", text)
    assert code == 1
    assert "3 of 4 are the same here" in printed
    assert "this source gives" in printed
    assert "made from revision" in printed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 12}, ("'initial state': seed 12 gives", "'batches': seed 12 gives")),
        ({"state_sha256": "11" * 32}, ("'initial state': seed 11 gives",)),
        ({"tokens_sha256": "11" * 32}, ("'batches': seed 11 gives",)),
        ({"preset": {"name": "mini"}}, ("'initial state': the receipt's preset",)),
    ],
)
def test_a_state_that_is_not_the_seeds(
    verify: Verify, text: str, changes: dict[str, Any], said: tuple[str, ...]
) -> None:
    """However consistent the file is: both arms may have been given what favours one."""
    run = drawn(text, **changes).sealed()
    assert verify(run)[0] == 0
    code, printed = verify(run, "--rebuild", "--corpus", text)
    assert code == 1
    for line in said:
        assert line in printed


def test_a_corpus_that_is_not_at_hand(verify: Verify, text: str, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(300))
    run = drawn(text).sealed()
    for flags, said in (
        ((), "name the file 'text.bin' with --corpus"),
        (("--corpus", str(other)), "other.bin is another text"),
        (("--corpus", str(tmp_path)), "is a folder"),
    ):
        code, printed = verify(run, "--rebuild", *flags)
        assert code == 1
        assert said in printed
    assert verify(run, "--corpus", text)[0] == 2


def test_more_than_can_be_drawn_is_not_drawn(text: str) -> None:
    """A stranger's plan may ask for any number of steps."""
    plan = drawn(text).plan
    many = plan.arms[0].model_copy(update={"windows": 10**12})
    found = rebuild.redraw(plan.model_copy(update={"arms": (many, plan.arms[1])}), text)
    assert [file.same for file in found] == [True, False, False]
    assert "GiB are not drawn again" in (found[1].reason or "")


def test_this_installation_has_an_evaluator() -> None:
    assert evaluator() != EVALUATOR

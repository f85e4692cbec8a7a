"""A receipt's run again: what is taken from it, what agrees, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from receipts import Parts, parts
from test_compare import noise, scaled, sealed

from driver import calibrate, corpus, presets, reproduce, store
from driver.arms import parse_arm
from driver.calibration import calibration_key
from driver.compare import larger
from driver.errors import CorpusError, PresetError, RunError, UsageError
from driver.plan import AUTO_RULE
from driver.receipt import parse
from driver.records import AutoBlocks, Receipt, Reproduction
from driver.schedule import staged_orders

BASE = parts(noise=0.002, blocks=6)
SD = 0.002


def judged(new: Parts, base: Parts = BASE, sd: float | None = SD) -> Reproduction:
    one, two = sealed(base), sealed(new)
    known = [None if sd is None else noise(one, i, sd) for i in (0, 1)]
    return reproduce.judge(one, two, "new.receipt.json", 0.02, known)


def outcomes(found: Reproduction) -> dict[str, str]:
    return {aspect.name: aspect.outcome for aspect in found.aspects}


def with_module(run: Parts, digest: str, simd: str = "relaxed") -> Parts:
    a, b = run.plan.arms
    expected = a.expected | {"module_sha256": digest}
    a = a.model_copy(update={"expected": expected, "options": a.options | {"simd": simd}})
    run = run.with_plan(arms=(a, b))
    for index, slot in enumerate(run.slots):
        if slot.side == "A":
            run = run.with_slot(index, ran=slot.ran | {"module_sha256": digest})
    return run


def other_losses(run: Parts, by: float, side: str = "A") -> Parts:
    for index, slot in enumerate(run.slots):
        if slot.side == side:
            run = run.with_slot(index, losses=[x * (1 + by) for x in slot.losses])
    return run


def elsewhere(run: Parts) -> Parts:
    return run.with_environment(machine=run.environment.machine | {"cpu": "Another CPU"})


def test_the_same_run_agrees() -> None:
    found = judged(BASE)
    assert found.outcome == "agree"
    assert outcomes(found) == dict.fromkeys(
        ("losses A", "losses B", "time A", "time B", "ratio"), "agree"
    )


def test_other_times_disagree_where_the_noise_between_runs_is_known() -> None:
    found = judged(scaled(BASE, 1.2, 1.2))
    assert found.outcome == "disagree"
    assert outcomes(found)["time A"] == outcomes(found)["time B"] == "disagree"
    assert outcomes(found)["ratio"] == "agree"
    found = judged(scaled(BASE, 1.2, 1.2), sd=None)
    assert found.outcome == "not comparable"
    assert "driver calibrate" in found.aspects[2].reason


def test_the_same_module_gives_the_same_bits() -> None:
    base = with_module(BASE, "aa" * 32)
    assert outcomes(judged(base, base))["losses A"] == "agree"
    assert outcomes(judged(other_losses(base, 1e-8), base))["losses A"] == "disagree"
    # Another module, and an arm without one: within the tolerance.
    other = with_module(BASE, "bb" * 32)
    assert outcomes(judged(other_losses(other, 1e-8), base))["losses A"] == "agree"
    assert outcomes(judged(other_losses(base, 5e-8, "B"), base))["losses B"] == "agree"


def test_what_relaxed_simd_rounds_is_the_processors_choice() -> None:
    for simd, outcome in (("relaxed", "agree"), ("simd128", "disagree")):
        base = with_module(BASE, "aa" * 32, simd)
        found = judged(other_losses(elsewhere(base), 1e-8), base)
        assert outcomes(found)["losses A"] == outcome
        assert outcomes(found)["time A"] == "not comparable"


def test_a_tolerance_that_is_exceeded() -> None:
    one, two = sealed(BASE), sealed(BASE)
    slots = tuple(
        s.model_copy(update={"losses": [x * 1.001 for x in s.losses]}) if s.side == "B" else s
        for s in two.slots
    )
    found = reproduce.judge(one, two.model_copy(update={"slots": slots}), "n", 0.02, (None, None))
    assert outcomes(found)["losses B"] == "disagree"
    assert found.outcome == "disagree"


def test_another_machine_compares_losses_alone() -> None:
    found = judged(elsewhere(BASE))
    assert found.outcome == "not comparable"
    assert outcomes(found)["losses A"] == "agree"
    assert "Another CPU" in found.aspects[2].reason


def test_a_run_that_fails_disagrees() -> None:
    failed = BASE.with_slot(0, losses=[float("nan")] * len(BASE.slots[0].losses))
    found = judged(failed)
    assert found.outcome == "disagree"
    assert found.aspects[0].reason.startswith("this run failed")


# --------------------------------------------------------------------------- the request


def real(**changes: Any) -> Receipt:
    """A receipt whose preset and corpus are ones that exist."""
    tiny = presets.load("tiny")
    text = corpus.load()
    facts = BASE.plan.corpus.model_copy(
        update={"name": text.name, "sha256": text.sha256, "size_bytes": len(text.data)}
    )
    wasm = parse_arm("wasm:threads=1+simd=scalar+kernels=naive+tile=2x4+shared=on")
    webgpu = parse_arm("webgpu:matmul=tiled")
    a, b = BASE.plan.arms
    arms = (
        a.model_copy(update={"options": wasm.options}),
        b.model_copy(update={"options": webgpu.options}),
    )
    plan = BASE.plan.model_copy(
        update={
            "preset": tiny.model_dump(mode="json"), "config": tiny.model, "corpus": facts,
            "arms": arms,
        }
        | changes
    )  # fmt: skip
    return sealed(BASE).model_copy(update={"plan": plan, "digest": "d1" * 32})


def request(receipt: Receipt, tmp_path: Path, file: str | None = None) -> Any:
    return reproduce.request_for(receipt, tmp_path, file, None)


def test_everything_is_the_receipts(tmp_path: Path) -> None:
    receipt = real()
    found = request(receipt, tmp_path)
    assert found.preset == presets.load("tiny")
    assert [arm.options for arm in found.arms] == [arm.options for arm in receipt.plan.arms]
    assert found.arms[0].pinned.receipt_digest == "d1" * 32
    assert found.seed == receipt.plan.seed
    assert found.purpose.blocks == 6
    assert found.purpose.budget_s == receipt.plan.budget_s


def test_blocks_that_a_pilot_chose_are_chosen_again(tmp_path: Path) -> None:
    """The receipt's own number is what its own variance asked for."""
    assert not request(real(), tmp_path).purpose.auto
    auto = AutoBlocks(pilot=6, most=60, difference=0.02, power=0.95, rule=AUTO_RULE)
    order = staged_orders(6, 60, BASE.plan.seed)
    assert request(real(auto=auto, order=order), tmp_path).purpose.auto


def test_the_preset_is_not_the_file_of_that_name(tmp_path: Path) -> None:
    keys = presets.load("tiny").model_dump(mode="json") | {"windows": 7}
    assert request(real(preset=keys), tmp_path).preset.windows == 7


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"preset": {"name": "tiny"}}, PresetError, "the receipt's preset"),
        ({"preset": {"name": "tiny", "x": [1] * 9}}, PresetError, "unknown key x"),
        ({"budget_s": 1e300}, UsageError, "--budget"),
        ({"budget_s": -1.0}, UsageError, "--budget"),
        ({"config": BASE.plan.config}, UsageError, "two models"),
    ],
)
def test_a_hostile_plan(
    tmp_path: Path, changes: dict[str, Any], error: type[UsageError], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        request(real(**changes), tmp_path)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "options", [{"threads": 10**9}, {"simd": "x;rm"}, {"new": 1}, {"a": "+"}, {"source": "/etc"}]
)
def test_hostile_options(tmp_path: Path, options: dict[str, Any]) -> None:
    a, b = real().plan.arms
    arms = (a.model_copy(update={"options": a.options | options}), b)
    with pytest.raises(UsageError):
        request(real(arms=arms), tmp_path)


def test_a_corpus_that_is_not_there(tmp_path: Path) -> None:
    facts = BASE.plan.corpus.model_copy(update={"name": "novel.txt", "sha256": "ab" * 32})
    with pytest.raises(UsageError, match=r"SHA-256 'abab.*--corpus") as error:
        request(real(corpus=facts), tmp_path)
    assert error.value.exit_code == 2
    file = tmp_path / "other.txt"
    file.write_bytes(b"abc")
    with pytest.raises((UsageError, CorpusError), match=r"other\.txt"):
        request(real(corpus=facts), tmp_path, str(file))


def test_a_failed_receipt_claims_nothing(tmp_path: Path) -> None:
    failed = real().model_copy(
        update={"verdict": real().verdict.model_copy(update={"status": "failed"})}
    )
    with pytest.raises(UsageError, match="nothing to reproduce"):
        request(failed, tmp_path)


# --------------------------------------------------------------------------- commands


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """`driver …`, with calibrations kept in a folder of the test's own."""
    monkeypatch.setenv("DRIVER_DATA", str(tmp_path / "data"))

    def go(*words: object) -> tuple[int, str]:
        code, out, err = driver(*words)
        return code, out + err

    return go


def file_of(run: Parts, path: Path) -> Path:
    store.write_json(path, run.sealed())
    return path


def test_compare_from_the_command(command: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    base = file_of(BASE, tmp_path / "base.json")
    new = file_of(scaled(BASE, 1.0, 1.1), tmp_path / "new.json")
    code, printed = command("compare", base, new)
    assert code == 0
    assert "driver calibrate" in printed
    for which in (0, 1):
        store.save_calibration(noise(sealed(BASE), which, SD))
    code, printed = command("compare", base, new)
    assert code == 1
    assert "regression" in printed
    code, printed = command("compare", base, new, "--margin", "15%", "--json")
    assert code == 0
    assert json.loads(printed)["margin"] == 0.15
    other = file_of(elsewhere(BASE), tmp_path / "other.json")
    assert command("compare", base, other)[0] == 2
    assert command("compare", base, new, "--margin", "lots")[0] == 2
    data = json.loads(new.read_text())
    data["slots"][0]["windows_ms"][0] *= 2
    new.write_text(json.dumps(data))
    code, printed = command("compare", base, new)
    assert code == 2
    assert "INVALID" in printed


def test_calibrations_are_kept_and_grow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRIVER_DATA", str(tmp_path))
    receipt = sealed(parts(names=("wasm", "wasm"), blocks=6))
    key = calibration_key(receipt.plan, receipt.environment, 0)
    assert store.load_calibration(key) is None
    for number in (1, 2, 3):
        found, path = calibrate.add(receipt)
        assert len(found.runs) == number
        assert store.load_calibration(key) == found
    assert larger(found) == found
    assert len(calibrate.add(receipt, fresh=True)[0].runs) == 1
    path.write_text("{")
    assert store.load_calibration(key) is None
    with pytest.raises(RunError, match="at least four"):
        calibrate.add(sealed(parts(names=("wasm", "wasm"), blocks=1)))


def test_calibrate_run_reproduce(
    command: Callable[..., tuple[int, str]], preset: Path, tmp_path: Path
) -> None:
    """In the browser, with the fake arm: the plan quotes the calibration, the run is repeated."""
    arm, out = "null:ms=1", tmp_path / "receipts"
    code, printed = command(
        "calibrate", "--preset", preset, "--arm", arm, "--runs", 1, "--blocks", 4,
        "--budget", "10m", "--out", out,
    )  # fmt: skip
    assert code == 0
    assert "false positives" in printed
    for path in out.iterdir():
        path.unlink()
    code, _ = command("run", "--preset", preset, "--arms", f"{arm},{arm}", "--out", out)
    assert code == 0
    (path,) = out.glob("*.json")
    first = parse(store.read_json(path))
    for planned in first.plan.arms:
        assert planned.calibration and len(planned.calibration.runs) == 1
    code, printed = command("verify", path)
    assert code == 0
    code, printed = command("reproduce", path, "--out", tmp_path / "again", "--json")
    found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert found["receipt_digest"] == first.digest
    assert code == {"agree": 0, "disagree": 1, "not comparable": 2}[found["outcome"]]
    (again,) = (tmp_path / "again").glob("*.json")
    second = parse(store.read_json(again))
    assert second.plan.preset == first.plan.preset
    assert [arm.options for arm in second.plan.arms] == [arm.options for arm in first.plan.arms]
    assert second.plan.arms[0].pinned
    assert second.plan.state_sha256 == first.plan.state_sha256

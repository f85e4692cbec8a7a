"""The 2026-09-02 receipt's recipe, replayed: its curve on every arm."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import receipts
from safetensors import numpy as safetensors

from driver import corpus, presets, receipt, replay, report
from driver.arms import parse_arm
from driver.browser import BrowserChoice
from driver.cases import Case, Result
from driver.records import Receipt
from driver.report import historical
from driver.workload import Workload, reference_curve

Run = Callable[..., tuple[int, str, str]]
RUNS = [receipt.parse(run.sealed()) for run in receipts.everything().values()]

# Losses of a float32 replay by an independent program; the last is the receipt's 3.7489.
LOSSES = [
    5.586247, 4.995524, 4.751104, 4.663067, 4.573069, 4.508120, 4.457634, 4.362671, 4.296139,
    4.300060, 4.240088, 4.169582, 4.144888, 4.027680, 4.000316, 3.962954, 3.856366, 3.771044,
    3.735198, 3.748934,
]  # fmt: skip
CLIPPED = 3.625995


def problem(name: str, text: Path, steps: int | None = None) -> Case:
    preset, data = presets.load(name), corpus.load(str(text))
    corpus.check(data, preset.model, preset.corpus_sha256)
    return replay.preset_case(preset, data, steps, None)


async def on_arm(case: Case, arm: str, browser: BrowserChoice) -> Result:
    spec = parse_arm(arm)
    if spec.name == "numpy":
        return replay.on_numpy(case, str(spec.options["dtype"]))
    return await replay.in_browser(case, spec, browser, 1800)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["numpy", "numpy:dtype=float32", "wasm", "wasm64"])
async def test_twenty_steps(arm: str, shakespeare: Path, browser: BrowserChoice) -> None:
    result = await on_arm(problem("receipt-2026-09-02", shakespeare), arm, browser)
    assert result.losses == pytest.approx(LOSSES, abs=5e-5)
    assert result.grad_norms[9] == pytest.approx(20.617, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["numpy", "wasm", "wasm64"])
async def test_twenty_clipped_steps(arm: str, shakespeare: Path, browser: BrowserChoice) -> None:
    result = await on_arm(problem("receipt-2026-09-02-clip", shakespeare), arm, browser)
    assert result.losses[-1] == pytest.approx(CLIPPED, abs=5e-5)


@pytest.mark.slow
async def test_three_steps_on_webgpu(shakespeare: Path, browser: BrowserChoice) -> None:
    """A software adapter takes seconds for each."""
    result = await on_arm(problem("receipt-2026-09-02", shakespeare, 3), "webgpu", browser)
    assert result.losses == pytest.approx(LOSSES[:3], abs=5e-5)


def test_the_first_step(shakespeare: Path) -> None:
    """Weights and batch are right to the last digit that the replay printed."""
    result = replay.on_numpy(problem("receipt-2026-09-02", shakespeare, 1), "float32")
    assert result.losses == pytest.approx(LOSSES[:1], abs=1e-6)


def test_without_the_corpus(driver: Run) -> None:
    code, _, err = driver("replay", "receipt-2026-09-02", "--arm", "numpy", "--out", "x")
    assert code == 2
    for words in ("86c4e6aa9db7c042", "1,115,394 bytes", "TinyShakespeare", "--corpus FILE"):
        assert words in err


def test_another_corpus(driver: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_bytes(bytes(1000))
    code, _, err = driver("run", "--preset", "receipt-2026-09-02-clip", "--corpus", other)
    assert code == 2
    for words in ("other.txt has SHA-256", "1,000 bytes", "86c4e6aa9db7c042"):
        assert words in err


def test_a_presets_problem_is_the_one_that_its_slots_train(
    driver: Run, preset: Path, tmp_path: Path
) -> None:
    def replayed(*more: object) -> np.ndarray:
        out = tmp_path / "result"
        code, said, err = driver("replay", preset, "--arm", "numpy", "--out", out, *more)
        assert code == 0, err
        losses = safetensors.load_file(out)["losses"]
        assert said.startswith(f"{len(losses)} steps")
        return losses

    plan = presets.load(str(preset))
    losses = replayed()
    assert len(losses) == plan.warmup_steps + plan.windows * plan.max_steps_per_window
    workload = Workload.draw(plan, corpus.load(), plan.seed)
    facts, _ = reference_curve(workload, 3, frozenset(), lambda _: None)
    assert losses[:3].tolist() == facts.losses
    assert not np.array_equal(replayed("--steps", 3, "--seed", 7), losses[:3])


def test_a_case_file_has_its_own_weights(driver: Run) -> None:
    code, _, err = driver("replay", "a.safetensors", "--arm", "numpy", "--out", "b", "--seed", 3)
    assert code == 2
    assert "--seed and --corpus do not apply" in err


# --------------------------------------------------------------------------- the report


def rehearsed(clip: float, warmup_steps: int = 0, **preset: object) -> Receipt:
    """A made-up run, dressed as one of the recipe: 20 single steps a slot."""
    built = RUNS[0]
    recipe = {"init": "mulberry32", "offsets": "hashed"} | preset
    config = presets.load("large").model.model_copy(update={"grad_clip": clip})
    facts = built.plan.corpus.model_copy(update={"sha256": historical.CORPUS_SHA256})
    arms = [arm.model_copy(update={"warmup_steps": warmup_steps}) for arm in built.plan.arms]
    plan = built.plan.model_copy(
        update={"preset": recipe, "config": config, "corpus": facts, "seed": 42, "arms": arms}
    )
    slots = [
        slot.model_copy(
            update={
                "losses": [5.0] * 19 + [3.748933], "steps_per_window": 1,
                "windows_ms": [400.0] + [100.0 if slot.side == "A" else 50.0] * 19,
                "compile_ms": 60.0, "upload_ms": 40.0,
            }
        )
        for slot in built.slots
    ]  # fmt: skip
    return built.model_copy(update={"plan": plan, "slots": slots})


def page_of(found: Receipt) -> str:
    return " ".join(report.text(found, width=200).split())


def test_the_report_sets_both_receipts_side_by_side() -> None:
    page = page_of(rehearsed(0.0))
    for words in ("1462.50", "137.08", "10.669", "4.7208%", "3.5799", "3.7489"):
        assert words in page
    assert "A at step 20: loss 3.748933; an independent replay of the recipe has 3.748934" in page
    # (60 + 40 + 400 + 19·100) / 20 and (60 + 40 + 400 + 19·50) / 20
    assert "no clip 20 3.7489" in page
    assert " 120 " in page
    assert " 72.5 " in page
    assert f"{120 / 72.5:.4g}" in page
    assert "is not the same quantity as the receipt's 10.669" in page


def test_the_clipped_recipe_has_its_own_replay() -> None:
    assert "of the recipe has 3.625995" in page_of(rehearsed(1.0))


def test_a_slot_with_a_warm_up_has_no_cold_figure() -> None:
    assert " 72.5 " not in page_of(rehearsed(0.0, warmup_steps=2))


@pytest.mark.parametrize("change", [{"init": "philox"}, {"offsets": "philox"}, {"init": None}])
def test_other_recipes_are_not_compared(change: dict[str, object]) -> None:
    assert "10.669" not in page_of(rehearsed(0.0, **change))
    assert "10.669" not in page_of(rehearsed(0.5))

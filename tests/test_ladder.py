"""`driver ladder`: rungs, what becomes of samples and receipts, ladders in Chromium."""

import json
import os
import signal
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import receipts

from driver import axes, ladder, presets, report
from driver.apart import engine_of, gain, kernel_on, no_gain
from driver.arms import (
    GPU_TILES,
    OPTIONS,
    TILE_OF,
    TILES,
    VARIANTS,
    WORKGROUPS,
    ArmSpec,
    parse_arm,
    resolve,
)
from driver.axes import AXES, Axis, steps
from driver.cli import bench as bench_commands
from driver.errors import ArmError
from driver.ladder import fastest, measured, pin_tiles
from driver.plan import evaluator
from driver.prepare import Probed
from driver.progress import Reporter, SlotNow
from driver.receipt import parse, verify
from driver.records import (
    ArmJob,
    KernelSamples,
    LadderPair,
    LadderReport,
    ModelConfig,
    Product,
    Rung,
    RungProduct,
)
from driver.tensors import products
from driver.workbench import Workbench

FEATURES: dict[str, Any] = {
    "cross_origin_isolated": True,
    "usable_threads": 6,
    "wasm": {"simd128": True, "relaxed_simd": True, "threads": True, "memory64": True,
             "memory64_shared": True},
    "webgpu": {"available": True, "features": ["shader-f16", "subgroups"]},
}  # fmt: skip
CONFIG = presets.load("tiny").model
RECEIPT = parse(receipts.parts().sealed())


def arm_job(text: str) -> ArmJob:
    return resolve(parse_arm(text), FEATURES)


def rungs_of(axis: str, text: str = "wasm", **features: Any) -> list[axes.Step]:
    spec = parse_arm(text)
    return list(steps(axis, spec, resolve(spec, FEATURES | features)))


# --------------------------------------------------------------------------- rungs


@pytest.mark.parametrize(
    ("axis", "arm", "labels"),
    [
        ("kernels", "wasm", ["naive", "forward", "forward-dA", "forward-dA-dB"]),
        ("simd", "wasm64", ["scalar", "simd128", "relaxed"]),
        ("threads", "wasm", ["1", "2", "4", "6"]),
        ("tile", "wasm", list(TILES["relaxed"])),
        ("tile", "wasm:simd=scalar", list(TILES["scalar"])),
        ("address", "wasm", ["wasm", "wasm64"]),
        ("kernels", "webgpu", list(reversed(VARIANTS))),
        ("workgroup", "webgpu", list(WORKGROUPS)),
        ("split", "webgpu", ["1", "2", "4", "8"]),
        ("tile", "webgpu", list(reversed(GPU_TILES))),
        ("precision", "webgpu", ["off", "storage", "compute"]),
    ],
)
def test_rungs(axis: str, arm: str, labels: list[str]) -> None:
    found = rungs_of(axis, arm)
    assert [step.label for step in found] == labels
    assert len({step.spec.canonical for step in found}) == len(labels)
    for step in found:
        assert resolve(step.spec, FEATURES)


@pytest.mark.parametrize(
    ("usable", "labels"),
    [(1, ["1"]), (2, ["1", "2"]), (3, ["1", "2", "3"]), (8, ["1", "2", "4", "8"])],
)
def test_the_last_number_of_threads_is_all_of_them(usable: int, labels: list[str]) -> None:
    assert [step.label for step in rungs_of("threads", usable_threads=usable)] == labels


def test_the_kernels_change_one_product_at_a_time() -> None:
    found = [[step.spec.options[product] for product in TILE_OF] for step in rungs_of("kernels")]
    assert [row.count("blocked") for row in found] == [0, 1, 2, 3]
    assert found[1] == ["blocked", "naive", "naive"]
    assert found[2] == ["blocked", "blocked", "naive"]


@pytest.mark.parametrize("arm", AXES)
def test_an_axis_changes_its_own_options_alone(arm: str) -> None:
    """Whatever else the arm says stays the same on every rung."""
    fixed = {"wasm": "threads=3+mm_da=naive", "wasm64": "threads=3+mm_da=naive", "webgpu": ""}[arm]
    varied = {"kernels": set(TILE_OF), "simd": {"simd"}, "threads": {"threads"},
              "tile": set(TILE_OF.values()), "address": set(), "workgroup": {"workgroup"},
              "precision": {"f16", "mm_fwd", "mm_da"}, "split": {"split_db", "mm_db"}}  # fmt: skip
    for axis in AXES[arm]:
        base = parse_arm(f"{arm}:{fixed}" if fixed and axis not in ("kernels", "threads") else arm)
        if (axis, arm) == ("kernels", "webgpu"):  # only blocked products are cut
            varied["kernels"].add("split_db")
        for step in steps(axis, base, resolve(base, FEATURES)):
            assert set(step.spec.options) == set(OPTIONS[step.spec.name])
            changed = {k for k, v in step.spec.options.items() if v != base.options[k]}
            assert changed <= varied[axis]


@pytest.mark.parametrize(
    ("axis", "arm", "said"),
    [
        ("workgroup", "wasm", "arm wasm has no such axis; it has kernels, simd, threads, tile"),
        ("simd", "webgpu", "it has kernels"),
        ("kernels", "null", "it has none"),
        ("kernels", "numpy", "it has none"),
        ("threads", "wasm:threads=2", "threads=2 is what --axis threads changes"),
        ("tile", "wasm:tile_da=6x8", "tile_da=6x8 is what --axis tile changes"),
        ("kernels", "wasm:mm_db=naive", "mm_db=naive is what --axis kernels changes"),
        ("split", "webgpu:split_db=4", "split_db=4 is what --axis split changes"),
        ("split", "webgpu:mm_db=tiled", "mm_db=tiled, split_db=1 is what --axis split changes"),
        (
            "kernels",
            "webgpu:split_db=4",
            "mm_db=blocked, split_db=4 is what --axis kernels changes",
        ),
    ],
)
def test_refused_axes(axis: str, arm: str, said: str) -> None:
    """Before a browser is opened, and beside what is there."""
    spec = parse_arm(arm)
    with pytest.raises(ArmError, match=said):
        axes.check(axis, spec)
    with pytest.raises(ArmError, match=said):
        steps(
            axis, spec, ArmJob(name=spec.name, module="", options={"threads": 6, "simd": "relaxed"})
        )


@pytest.mark.parametrize(
    ("arm", "own"),
    [("wasm:simd=scalar", "simd"), ("wasm64:threads=2", "threads"), ("webgpu:tile=8x8", "tile")],
)
def test_no_axis_is_refused_that_the_arm_leaves_open(arm: str, own: str) -> None:
    spec = parse_arm(arm)
    for axis in set(AXES[spec.name]) - {own}:
        axes.check(axis, spec)


class Tuner:
    """A workbench that finds the last tile the fastest."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def tune(self, name: str, arm: ArmJob, spec: ArmSpec, config: ModelConfig) -> ArmJob:
        tiles = TILES[str(arm.options["simd"])]
        self.asked.append(str(arm.options["simd"]))
        found = {tile: tiles[-1] for tile in TILE_OF.values() if spec.options[tile] == "auto"}
        return arm.model_copy(update={"options": arm.options | found})


@pytest.mark.parametrize(
    ("axis", "arm", "asked"),
    [
        ("kernels", "wasm", ["relaxed"]),
        ("threads", "wasm", ["relaxed"]),
        ("address", "wasm", ["relaxed"]),
        ("simd", "wasm", ["relaxed", "scalar"]),
        ("tile", "wasm", ["relaxed"]),
    ],
)
async def test_tiles_are_chosen_once(axis: str, arm: str, asked: list[str]) -> None:
    specs = [step.spec for step in rungs_of(axis, arm)]
    arms, bench = [resolve(spec, FEATURES) for spec in specs], Tuner()
    pinned = await pin_tiles(cast(Workbench, bench), specs, arms, CONFIG)
    assert bench.asked == asked
    for spec, before, after in zip(specs, arms, pinned, strict=True):
        tiles = TILES.get(str(before.options.get("simd")), ())
        wanted = {o: tiles[-1] for o in TILE_OF.values() if spec.options.get(o) == "auto"}
        assert after.options == before.options | wanted
    assert (axis == "tile") == (arms == pinned)


# --------------------------------------------------------------------------- products apart


def run_apart(
    arm: ArmJob, ms: dict[Product, float], sha256: str = "x", slow: float = 1.0
) -> tuple[ArmJob, list[RungProduct]]:
    """Every product of a step takes `ms` by its option, in the second pass `slow` times as long;
    each sample is of ten products, and some were disturbed."""
    return arm, [
        RungProduct(
            option=product.option, count=product.count, kernel=kernel_on(arm, product),
            output_sha256=sha256,
            passes=tuple(
                KernelSamples(
                    threads=1, products_per_sample=10,
                    samples_ms=[ms[product.option] * 10 * factor * noise for noise in (3, 1, 2)],
                    roofline_gflops=[40, 40],
                )
                for factor in (1.0, slow)
            ),
        )
        for product in products(CONFIG)
    ]  # fmt: skip


def counts(option: Product) -> int:
    return sum(product.count for product in products(CONFIG) if product.option == option)


def test_only_the_products_that_changed_count() -> None:
    naive, forward, both = (
        arm_job(f"wasm:kernels={k}") for k in ("naive", "forward", "forward-dA")
    )
    before = run_apart(naive, {"mm_fwd": 8.0, "mm_da": 5.0, "mm_db": 7.0})
    after = run_apart(forward, {"mm_fwd": 2.0, "mm_da": 100.0, "mm_db": 7.0}, slow=2.0)
    found = gain(before, after)
    assert found.options == ("mm_fwd",)
    assert found.pass_gains == pytest.approx((4, 2))
    assert found.gain == pytest.approx(2 * 8 / (2 + 4))
    assert found.before_ms == pytest.approx(8 * counts("mm_fwd"))
    two = gain(before, run_apart(both, {"mm_fwd": 2.0, "mm_da": 10.0, "mm_db": 7.0}))
    assert two.options == ("mm_fwd", "mm_da")
    total = 8.0 * counts("mm_fwd") + 5.0 * counts("mm_da")
    assert two.gain == pytest.approx(total / (2.0 * counts("mm_fwd") + 10.0 * counts("mm_da")))


def test_another_module_or_thread_changes_all_products() -> None:
    ms: dict[Product, float] = {"mm_fwd": 1.0, "mm_da": 1.0, "mm_db": 1.0}
    half: dict[Product, float] = dict.fromkeys(ms, 0.5)
    one = run_apart(arm_job("wasm:threads=1"), ms)
    for text in ("wasm:threads=2", "wasm64:threads=1"):
        found = gain(one, run_apart(arm_job(text), half))
        assert found.options == tuple(TILE_OF)
        assert found.gain == pytest.approx(2)
        assert gain(one, run_apart(arm_job(text), half, sha256="y")).reason == (
            "the rungs gave other bits (mm_fwd)"
        )
    # Without a fused multiply-add other bits are right.
    assert gain(one, run_apart(arm_job("wasm:threads=1+simd=simd128"), half, "y")).gain


def test_the_same_kernels_have_no_gain() -> None:
    """A tile means nothing to a naive product."""
    ms: dict[Product, float] = {"mm_fwd": 1.0, "mm_da": 1.0, "mm_db": 1.0}
    one, other = (arm_job(f"wasm:kernels=naive+tile={tile}") for tile in TILES["relaxed"][:2])
    assert engine_of(one) == engine_of(other)
    assert (
        gain(run_apart(one, ms), run_apart(other, ms)).reason == "both rungs run the same kernels"
    )


def test_a_precision_counts_the_products_that_read_halves() -> None:
    """The same kernels' names, other loads: the weights' gradient stays as it is."""
    ms: dict[Product, float] = {"mm_fwd": 4.0, "mm_da": 2.0, "mm_db": 1.0}
    faster: dict[Product, float] = {"mm_fwd": 2.0, "mm_da": 1.0, "mm_db": 9.0}
    fixed = "matmul=blocked+tile=8x8+workgroup=8x8"
    features = {"webgpu": {"available": True, "features": ["shader-f16"]}}
    off, storage, compute = (
        resolve(parse_arm(f"webgpu:{fixed}+f16={f16}"), features)
        for f16 in ("off", "storage", "compute")
    )
    for one, other in ((off, storage), (storage, compute)):
        found = gain(run_apart(one, ms), run_apart(other, faster, "y"))
        assert found.options == ("mm_fwd", "mm_da")
        assert found.gain == pytest.approx(2)


# --------------------------------------------------------------------------- what it says


@pytest.mark.parametrize(
    ("gains", "best"),
    [
        ([2.0, 1.5], "c"),
        ([2.0, 0.9], "b"),
        ([0.5, 0.5], "a"),
        ([0.5, 3.0], "c"),
        ([2.0, None], None),
        ([2.0], None),
    ],
)
def test_the_fastest_rung(gains: list[float | None], best: str | None) -> None:
    assert fastest(["a", "b", "c"], gains) == best


def pair(before: str, after: str, **changes: Any) -> LadderPair:
    found = no_gain("nothing was measured")
    blank = LadderPair(before=before, after=after, budget_s=10, exit_code=0, apart=found)
    return measured(blank, RECEIPT, Path("r.receipt.json"), 0).model_copy(update=changes)


def a_ladder(pairs: list[LadderPair], **changes: Any) -> LadderReport:
    """A ladder with a rung for every end of its pairs."""
    labels = list(dict.fromkeys(label for p in pairs for label in (p.before, p.after)))
    found = LadderReport(
        axis="simd", meaning="instruction set", arm="wasm:simd=auto+threads=1",
        preset={"name": "tiny"}, seed=1, blocks=4, budget_s=60, budget_rule=ladder.BUDGET_RULE,
        machine={}, load_before={}, load_after={}, browser={}, interrupted=False,
        rungs=tuple(
            Rung(label=label, arm="wasm", status="ok", options={"simd": label, "threads": 1})
            for label in labels
        ),
        pairs=tuple(pairs), fastest=None, fastest_apart=None,
    )  # fmt: skip
    return found.model_copy(update=changes)


def test_a_receipt_becomes_a_pair() -> None:
    found = pair("scalar", "simd128")
    estimate = RECEIPT.comparison.estimate
    assert (found.ratio, found.low, found.high) == (estimate.ratio, estimate.low, estimate.high)
    assert found.word == "faster"
    assert found.verdict == "qualified"
    assert found.claims
    assert found.receipt == "r.receipt.json"
    assert found.receipt_digest == RECEIPT.digest
    assert found.before_step_ms == pytest.approx(10, rel=0.1)
    assert found.after_step_ms == pytest.approx(5, rel=0.1)
    assert not pair("a", "b", verdict="failed").claims


def test_the_table_keeps_both_gains_apart() -> None:
    apart = no_gain("").model_copy(update={"gain": 3.25, "pass_gains": (3.2, 3.3)})
    page = report.ladder(a_ladder([pair("scalar", "simd128", apart=apart)]), width=200)
    lines = page.splitlines()
    assert "the same on every rung: threads=1" in lines
    row = next(line for line in lines if line.startswith("simd128 "))
    ratio = RECEIPT.comparison.estimate.ratio
    assert f"{ratio:.4g}" in row
    assert "3.25 (3.2, 3.3)" in row
    assert " faster " in row
    assert row.endswith("qualified")
    assert "what lost or did not help: nothing" in lines
    doubtful = pair("scalar", "simd128", verdict="unqualified", reasons=("quiet failed: busy",))
    page = report.ladder(a_ladder([doubtful]), width=200)
    assert "scalar → simd128: unqualified: quiet failed: busy" in page
    assert "scalar → simd128: products apart: nothing was measured" in page


def test_what_lost_is_listed() -> None:
    apart = no_gain("").model_copy(update={"gain": 0.7, "pass_gains": (0.7, 0.7)})
    found = a_ladder(
        [
            pair("a", "b", word="slower", ratio=0.9, low=0.85, high=0.95),
            pair("b", "c", word="equivalent", ratio=1.0, low=0.99, high=1.01),
            pair("c", "d", word="unsure", low=None, high=None, ratio_reason="1 finished block"),
            pair("d", "e", verdict="failed", reasons=("finite.B failed: NaN",), exit_code=1),
            pair("e", "f", apart=apart),
            pair("f", "g"),
        ]
    )
    unsupported = Rung(
        label="h", arm="wasm", status="unsupported", reason="no such thing", options={}
    )
    found = found.model_copy(update={"rungs": (*found.rungs, unsupported), "interrupted": True})
    lost = report.ladder_losses(found)
    assert lost[0] == "h does not run here: no such thing"
    assert lost[1] == "a → b: lost: 0.9 times as fast [0.85 to 0.95]"
    assert lost[2].startswith("b → c: made no difference: 1 times as fast")
    assert lost[3].startswith("c → d: no proven gain: ")
    assert lost[3].endswith("[no interval] (1 finished block)")
    assert lost[4] == "d → e: no claim: finite.B failed: NaN"
    assert lost[5].startswith("e → f: lost in its products alone: ")
    assert len(lost) == 6
    page = report.ladder(found, width=200)
    for line in lost:
        assert line in page
    assert "interrupted" in page
    row = next(line for line in page.splitlines() if line.startswith("e "))
    assert "no claim" in row
    assert "faster" not in row
    assert "unsupported" in next(line for line in page.splitlines() if line.startswith("h "))


def test_what_a_page_says_cannot_steer_the_terminal() -> None:
    hostile = pair("a\x1b[2J", "b", verdict="failed", reasons=("\x07\u202e",))
    page = report.ladder(a_ladder([hostile]))
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cf") for c in page)


def test_exit_codes() -> None:
    worst = [pair("a", "b"), pair("b", "c", exit_code=4), pair("c", "d", exit_code=1)]
    assert a_ladder(worst).exit_code == 4
    assert a_ladder(worst[:1]).exit_code == 0
    assert a_ladder(worst, interrupted=True).exit_code == 130


# --------------------------------------------------------------------------- in Chromium

Climb = Callable[..., tuple[int, LadderReport | None, str]]


@pytest.fixture
def climb(
    driver: Callable[..., tuple[int, str, str]],
    preset: Path,
    tmp_path: Path,
) -> Climb:
    """`driver ladder` in this process: exit code, what its file holds, what was printed.

    Every receipt that a pair names has to be there and to verify.
    """

    def go(*arguments: object) -> tuple[int, LadderReport | None, str]:
        out = tmp_path / "receipts"
        code, printed, err = driver("ladder", "--preset", preset, "--out", out, *arguments)
        printed += err
        kept = [
            LadderReport.model_validate_json(path.read_text()) for path in out.glob("*.ladder.json")
        ]
        named = {p.receipt: p.receipt_digest for found in kept for p in found.pairs if p.receipt}
        for name, digest in named.items():
            receipt = json.loads((out / name).read_text())
            assert verify(receipt, evaluator()) == ([], [])
            assert receipt["digest"] == digest
        assert {path.name for path in out.glob("*.receipt.json")} == set(named)
        assert len(kept) <= 1
        return code, kept[0] if kept else None, printed

    return go


def without(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    """The browser says to the ladder that it lacks these WebAssembly features."""
    ask = ladder.probe

    async def less(*arguments: Any) -> Probed:
        probed = await ask(*arguments)
        probed.features["wasm"] |= dict.fromkeys(features, False)
        return probed

    monkeypatch.setattr(ladder, "probe", less)


def test_a_ladder_with_a_rung_that_does_not_run(
    climb: Climb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pair, its receipt, its products apart, and the rung that is left out by name."""
    without(monkeypatch, "relaxed_simd")
    words = ("--arm", "wasm:threads=1", "--blocks", 1, "--budget", "5m")
    code, found, printed = climb("--axis", "simd", *words)
    assert code == 0
    assert found
    assert [(rung.label, rung.status) for rung in found.rungs] == [
        ("scalar", "ok"), ("simd128", "ok"), ("relaxed", "unsupported"),
    ]  # fmt: skip
    (only,) = found.pairs
    assert (only.before, only.after, only.word) == ("scalar", "simd128", "unsure")
    assert only.verdict == "unqualified"
    assert only.ratio and only.before_step_ms and only.after_step_ms
    assert only.apart.options == tuple(TILE_OF)
    assert only.apart.gain and len(only.apart.pass_gains) == 2
    for rung in found.rungs[:2]:
        assert len(rung.products) == len(products(presets.load("tiny").model))
        assert all(len(run.samples_ms) == 3 for p in rung.products for run in p.passes)
        assert {p.passes[0].threads for p in rung.products} == {1}
    assert "relaxed does not run here: arm wasm: this browser has no simd=relaxed" in printed
    assert "scalar → simd128: no proven gain" in printed


@pytest.mark.slow
def test_a_ladder_of_precision(climb: Climb) -> None:
    """Halves stay within limits that are in the receipt, and the report tells what came of them."""
    words = (
        "--arm",
        "webgpu:tile=8x8+workgroup=8x8",
        "--axis",
        "precision",
        "--blocks",
        1,
        "--budget",
        "8m",
    )
    code, found, printed = climb(*words)
    if code == 3:
        pytest.skip(f"no WebGPU here: {printed[-200:]}")
    assert code == 0, printed
    assert found and found.precision
    off, storage, compute = found.precision.rungs
    assert off.status == storage.status == "ok"
    errors = {(rung.label, check.name): check for rung in (off, storage) for check in rung.checks}
    for name in ("parity.grads", "final.params", "curve.loss"):
        plain, halves = errors["off", name], errors["storage", name]
        assert halves.limit == found.precision.limits["storage"][name]
        assert plain.measured and halves.measured
        assert plain.measured < halves.measured <= (halves.limit or 0)
    assert errors["storage", "parity.grads"].measured > 1e-4, "so halves were read"  # type: ignore[operator]
    assert storage.memory_bytes["halves"] * 8 >= storage.memory_bytes["state"]
    assert storage.quality and storage.quality.before == "off"
    assert off.text and storage.text
    assert compute.status == "unsupported" or compute.checks
    # One block gives no interval, so whatever lost is still told, and nothing is adopted.
    assert found.precision.adopted == "off"
    assert "storage not adopted" in printed
    assert f"limits {found.precision.limits_sha256[:12]}" in printed


def test_too_few_rungs(climb: Climb, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "memory64")
    code, found, printed = climb("--axis", "address")
    assert code == 3
    assert found is None
    assert "has 1 rung here (wasm)" in printed
    assert "wasm64: arm wasm64: this browser has no Memory64" in printed


def test_a_preset_that_needs_64_bits(climb: Climb, preset: Path) -> None:
    preset.write_text(preset.read_text().replace("memory64 = false", "memory64 = true"))
    code, found, printed = climb("--axis", "address", "--arm", "wasm64")
    assert (code, found) == (3, None)
    assert "wasm: arm wasm: preset mini needs Memory64" in printed


def fakes(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """The null arm gets an axis."""
    texts = [f"null:{option}" for option in options]
    monkeypatch.setitem(AXES, "null", {"fake": Axis("programmed", lambda _: texts)})


def test_a_pair_that_fails_is_kept_and_the_next_one_runs(
    climb: Climb, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes(monkeypatch, "ms=1+crash_at=4", "ms=1+nan_at=3", "ms=0.4")
    code, found, printed = climb("--arm", "null", "--axis", "fake", "--blocks", 1)
    assert code == 4
    assert found
    assert [p.exit_code for p in found.pairs] == [4, 1]
    assert [p.verdict for p in found.pairs] == ["failed", "failed"]
    assert found.fastest is None
    assert all(p.apart.reason == "arm null has no kernels to run apart" for p in found.pairs)
    assert printed.count(" no claim: ") == 2


def test_a_part_of_the_budget_that_is_too_short(
    climb: Climb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said how long a pair needs; nothing is measured less in silence."""
    fakes(monkeypatch, "ms=1000000", "ms=900000")
    code, found, printed = climb("--arm", "null", "--axis", "fake")
    assert code == 2
    assert found
    (only,) = found.pairs
    assert only.receipt is None
    assert "too short" in only.reasons[0]
    assert ladder.MORE_BUDGET in only.reasons[0]
    assert "no receipt" in printed


def test_a_budget_that_is_used_up(climb: Climb, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair for which nothing is left is not begun, and says what would do."""
    fakes(monkeypatch, "ms=2", "ms=1", "ms=0.5")
    monkeypatch.setattr(bench_commands, "duration_s", lambda *_: 1e-6)  # spent on any machine
    code, found, printed = climb("--arm", "null", "--axis", "fake", "--budget", "1s")
    assert code == 2
    assert found
    assert [p.exit_code for p in found.pairs] == [2, 2]
    assert [p.receipt for p in found.pairs] == [None, None]
    assert not any(p.claims for p in found.pairs)
    assert "at most 0 s" not in printed
    assert all("used up before this pair" in p.reasons[0] for p in found.pairs)


def test_what_budget_would_do() -> None:
    """What is behind it and the preset's budget a pair, a tenth more for the products apart."""
    why = ladder.used_up(20, 33, 2, presets.load("small"))  # 4m a pair
    assert "the budget of 20 s was used up before this pair (33 s so far)" in why
    assert "--budget 570s, which leaves every pair the 4m of preset small" in why  # 513 / 0.9
    assert ladder.MORE_BUDGET in why


def test_interrupted(climb: Climb, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is kept and shown, the pair that was under way too."""
    fakes(monkeypatch, "ms=2", "ms=1", "ms=0.5")
    slot = Reporter.slot
    seen = SimpleNamespace(slots=0)

    def watched(self: Reporter, text: str, total: int, now: SlotNow) -> None:
        slot(self, text, total, now)
        seen.slots += 1
        if seen.slots == 6 and now.number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Reporter, "slot", watched)
    code, found, printed = climb("--arm", "null", "--axis", "fake", "--blocks", 1)
    assert code == 130
    assert found
    assert found.interrupted
    first, second = found.pairs
    assert (first.exit_code, first.ratio is not None) == (0, True)
    assert (second.exit_code, second.verdict, second.ratio) == (130, "failed", None)
    assert "interrupted: pairs are missing" in printed
    assert "ladder: " in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--axis", "workgroup"), "has no such axis"),
        (("--arm", "null"), "it has none"),
        (("--arm", "wasm:threads=1", "--axis", "threads"), "leave it out"),
        (("--blocks", "0"), "--blocks 0"),
        (("--seed", "-1"), "--seed -1"),
        (("--budget", "soon"), "soon"),
        (("--preset", "behemoth"), "needs Memory64"),
    ],
)
def test_bad_usage(climb: Climb, words: tuple[str, ...], said: str) -> None:
    code, found, printed = climb(*words)
    assert (code, found) == (2, None)
    assert said in printed.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize("axis", AXES["wasm"])
def test_every_axis(climb: Climb, axis: str) -> None:
    """Each pair is right, and the products apart have a gain; what it is, is not asked."""
    code, found, _ = climb("--axis", axis, "--blocks", 1, "--budget", "10m")
    if axis == "threads" and code == 3:
        pytest.skip("this machine has one thread")
    assert code == 0
    assert found
    assert len(found.pairs) == len(found.rungs) - 1
    for each in found.pairs:
        assert each.ratio and each.apart.gain, each
        assert each.verdict != "failed"
    assert found.fastest and found.fastest_apart


Driver = Callable[..., tuple[int, str, str]]


def report_of(driver: Driver, path: Path, word: str) -> tuple[int, str]:
    """`driver WORD PATH`: exit code and all that it printed."""
    code, out, err = driver(word, path)
    return code, out + err


def test_the_file_is_shown_and_is_no_receipt(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "tiny.ladder.json"
    found = a_ladder([pair("scalar", "simd128")])
    path.write_text(found.model_dump_json())
    code, printed = report_of(driver, path, "report")
    assert (code, printed) == (0, report.ladder(found, 110) + "\n")
    for word in ("verify", "reproduce"):
        code, printed = report_of(driver, path, word)
        assert code == 2
        assert "tiny.ladder.json" in printed and "`driver ladder`" in printed
    path.write_text('{"format": "x"}')
    assert "tiny.ladder.json: format is 'x'" in report_of(driver, path, "report")[1]
    path.write_text('{"format": "driver-kernels/1"}')
    for word in ("report", "verify"):
        code, printed = report_of(driver, path, word)
        assert code == 2
        assert "tiny.ladder.json" in printed and "`driver kernels --json`" in printed


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"axis": "[/red]\x1b[2J", "meaning": "\x1b]0;x\x07"}, 0),
        ({"rungs": [], "pairs": []}, 0),
        ({"preset": {}}, 0),
        ({"rungs": [{"label": "\x1b[2J"}]}, 2),
        ({"pairs": 3}, 2),
        ({"more\x1b": 1}, 2),
    ],
)
def test_a_stranger_s_ladder(
    driver: Driver, tmp_path: Path,
    change: dict[str, Any], code: int,
) -> None:  # fmt: skip
    path = tmp_path / "x.ladder.json"
    data = json.loads(a_ladder([pair("scalar", "simd128")]).model_dump_json())
    path.write_text(json.dumps(data | change))
    got, printed = report_of(driver, path, "report")
    assert got == code
    assert "\x1b" not in printed

"""Variants of the WGSL products: what is wrong is dropped, what is right is chosen by its time."""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from driver import presets
from driver.arms import TILE_OF, parse_arm, resolve
from driver.errors import SlotError
from driver.jobs import kernel_op
from driver.kernels.products import checks, judge, variants
from driver.kernels.shapes import Shape
from driver.measure import JobOutcome
from driver.records import ArmJob, Kernel, KernelRow, Op, OpResult, VariantTrial
from driver.tensors import F32
from driver.variants import TUNED_TILES, TUNED_WORKGROUPS, choose, classes
from driver.workbench import (
    GPU_AT_ONCE,
    Workbench,
    at_once,
    draw_inputs,
    gpu_kernels,
    gpu_workgroups,
    in_parts,
    kernel_of,
)

CONFIG = presets.load("tiny").model
FEATURES: dict[str, Any] = {"webgpu": {"available": True, "is_fallback": True, "features": []}}


def product_of(kernel: Kernel, inputs: F32, halves: bool = False) -> np.ndarray:
    """What the page would post."""
    M, N, K = kernel.M, kernel.N, kernel.K
    a, b = inputs[: M * K], inputs[M * K : M * K + K * N]
    if halves and kernel.product != "mm_db":
        b = b.astype(np.float16).astype(np.float32)
    a = a.reshape(K, M).T if kernel.product == "mm_db" else a.reshape(M, K)
    b = b.reshape(N, K).T if kernel.product == "mm_da" else b.reshape(K, N)
    return np.ascontiguousarray(a @ b, "<f4")


class Adapter:
    """A workbench of known speeds and faults, by the words of a kernel."""

    def __init__(
        self, speeds: dict[str, float], wrong: str = "", refused: str = "", halves: bool = False,
        cuts: bool = True,
    ) -> None:  # fmt: skip
        self.speeds, self.wrong, self.refused, self.halves = speeds, wrong, refused, halves
        self.cuts = cuts
        self.asked: list[list[str]] = []
        self.timed = False

    async def ask(self, name: str, arm: ArmJob, program: Sequence[Op], inputs: F32) -> JobOutcome:
        kernels = [op.kernel for op in program if op.kernel]
        words = [f"{k.kernel} {k.manner}" for k in kernels]
        self.asked.append(words)
        if self.refused and any(self.refused in word for word in words):
            raise SlotError("compile: it does not")
        ops, blobs = [OpResult(op="open")], {}
        for op, kernel, word in zip(program, kernels, words, strict=True):
            output = product_of(kernel, inputs, self.halves)
            if self.wrong and self.wrong in word:
                output[-1, -1] += 0.1
            assert op.label
            blobs[op.label] = bytearray(output.tobytes())
            dispatches = 2 if self.cuts and kernel.split > 1 else 1
            detail: dict[str, Any] = {"forks": dispatches, "chunks": dispatches}
            if op.count:
                self.timed = True
                speed = next((s for key, s in self.speeds.items() if key in word), 1.0)
                ms = 2 * kernel.M * kernel.N * kernel.K / speed / 1e6
                detail |= {"threads": 1, "products_per_sample": 1, "samples_ms": [3 * ms, ms],
                          "roofline_gflops": [10, 10, 10]}  # fmt: skip
            ops.append(OpResult(op="kernel", detail=detail))
        return cast(JobOutcome, _Outcome(ops, blobs))


class _Outcome:
    def __init__(self, ops: list[OpResult], blobs: dict[str, bytearray]) -> None:
        self.ops, self.blobs = ops, blobs


async def chosen(
    adapter: Adapter, arm: str = "webgpu", offered: tuple[str, ...] = (), **said: Any
) -> tuple[ArmJob, tuple[VariantTrial, ...]]:
    """`said`: what else the page says; is_fallback of its adapter."""
    spec = parse_arm(arm)
    program = said.pop("is_fallback", True)
    adapter_facts = FEATURES["webgpu"] | {"features": list(offered), "is_fallback": program}
    features = said | {"webgpu": adapter_facts}
    resolved = resolve(spec, features)
    return await choose(cast(Workbench, adapter), "tune", resolved, spec, CONFIG, features)


def test_every_product_of_a_step_is_in_a_class() -> None:
    found = classes(CONFIG)
    assert [(c.option, c.product.layout) for c in found] == [
        ("mm_fwd", "mm_fwd"), ("mm_da", "mm_da"), ("mm_db", "mm_db"), ("mm_fwd", "mm_da"),
        ("mm_da", "mm_fwd"),
    ]  # fmt: skip


async def test_the_fastest_is_chosen() -> None:
    adapter = Adapter({"blocked 4x4 in 16x4": 9, "blocked 4x4": 5, "blocked": 2, "tiled": 3})
    arm, trials = await chosen(adapter)
    assert [arm.options[product] for product in TILE_OF] == ["blocked"] * 3
    assert {arm.options[tile] for tile in TILE_OF.values()} == {"4x4"}
    assert arm.options["workgroup"] == "16x4"
    marked = [t for t in trials if t.chosen]
    assert {(t.kernel.tile, t.kernel.workgroup) for t in marked} == {("4x4", "16x4")}
    assert len(marked) == len(classes(CONFIG))
    assert not any("naive" in word for page in adapter.asked for word in page)


@pytest.mark.parametrize("offered", [(), ("subgroups",)])
async def test_subgroups_are_tried_where_the_adapter_has_them(offered: tuple[str, ...]) -> None:
    adapter = Adapter({"subgroup": 9, "blocked": 5})
    arm, trials = await chosen(adapter, offered=offered)
    tried = {trial.option for trial in trials if trial.kernel.kernel == "subgroup"}
    assert tried == (set(TILE_OF) if offered else set())
    best = "subgroup" if offered else "blocked"
    assert {arm.options[product] for product in TILE_OF} == {best}


async def test_with_halves_the_products_that_read_them_are_blocked() -> None:
    adapter = Adapter({"tiled": 9, "blocked": 5}, halves=True)
    arm, trials = await chosen(adapter, "webgpu:f16=storage")
    assert [arm.options[product] for product in TILE_OF] == ["blocked", "blocked", "tiled"]
    assert {trial.status for trial in trials} == {"ok"}


async def test_with_halves_a_product_of_the_floats_is_wrong() -> None:
    with pytest.raises(SlotError, match=r"no right variant of mm_fwd, mm_da here: .* the bound"):
        await chosen(Adapter({}), "webgpu:f16=storage")


async def test_a_tie_keeps_the_default() -> None:
    arm, _ = await chosen(Adapter({"8x8 in 8x8": 2.0, "": 2.02}))
    assert (arm.options["mm_fwd"], arm.options["tile_fwd"]) == ("blocked", "8x8")
    assert arm.options["workgroup"] == "8x8"


async def test_a_wrong_one_is_dropped_with_its_reason_however_fast() -> None:
    arm, trials = await chosen(Adapter({"tiled": 100, "blocked": 2}, wrong="tiled"))
    assert arm.options["mm_da"] == "blocked"
    dropped = [trial for trial in trials if trial.kernel.kernel == "tiled"]
    assert {trial.status for trial in dropped} == {"wrong"}
    assert all(trial.reason and "times the bound" in trial.reason for trial in dropped)
    assert not any(trial.chosen or trial.gflops for trial in dropped)


async def test_one_that_is_refused_does_not_end_the_others() -> None:
    arm, trials = await chosen(Adapter({"tiled": 3}, refused="blocked"))
    assert {arm.options[product] for product in TILE_OF} == {"tiled"}
    refused = [trial for trial in trials if trial.status == "refused"]
    assert {trial.kernel.kernel for trial in refused} == {"blocked"}
    assert refused[0].reason == "compile: it does not"


async def test_the_plain_one_runs_where_nothing_else_is_right() -> None:
    arm, trials = await chosen(Adapter({}, wrong="ed "))
    assert {arm.options[product] for product in TILE_OF} == {"naive"}
    assert {t.kernel.kernel for t in trials if t.chosen} == {"naive"}


async def test_what_an_arm_fixes_is_checked_and_not_timed() -> None:
    adapter = Adapter({})
    _, trials = await chosen(adapter, "webgpu:matmul=naive")
    assert not adapter.timed
    assert len(trials) == len(classes(CONFIG)) == sum(trial.chosen for trial in trials)
    assert all(trial.error_over_bound is not None for trial in trials)
    with pytest.raises(SlotError, match="no right variant of mm_fwd, mm_da, mm_db here: mm_fwd na"):
        await chosen(Adapter({}, wrong="naive"), "webgpu:matmul=naive")


# --------------------------------------------------------------------------- products in parts

FIXED = "webgpu:matmul=blocked+tile=8x8+workgroup=8x8"  # all but the parts


async def test_on_a_gpu_a_product_with_few_workgroups_is_tried_in_parts() -> None:
    """With every tile again, since parts may let a larger one win; with what adds them, as `ask`
    runs whole kernels."""
    speeds = {"8x8 in 8x8 in 4 parts": 20, "8x8 in 8x8 in 8 parts": 19, "4x4 in 8x8": 5}
    arm, trials = await chosen(Adapter(speeds), is_fallback=False)
    assert (arm.options["mm_db"], arm.options["tile_db"]) == ("blocked", "8x8")
    assert (arm.options["split_db"], arm.options["tile_fwd"]) == ("4", "4x4")
    cut = [trial for trial in trials if trial.kernel.split > 1]
    assert {(t.kernel.tile, t.kernel.split) for t in cut} == {
        (tile, split) for tile in TUNED_TILES for split in (2, 4, 8)
    }
    assert {t.option for t in cut} == {"mm_db"}
    marked = [t.kernel for t in trials if t.chosen and t.option == "mm_db"]
    assert [(k.tile, k.split) for k in marked] == [("8x8", 4)]


async def test_parts_have_to_be_worth_a_dispatch() -> None:
    """Faster by 1%: not enough. Faster by far but wrong: not at all."""
    arm, _ = await chosen(Adapter({"parts": 2.02, "": 2.0}), FIXED, is_fallback=False)
    assert arm.options["split_db"] == "1"
    adapter = Adapter({"parts": 99.0, "": 2.0}, wrong="parts")
    arm, trials = await chosen(adapter, FIXED, is_fallback=False)
    assert arm.options["split_db"] == "1"
    dropped = [trial for trial in trials if trial.kernel.split > 1]
    assert {trial.status for trial in dropped} == {"wrong"}
    assert [t.kernel.split for t in trials if t.chosen and t.option == "mm_db"] == [1]


async def test_parts_that_do_not_run_do_not_end_the_others() -> None:
    adapter = Adapter({"parts": 3.0, "": 2.0}, refused="in 8 parts")
    arm, trials = await chosen(adapter, FIXED, is_fallback=False)
    assert arm.options["split_db"] == "2"
    assert [t.kernel.split for t in trials if t.status == "refused"] == [8]


async def test_an_older_source_that_cuts_nothing_is_not_chosen_in_parts() -> None:
    adapter = Adapter({"parts": 3.0, "": 2.0}, cuts=False)
    arm, trials = await chosen(adapter, FIXED, is_fallback=False)
    assert arm.options["split_db"] == "1"
    dropped = {t.reason for t in trials if t.kernel.split > 1}
    assert dropped == {"ran in one piece: the kernels of this source are not cut"}


async def test_where_nothing_else_is_open_only_the_parts_are_timed() -> None:
    """Beside the same product in one piece, each once."""
    adapter = Adapter({"parts": 3.0, "": 2.0})
    arm, trials = await chosen(adapter, FIXED, is_fallback=False)
    assert arm.options["split_db"] == "2"
    kernels = [(t.option, t.kernel) for t in trials]
    assert len(kernels) == len(set(kernels)) == len(classes(CONFIG)) + 3
    assert [t.kernel.split for t in trials if t.gflops] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        (FIXED, {"usable_threads": 2}),  # a program on two cores has enough to do
        (FIXED, {}),
        (f"{FIXED}+split_db=1", {"is_fallback": False}),
        (f"{FIXED}+split_db=2", {"is_fallback": False}),
        ("webgpu:matmul=tiled", {"is_fallback": False}),
    ],
)
async def test_where_parts_are_not_tried(arm: str, said: dict[str, Any]) -> None:
    adapter = Adapter({})
    found, trials = await chosen(adapter, arm, **said)
    fixed = str(parse_arm(arm).options["split_db"])
    assert found.options["split_db"] == ("1" if fixed == "auto" else fixed)
    assert len(adapter.asked) == 1, "no page more than without parts"
    assert not adapter.timed
    (of,) = (t for t in trials if t.option == "mm_db")
    assert of.chosen and of.kernel.split == int(str(found.options["split_db"]))


def test_what_is_worth_trying_in_parts() -> None:
    """Until the adapter is full, and no part shallower than 64."""

    def tried(M: int, N: int, K: int, most: int, tile: str = "4x4") -> list[int]:
        of = Kernel(product="mm_db", kernel="blocked", tile=tile, workgroup="8x8", M=M, N=N, K=K)
        return [kernel.split for kernel in in_parts(of, most)]

    assert tried(96, 96, 1024, GPU_AT_ONCE) == [2, 4, 8, 16]  # 9 workgroups
    assert tried(96, 96, 1023, GPU_AT_ONCE) == [2, 4, 8]
    assert tried(96, 96, 127, GPU_AT_ONCE) == []
    assert tried(1024, 1024, 4096, GPU_AT_ONCE) == []  # 1024 of them
    assert tried(1024, 1023, 4096, 1025) == [2]
    assert tried(1024, 512, 4096, GPU_AT_ONCE) == [2]  # 512; with two parts it is full
    assert tried(1024, 512, 4096, GPU_AT_ONCE, "8x8") == [2, 4, 8]
    assert tried(64, 64, 4096, 2, "8x8") == [2]  # one, on two cores
    assert tried(65, 64, 4096, 2, "8x8") == []


@pytest.mark.parametrize("preset", presets.names())
def test_a_program_on_two_cores_tries_no_preset_in_parts(preset: str) -> None:
    (of,) = (c.product for c in classes(presets.load(preset).model) if c.option == "mm_db")
    for workgroup in ("8x8", *TUNED_WORKGROUPS):
        assert in_parts(kernel_of(of, "blocked", "8x8", workgroup), 2) == []
    assert in_parts(kernel_of(of, "blocked", "4x4", "8x8"), GPU_AT_ONCE) or preset == "behemoth"


@pytest.mark.parametrize(
    ("arm", "is_fallback", "splits"),
    [
        ("webgpu", False, {1, 2, 4, 8, 16}),
        ("webgpu", True, {1}),  # nine workgroups, two cores
        ("webgpu:split_db=1", False, {1}),
        ("webgpu:split_db=8", True, {8}),
    ],
)
def test_parts_are_shown_apart_where_tuning_tries_them(
    arm: str, is_fallback: bool, splits: set[int]
) -> None:
    adapter = FEATURES["webgpu"] | {"is_fallback": is_fallback}
    features = {"webgpu": adapter, "usable_threads": 2}
    spec = parse_arm(arm)
    shapes: list[Shape] = [("mm_db", 96, 96, 1024), ("mm_fwd", 96, 96, 1024)]
    found = variants(shapes, spec, resolve(spec, features), features)
    assert {k.split for k in found if (k.product, k.kernel) == ("mm_db", "blocked")} == splits
    assert {k.split for k in found if (k.product, k.kernel) != ("mm_db", "blocked")} == {1}
    assert len(found) == len(set(found))


def test_at_once() -> None:
    def of(is_fallback: bool | None) -> int:
        return at_once({"webgpu": {"is_fallback": is_fallback}, "usable_threads": 6})

    assert (of(True), of(False), of(None)) == (6, GPU_AT_ONCE, GPU_AT_ONCE)


# --------------------------------------------------------------------------- in Chromium

module_loop = pytest.mark.asyncio(loop_scope="module")


@module_loop
async def test_every_variant_apart_keeps_the_bound(gpu_bench) -> None:
    bench, features = gpu_bench
    spec = parse_arm("webgpu")
    arm = resolve(spec, features)
    every = [
        kernel
        for shape in ((13, 7, 5), (33, 70, 41))
        for product in TILE_OF
        for kernel in gpu_kernels(spec, arm, ("blocked", "tiled", "naive"), product, product, shape)
    ]
    whole = [k for k in every if (k.product, k.kernel) == ("mm_db", "blocked")]
    every += [k.model_copy(update={"split": split}) for k in whole for split in (2, 16)]
    inputs = draw_inputs(every, 5)
    outcome = await bench.ask("check", arm, checks(every, same_sums=False), inputs)
    for kernel, op in zip(every, outcome.ops[1:], strict=True):
        if kernel.kernel == "blocked":  # a dispatch, and one that adds parts by vectors of four
            vectors = math.ceil(kernel.M * kernel.N / 4) + math.ceil(kernel.N / 4)
            adding = math.ceil(vectors / 64)
            chunks = kernel.split * gpu_workgroups(kernel) + (adding if kernel.split > 1 else 0)
            dispatches = 1 if kernel.split == 1 else 2
            assert (op.detail["forks"], op.detail["chunks"]) == (dispatches, chunks)
    digests = [str(op.detail["output_sha256"]) for op in outcome.ops[1:]]
    rows = judge(every, digests, outcome.blobs, inputs, same_sums=False)
    assert [row for row in rows if row.status != "ok"] == []
    assert all(row.error_over_bound for row in rows)


@module_loop
async def test_products_of_halves_apart_keep_their_bound(gpu_bench) -> None:
    """Against the halves' exact product; against that of the floats they are far off."""
    bench, features = gpu_bench
    arm = resolve(parse_arm("webgpu:f16=storage+tile=4x8"), features)
    every = [
        Kernel(product=product, kernel="blocked", tile="4x8", workgroup="8x8", M=M, N=N, K=K)
        for M, N, K in ((13, 7, 5), (32, 68, 40))
        for product in TILE_OF
    ]
    inputs = draw_inputs(every, 5)
    outcome = await bench.ask("halves", arm, checks(every, same_sums=False), inputs)
    digests = [str(op.detail["output_sha256"]) for op in outcome.ops[1:]]

    def judged(f16: str) -> list[KernelRow]:
        options = {"f16": f16}
        return judge(every, digests, outcome.blobs, inputs, same_sums=False, options=options)

    assert [row.reason for row in judged("storage") if row.status != "ok"] == []
    wrong = [row.kernel.product for row in judged("off") if row.status != "ok"]
    assert wrong == ["mm_fwd", "mm_da"] * 2


@module_loop
async def test_samples_alternate_with_the_roofline(gpu_bench) -> None:
    bench, features = gpu_bench
    arm = resolve(parse_arm("webgpu"), features)
    (kernel, *_) = gpu_kernels(parse_arm("webgpu"), arm, ("blocked",), "mm_db", "mm_db", (9, 8, 7))
    inputs = draw_inputs([kernel], 5)
    outcome = await bench.ask("time", arm, [kernel_op(kernel, 3)], inputs)
    detail = outcome.ops[1].detail
    assert len(detail["samples_ms"]) == 3
    assert len(detail["roofline_gflops"]) == 4
    assert (detail["forks"], detail["chunks"]) == (1, 1)
    assert all(ms > 0 for ms in detail["samples_ms"])

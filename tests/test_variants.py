"""Variants of the WGSL products: what is wrong is dropped, what is right is chosen by its time."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from driver import presets
from driver.arms import TILE_OF, parse_arm, resolve
from driver.errors import SlotError
from driver.jobs import kernel_op
from driver.kernels.products import checks, judge
from driver.measure import JobOutcome
from driver.records import ArmJob, Kernel, KernelRow, Op, OpResult, VariantTrial
from driver.tensors import F32
from driver.variants import choose, classes
from driver.workbench import Workbench, draw_inputs, gpu_kernels

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
        self, speeds: dict[str, float], wrong: str = "", refused: str = "", halves: bool = False
    ) -> None:
        self.speeds, self.wrong, self.refused, self.halves = speeds, wrong, refused, halves
        self.asked: list[list[str]] = []
        self.timed = False

    async def ask(self, name: str, arm: ArmJob, program: Sequence[Op], inputs: F32) -> JobOutcome:
        kernels = [op.kernel for op in program if op.kernel]
        words = [f"{k.kernel} {k.tile} in {k.workgroup}" for k in kernels]
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
            detail: dict[str, Any] = {}
            if op.count:
                self.timed = True
                speed = next((s for key, s in self.speeds.items() if key in word), 1.0)
                ms = 2 * kernel.M * kernel.N * kernel.K / speed / 1e6
                detail = {"threads": 1, "products_per_sample": 1, "samples_ms": [3 * ms, ms],
                          "roofline_gflops": [10, 10, 10]}  # fmt: skip
            ops.append(OpResult(op="kernel", detail=detail))
        return cast(JobOutcome, _Outcome(ops, blobs))


class _Outcome:
    def __init__(self, ops: list[OpResult], blobs: dict[str, bytearray]) -> None:
        self.ops, self.blobs = ops, blobs


async def chosen(
    adapter: Adapter, arm: str = "webgpu", offered: tuple[str, ...] = ()
) -> tuple[ArmJob, tuple[VariantTrial, ...]]:
    spec = parse_arm(arm)
    features = {"webgpu": FEATURES["webgpu"] | {"features": list(offered)}}
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
    inputs = draw_inputs(every, 5)
    outcome = await bench.ask("check", arm, checks(every, same_sums=False), inputs)
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

"""`driver kernels`: the bound, the judgement, and every kernel and tile in a real Chromium."""

import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from driver import layout, presets, report
from driver.arms import TILE_OF, TILES, parse_arm, resolve
from driver.browser import BrowserSession, find_browser
from driver.errors import SlotError, UsageError
from driver.jobs import kernel_op
from driver.kernels import parse_shapes
from driver.kernels.products import checks, error_over_bound, judge, placed, timed
from driver.records import Kernel, KernelReport, KernelSamples, Op, Product, UnevenFork
from driver.server import JobServer
from driver.tensors import F32, products
from driver.workbench import Workbench, draw_inputs, over_roofline, rates, speeds

FEATURES = {
    "cross_origin_isolated": True,
    "usable_threads": 2,
    "wasm": {"simd128": True, "relaxed_simd": True, "threads": True, "memory64": True,
             "memory64_shared": True},
}  # fmt: skip


def kernel(
    product: Product, M: int, N: int, K: int, kind: str = "blocked", tile: str = "4x8"
) -> Kernel:
    return Kernel.model_validate(
        {"product": product, "kernel": kind, "tile": tile, "M": M, "N": N, "K": K}
    )


def in_float32(of: Kernel, inputs: F32) -> F32:
    """The product as a float32 chain with k ascending."""
    a, b = inputs[: of.M * of.K], inputs[of.M * of.K : of.M * of.K + of.K * of.N]
    A = a.reshape(of.K, of.M).T if of.product == "mm_db" else a.reshape(of.M, of.K)
    B = b.reshape(of.N, of.K).T if of.product == "mm_da" else b.reshape(of.K, of.N)
    C = np.zeros((of.M, of.N), np.float32)
    for k in range(of.K):
        C += A[:, k, None] * B[None, k]
    return C


# --------------------------------------------------------------------------- shapes


def test_a_preset_stands_for_its_steps_products() -> None:
    shapes = parse_shapes("preset:large", "matmul").products
    assert len(shapes) == len(set(shapes)) == 15
    assert ("mm_fwd", 1536, 768, 192) in shapes
    assert ("mm_db", 256, 192, 1536) in shapes  # the head's
    assert {shape[0] for shape in parse_shapes("preset:large", "mm_da").products} == {"mm_da"}


def test_the_products_of_a_step_are_its_flops() -> None:
    config = presets.load("small").model
    N, C, V, L = config.positions, config.d_model, config.vocab, config.n_layer
    found = products(config)
    assert sum(p.flops * p.count for p in found) == 6 * N * (12 * L * C * C + V * C)
    assert {p.option for p in found} == {p.layout for p in found} == set(TILE_OF)


def test_a_size_stands_for_all_three_products() -> None:
    found = parse_shapes("8x9x10", "matmul")
    assert [shape[0] for shape in found.products] == list(TILE_OF)
    assert found.cases == ()
    assert parse_shapes("8x9x10, 8x9x10", "mm_db").products == (("mm_db", 8, 9, 10),)


@pytest.mark.parametrize("text", ["", "8x9", "0x1x1", "8x9x10x11", "preset:huge", "-1x2x3",
                                  "1000000x1000000x2", "2000000x1x1"])  # fmt: skip
def test_shapes_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError):
        parse_shapes(text, "matmul")


# --------------------------------------------------------------------------- right or not


@pytest.mark.parametrize("product", TILE_OF)
def test_float32_keeps_the_bound(product: Product) -> None:
    of = kernel(product, 5, 7, 300)
    inputs = draw_inputs([of], 3)
    assert 0 < error_over_bound(of, inputs, in_float32(of, inputs)) < 1


@pytest.mark.parametrize("product", TILE_OF)
def test_what_is_wrong_leaves_the_bound(product: Product) -> None:
    of = kernel(product, 5, 7, 30)
    inputs = draw_inputs([of], 3)
    right = in_float32(of, inputs)
    for wrong in (right * np.float32(1 + 1e-5), right[::-1], np.full_like(right, np.nan)):
        assert error_over_bound(of, inputs, wrong) > 1
    one = right.copy()
    one[4, 6] = np.nan
    assert error_over_bound(of, inputs, one) == np.inf


def test_a_zero_product_has_no_room_for_error() -> None:
    of = kernel("mm_fwd", 2, 2, 2)
    zeros = np.zeros(8, np.float32)
    assert error_over_bound(of, zeros, np.zeros((2, 2), np.float32)) == 0
    assert error_over_bound(of, zeros, np.full((2, 2), 1e-30, np.float32)) == np.inf


def test_other_bits_fail() -> None:
    pair = [kernel("mm_fwd", 2, 3, 4, tile=tile) for tile in ("4x8", "8x8")]
    inputs = draw_inputs(pair, 1)
    good = bytearray(in_float32(pair[0], inputs).tobytes())
    rows = judge(pair, ["x", "x"], {"c0": good}, inputs)
    assert [row.status for row in rows] == ["ok", "ok"]
    rows = judge(pair, ["x", "y"], {"c0": good}, inputs)
    assert [row.status for row in rows] == ["ok", "FAIL"]
    rows = judge(pair, ["x", "x"], {"c0": bytearray(24)}, inputs)
    assert [row.status for row in rows] == ["FAIL", "FAIL"]


def test_other_bits_on_other_threads_fail() -> None:
    (row,) = judge([kernel("mm_fwd", 1, 1, 1)], ["x"], {"c0": bytearray(4)}, np.zeros(2, "f4"))
    detail = {"output_sha256": "x", "forks": 2, "chunks": 9}
    good, bad = placed(row, detail, detail), placed(row, detail, {"output_sha256": "y"})
    assert (good.status, good.forks, good.chunks) == ("ok", 2, 9)
    assert (bad.status, bad.reason) == ("FAIL", "other bits on another number of threads")


def test_samples_become_rates_and_shares() -> None:
    samples = KernelSamples(
        threads=1, products_per_sample=10, samples_ms=[1.0, 2.0], roofline_gflops=[30, 50, 70]
    )
    assert rates(1_000_000, samples) == [10.0, 5.0]
    found = over_roofline(rates(1_000_000, samples), samples.roofline_gflops)
    assert found == [10 / 40, 5 / 60]
    (row,) = judge([kernel("mm_fwd", 1, 1, 1)], ["x"], {"c0": bytearray(4)}, np.zeros(2, "f4"))
    detail = {"output_sha256": "x", **samples.model_dump()}
    assert timed(row, "x", detail).samples == samples
    assert timed(row, "y", detail).status == "FAIL"
    assert timed(row, "x", None) == row


@pytest.mark.parametrize("ms", [0.0, -0.1])
def test_a_sample_that_took_no_time_is_no_division_by_zero(ms: float) -> None:
    samples = KernelSamples(
        threads=1, products_per_sample=10, samples_ms=[1.0, ms], roofline_gflops=[30, 50, 70]
    )
    with pytest.raises(SlotError, match=r"took -?0"):
        rates(1_000_000, samples)
    with pytest.raises(SlotError, match=r"took -?0"):
        speeds(8.0, samples.samples_ms)


# --------------------------------------------------------------------------- in Chromium

module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def bench() -> AsyncIterator[Workbench]:
    choice = find_browser(None)
    if choice is None:
        pytest.skip("no browser on this machine; `driver setup` gets one")
    async with JobServer() as server, BrowserSession(choice) as session:
        yield Workbench(session, server, deadline_s=120)


# Tiles' edges, several cache blocks of k, the shared operand on either side, one of everything.
SHAPES = ((1, 1, 1), (13, 7, 5), (50, 41, 300), (8, 97, 33), (24, 24, 24), (131, 37, 520))


@module_loop
@pytest.mark.parametrize("simd", TILES)
@pytest.mark.parametrize(("name", "threads"), [("wasm", 1), ("wasm64", 3)])
async def test_every_kernel_keeps_the_bound_with_the_same_bits(
    bench: Workbench, simd: str, name: str, threads: int
) -> None:
    arm = resolve(parse_arm(f"{name}:simd={simd}+threads={threads}"), FEATURES)
    every = [
        kernel(product, *shape, kind, tile)
        for shape in SHAPES
        for product in TILE_OF
        for kind, tile in [("naive", TILES[simd][0]), *(("blocked", t) for t in TILES[simd])]
    ]
    inputs = draw_inputs(every, 5)
    outcome = await bench.ask("check", arm, checks(every), inputs)
    digests = [str(op.detail["output_sha256"]) for op in outcome.ops[1:]]
    rows = judge(every, digests, outcome.blobs, inputs)
    assert [row for row in rows if row.status != "ok"] == []
    assert sum(row.error_over_bound is not None for row in rows) == len(SHAPES) * 3


@module_loop
async def test_tuning_chooses_what_was_left_open(bench: Workbench) -> None:
    config = presets.load("tiny").model
    spec = parse_arm("wasm:threads=1+tile_da=8x8+mm_db=naive")
    arm = resolve(spec, FEATURES)
    tuned = await bench.tune("tune", arm, spec, config)
    assert tuned.options["tile_fwd"] in TILES["relaxed"]
    changed = {key for key in arm.options if arm.options[key] != tuned.options[key]}
    assert changed <= {"tile_fwd"}
    pinned = parse_arm("wasm:threads=1+tile=6x8")
    arm = resolve(pinned, FEATURES)
    assert await bench.tune("none", arm, pinned, config) == arm


@module_loop
async def test_an_arm_without_kernels(bench: Workbench) -> None:
    arm = resolve(parse_arm("null"), FEATURES)
    outcome = await bench.ask("check", arm, [])
    assert outcome.failure is None
    with pytest.raises(Exception, match="has no kernels to run apart"):
        await bench.ask(
            "null", arm, [kernel_op(kernel("mm_fwd", 1, 1, 1))], np.zeros(2, np.float32)
        )


# --------------------------------------------------------------------------- the command


def test_the_command(driver: Callable[..., tuple[int, str, str]]) -> None:
    shapes = ("--shapes", "33x20x40", "--samples", 3)
    code, out, _ = driver("kernels", "--json", "--op", "mm_db", *shapes)
    assert code == 0
    found = KernelReport.model_validate(json.loads(out))
    assert [row.kernel.tile for row in found.rows] == list(TILES["relaxed"])
    for row in found.rows:
        assert row.samples
        assert len(row.samples.samples_ms) == 3
        assert row.samples.threads == found.ran["threads"] == 1
        assert row.gflops
        assert row.share
        assert row.forks == 2  # packs, then multiplies
        assert row.chunks
    page = report.kernels(found, width=200)
    assert page.count("33×20×40") == len(found.rows)
    assert page.count("same bits") == len(found.rows) - 1
    assert sum(line.rstrip().endswith(" fastest") for line in page.splitlines()) == 1


def test_forks(driver: Callable[..., tuple[int, str, str]]) -> None:
    words = ("--op", "fork", "--arm", "wasm:threads=2", "--samples", 3)
    code, out, _ = driver("kernels", *words)
    assert code == 0
    assert "a fork and join of 2 threads" in out
    assert "thread 1 8 times slower than the others: it ran" in out


@module_loop
@pytest.mark.parametrize("threads", [2, 3])
async def test_a_slow_thread_gets_fewer_chunks(bench: Workbench, threads: int) -> None:
    """Chunks are claimed, not dealt out: a slow core gets fewer, a join waits for one at most."""
    spec = parse_arm(f"wasm:threads={threads}")
    outcome = await bench.ask("fork", resolve(spec, FEATURES), [Op(op="fork", count=1)])
    found = [UnevenFork.model_validate(each) for each in outcome.ops[-1].detail["uneven"]]
    assert {(fork.slow_thread, fork.slowness) for fork in found} == {
        (slow, slowness) for slow in (0, threads - 1) for slowness in (8, 16 * threads)
    }
    for fork in found:
        slow = fork.by_thread[fork.slow_thread]
        assert (len(fork.by_thread), sum(fork.by_thread)) == (threads, fork.chunks)
        # Each of its chunks but the last lasts as long as `slowness` of the others'.
        assert 1 <= slow <= (fork.chunks + fork.slowness) / (fork.slowness + 1)
        # One that stands still holds the one chunk that it has; the others have done the rest.
        assert slow == 1 or fork.slowness < fork.chunks


def test_a_kernel_that_is_wrong_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, driver: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    folder = tmp_path / "wasm_src"
    shutil.copytree(layout.WASM_SRC, folder)
    source = folder / "kernels.c"
    source.write_text(source.read_text().replace(".K = K,", ".K = K - 1,"))
    source = folder / "layernorm.c"
    source.write_text(source.read_text().replace("#define EPS 1e-5", "#define EPS 1.001e-5"))
    monkeypatch.setattr(layout, "WASM_SRC", folder)
    words = ("--shapes", "5x6x7", "--op", "mm_fwd", "--arm", "wasm:simd=scalar+tile=2x4")
    code, out, _ = driver("kernels", *words)
    assert code == 1
    assert "FAIL: " in out
    assert "times the bound" in " ".join(out.split())
    words = ("--shapes", "B=2+T=5+C=8", "--op", "layernorm", "--arm", "wasm:simd=scalar", "--json")
    code, out, _ = driver("kernels", *words, "--samples", 1)
    assert code == 1
    forward, backward = KernelReport.model_validate(json.loads(out)).operations
    assert forward.reason
    assert forward.reason.startswith("rstd: ")
    assert forward.samples is None
    assert backward.status == "ok"  # mean and rstd are given
    assert backward.samples


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--op", "softmax"), "--op softmax: expected one of all, matmul"),
        (("--arm", "null"), "only wasm, wasm64 and webgpu"),
        (("--arm", "webgpu", "--op", "fork"), "only wasm and wasm64 have threads"),
        (("--shapes", "8x8"), "write preset:NAME, a step's sizes"),
        (("--arm", "wasm:tile=9x9"), "tile=9x9"),
    ],
)
def test_bad_usage(
    driver: Callable[..., tuple[int, str, str]],
    words: tuple[str, ...],
    said: str,
) -> None:
    code, _, err = driver("kernels", *words)
    assert code == 2
    assert said in err.replace("\n", " ")

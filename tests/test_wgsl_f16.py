"""Kernels of reduced precision on the second WebGPU implementation: packing, products, AdamW."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_wgsl import Gpu, close, empty, fold, normal, open_gpu, recipe_of

from driver import reference
from driver.parity import half_product_error
from driver.records import ModelConfig

EXAMPLES = settings(max_examples=2, deadline=None, derandomize=True)
LARGEST = 65504.0  # the largest half
sizes = st.integers(1, 37) | st.just(70)
seeds = st.integers(0, 2**32 - 1)
tiles = st.sampled_from([(1, 1), (1, 0), (0, 1), (0, 0)])


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """A device with halves where the adapter has them; skips where there is no adapter."""
    return open_gpu("shader-f16")


@pytest.fixture
def halves(gpu: Gpu) -> Gpu:
    """The same device; skips where it computes no halves."""
    if "shader-f16" not in gpu.device.features:
        pytest.skip("this adapter has no shader-f16")
    return gpu


# --------------------------------------------------------------------------- packing


def pack(gpu: Gpu, values: np.ndarray) -> tuple[np.ndarray, int]:
    """`values`, padded to a vector of four, through the kernel → halves and the overflow count."""
    param = np.zeros(-(-values.size // 4) * 4, np.float32)
    param[: values.size] = values
    out = gpu.run(
        "pack_w16", {"VECTORS": param.size // 4}, fold(param.size // 4, 64),
        clip=np.zeros(3, np.uint32), param=param, param16=np.zeros(param.size // 2, np.uint32),
    )  # fmt: skip
    return out["param16"].view(np.float16)[: values.size], int(out["clip"][2])


def test_packing_gives_every_half_back(gpu) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    every = bits.view(np.float16)
    finite = every[np.isfinite(every)]
    got, overflows = pack(gpu, finite.astype(np.float32))
    assert np.array_equal(got.view(np.uint16), finite.view(np.uint16))
    assert overflows == 0


def test_packing_rounds_to_nearest_even(gpu) -> None:
    """Halfway between neighbours, and one float32 to either side, subnormal halves included."""
    every = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = ((every[:-1] + every[1:]) / 2).astype(np.float32)
    values = np.concatenate(
        [middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))]
    )
    rng = np.random.default_rng(3)
    values = np.concatenate([values, -values, normal(rng, 5000) * np.float32(0.02)])
    got, overflows = pack(gpu, values)
    assert np.array_equal(got.view(np.uint16), values.astype(np.float16).view(np.uint16))
    assert overflows == 0


def test_packing_of_what_is_smaller_than_any_half(gpu) -> None:
    tiny = np.float32(2.0**-25)
    values = np.array([tiny, np.nextafter(tiny, np.float32(1)), 1e-30, 1e-42, -1e-42, -0.0])
    got, _ = pack(gpu, values.astype(np.float32))
    assert got.view(np.uint16).tolist() == [0, 1, 0, 0, 0x8000, 0x8000]


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (LARGEST, 0),
        (-LARGEST, 0),
        (np.nextafter(np.float32(LARGEST), np.float32(1e9)), 1),
        (65519.0, 1),
        (65520.0, 1),
        (-1e30, 1),
        (np.inf, 1),
        (-np.inf, 1),
        (np.nan, 1),
    ],
)
def test_overflow_is_counted_and_what_is_stored_shows_it(gpu, value, counts) -> None:
    values = np.full(130, 0.5, np.float32)
    values[[3, 77, 129]] = value
    got, overflows = pack(gpu, values)
    assert overflows == 3 * counts
    with np.errstate(over="ignore"):
        want = values.astype(np.float16)
    assert np.array_equal(got, want, equal_nan=True)


# --------------------------------------------------------------------------- products


def operand(weights: np.ndarray, skip: int, kind: str) -> np.ndarray:
    """Weights as a kernel gets them: halves behind `skip` that are not its own."""
    halves = np.concatenate([np.full(skip, 777.0), weights.reshape(-1)]).astype(np.float16)
    padded = np.zeros(-(-halves.size // 4) * 4, np.float16)
    padded[: halves.size] = halves
    return padded if kind == "f16" else padded.view(np.uint32)


def shape_of(tile: tuple[int, int], rows: int, inner: int, cols: int, skip: int) -> dict[str, Any]:
    tall, wide = tile
    return {"ROWS": rows, "INNER": inner, "COLS": cols, "TALL": tall, "WIDE": wide, "SKIP": skip}


def groups_of(tile: tuple[int, int], rows: int, cols: int) -> tuple[int, int]:
    tall, wide = (8 * (4 + 4 * side) for side in tile)
    return -(-cols // wide), -(-rows // tall)


# What is left when the reference has rounded its operands too: float32's error; or, where products
# and their sums of four are rounded as well, a few halves' worth.
LIMITS = {"w16": 2e-6, "f16": 2.0**-10}


def device_for(kind: str, request: pytest.FixtureRequest) -> Gpu:
    return request.getfixturevalue("halves" if kind == "f16" else "gpu")


@pytest.mark.parametrize(("multiple", "skip"), [(1, 64), (4, 0), (4, 64)])
@pytest.mark.parametrize("kind", ["w16", "f16"])
@EXAMPLES
@given(tile=tiles, m=sizes, k=sizes, n=sizes, seed=seeds)
def test_products_read_halves(request, kind, multiple, skip, tile, m, k, n, seed) -> None:
    gpu = device_for(kind, request)
    k, n = k * multiple, n * multiple
    rng = np.random.default_rng(seed)
    a, b, bias, residual = normal(rng, m, k), normal(rng, k, n), normal(rng, n), normal(rng, m, n)
    left = a.astype(np.float16) if kind == "f16" else a
    shape = shape_of(tile, m, k, n, skip) | {"VEC4": int(k % 4 == 0 and n % 4 == 0)}

    def run(**epilogue: int) -> dict[str, np.ndarray]:
        return gpu.run(
            f"matmul_forward_blocked_{kind}", shape | epilogue, groups_of(tile, m, n),
            a=a, b=operand(b, skip, kind), bias=bias, residual=residual,
            pre=empty(m, n), out=empty(m, n),
        )  # fmt: skip

    product = left.astype(np.float64) @ b.astype(np.float16).astype(np.float64)
    close(run()["out"], product, LIMITS[kind])
    close(run(BIAS=1, RESIDUAL=1)["out"], product + bias + residual, LIMITS[kind])
    both = run(BIAS=1, GELU=1)
    close(both["pre"], product + bias, LIMITS[kind])
    close(both["out"], reference.gelu_forward(both["pre"].astype(float)))

    # The same weights from the right, transposed: (m, n) · (k, n)ᵀ.
    dc, pre = normal(rng, m, n), normal(rng, m, k)
    left = dc.astype(np.float16) if kind == "f16" else dc
    product = left.astype(np.float64) @ b.astype(np.float16).astype(np.float64).T
    shape = shape_of(tile, m, n, k, skip) | {"VEC4": int(n % 4 == 0)}
    for gelu in (0, 1):
        got = gpu.run(
            f"matmul_backward_da_blocked_{kind}", shape | {"GELU": gelu}, groups_of(tile, m, k),
            dc=dc, b=operand(b, skip, kind), pre=pre, da=empty(m, k),
        )  # fmt: skip
        want = reference.gelu_backward(product, pre.astype(float)) if gelu else product
        close(got["da"], want, LIMITS[kind])


@pytest.mark.parametrize("k", [1, 4, 7, 96, 1024])
def test_products_of_halves_keep_the_bound_of_halves(halves, k) -> None:
    """That of `driver kernels`; one rounding more of every product than it allows is beyond it."""
    rng = np.random.default_rng(k)
    a, b = normal(rng, 9, k), normal(rng, k, 12).astype(np.float16)
    got = halves.run(
        "matmul_forward_blocked_f16", shape_of((1, 0), 9, k, 12, 0) | {"VEC4": int(k % 4 == 0)},
        groups_of((1, 0), 9, 12), a=a, b=operand(b, 0, "f16"), bias=empty(64), residual=empty(64),
        pre=empty(64), out=empty(9, 12),
    )["out"]  # fmt: skip
    exact = a.astype(np.float64), b.astype(np.float64)
    assert 0 < half_product_error(*exact, got.astype(np.float64)) < 1
    off = exact[0] @ exact[1] + 2.0**-7 * (np.abs(exact[0]) @ np.abs(exact[1])) + 2.0**-12 * k
    assert half_product_error(*exact, off) > 1


@pytest.mark.parametrize("product", ["forward", "backward_da"])
def test_gradients_are_scaled_into_the_range_of_halves(halves, product) -> None:
    """Of the size that a batch of 2048 positions gives them, they would vanish without it."""
    m, k = 32, 64
    rng = np.random.default_rng(1)
    small, b = normal(rng, m, k) * np.float32(1e-7), normal(rng, k, k) * np.float32(0.02)
    names = ("a", "out") if product == "forward" else ("dc", "da")
    more: dict[str, np.ndarray] = {"pre": empty(64)}
    if product == "forward":
        more |= {"bias": empty(64), "residual": empty(64)}
    want = small.astype(np.float64) @ (b if product == "forward" else b.T)

    def error(scale: float) -> float:
        got = halves.run(
            f"matmul_{product}_blocked_f16",
            shape_of((1, 1), m, k, k, 0) | {"VEC4": 1, "SCALE": scale}, groups_of((1, 1), m, k),
            b=operand(b, 0, "f16"), **{names[0]: small, names[1]: empty(m, k)}, **more,
        )[names[1]]  # fmt: skip
        return float(np.linalg.norm(got - want) / np.linalg.norm(want))

    assert error(2.0**17) < 2e-3
    assert error(1.0) > 0.1


def test_a_product_beyond_halves_is_infinite_not_wrong(halves) -> None:
    a, b = np.full((4, 4), 300, np.float32), np.full((4, 4), 300, np.float32)
    got = halves.run(
        "matmul_forward_blocked_f16", shape_of((0, 0), 4, 4, 4, 0) | {"VEC4": 1}, (1, 1), a=a,
        b=operand(b, 0, "f16"), bias=empty(64), residual=empty(64), pre=empty(64), out=empty(4, 4),
    )  # fmt: skip
    assert not np.isfinite(got["out"]).any()


# --------------------------------------------------------------------------- AdamW


@pytest.mark.parametrize("huge", [False, True])
def test_adamw_keeps_the_copy_of_halves(gpu, huge) -> None:
    """The parameters are those of float32's kernel; the copy is exactly their rounding."""
    config = ModelConfig(
        n_layer=1, n_head=1, d_model=4, d_ff=4, ctx=4, batch=1, vocab=4, lr=0.01, beta1=0.9,
        beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip=1.0,
    )  # fmt: skip
    rng = np.random.default_rng(7)
    size = 64 * 40
    state = {what: normal(rng, size) for what in ("param", "grad", "m", "v")}
    state["v"] **= 2
    if huge:
        state["param"][[5, 2000]] = 7e4
    facts = np.zeros(64, np.uint32)
    facts[1:3] = np.array([2.0, 3.0], np.float32).view(np.uint32)
    decay = np.full(64, 0xA5A5A5A5, np.uint32)
    shape, groups = {"VECTORS": size // 4}, fold(size // 4, 64)
    common = {"recipe": recipe_of(config), "facts": facts, "decay": decay}
    plain = gpu.run(
        "adamw", shape, groups, **common, clip=np.array([0.5, 0.25], np.float32), **state
    )
    clip = np.append(np.array([0.5, 0.25], np.float32).view(np.uint32), np.uint32(0))
    got = gpu.run(
        "adamw_w16", shape, groups, **common, clip=clip, **state,
        param16=np.zeros(size // 2, np.uint32),
    )  # fmt: skip
    for what in ("param", "m", "v"):
        close(got[what], plain[what], 1e-7)
    with np.errstate(over="ignore"):
        want = got["param"].astype(np.float16)
    assert np.array_equal(got["param16"].view(np.uint16), want.view(np.uint16))
    assert int(got["clip"][2]) == (2 if huge else 0)

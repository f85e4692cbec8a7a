"""The WGSL kernels on a second WebGPU implementation (wgpu-native, e.g. lavapipe) against NumPy.

What Chromium runs is checked end to end in test_webgpu_arm.py; here every kernel meets odd shapes
alone, in every variant, on another compiler and another driver.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr

from driver import reference
from driver.layout import WEBGPU_SRC
from driver.records import ModelConfig
from driver.tensors import flat_size, table

wgpu = pytest.importorskip("wgpu", reason="the PyPI package wgpu is not installed (extra `test`)")

EXAMPLES = settings(max_examples=8, deadline=None, derandomize=True)
FEWER = settings(EXAMPLES, max_examples=3)  # of each of many variants
SOURCES = {path.stem: path.read_text() for path in sorted(WEBGPU_SRC.glob("*.wgsl"))}
BINDING = re.compile(r"@binding\((\d+)\)\s*var<(\w+)(?:,\s*(\w+))?>\s*(\w+)\s*:")


class Gpu:
    """A device, its pipelines, and `run`: arrays in, arrays out."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.pipelines: dict[tuple[Any, ...], Any] = {}

    def run(
        self,
        kernel: str,
        constants: Mapping[str, float],
        groups: tuple[int, ...],
        **arrays: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """One dispatch; every binding is an array by its WGSL name. Returns the written ones."""
        source = SOURCES[kernel].replace("enable subgroups;", "")
        key = (kernel, tuple(sorted(constants.items())))
        if key not in self.pipelines:
            self.pipelines[key] = self.device.create_compute_pipeline(
                layout="auto",
                compute={
                    "module": self.device.create_shader_module(code=source),
                    "entry_point": "main",
                    "constants": dict(constants),
                },
            )
        pipeline = self.pipelines[key]
        bindings = {name: (int(i), space, mode) for i, space, mode, name in BINDING.findall(source)}
        assert arrays.keys() == bindings.keys(), (arrays.keys(), bindings.keys())
        buffers, entries = {}, []
        for name, array in arrays.items():
            index, space, _ = bindings[name]
            # As in the arm, every binding ends at a multiple of 64 floats: tails may be read.
            data = np.zeros(-(-array.size // 64) * 64, array.dtype)
            data[: array.size] = array.reshape(-1)
            usage = wgpu.BufferUsage.UNIFORM if space == "uniform" else wgpu.BufferUsage.STORAGE
            buffers[name] = self.device.create_buffer_with_data(
                data=data, usage=usage | wgpu.BufferUsage.COPY_SRC
            )
            entries.append({"binding": index, "resource": {"buffer": buffers[name]}})
        group = self.device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0), entries=entries
        )
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*groups)
        compute.end()
        self.device.queue.submit([encoder.finish()])
        written = {}
        for name, (_, _, mode) in bindings.items():
            if mode == "read_write":
                raw = self.device.queue.read_buffer(buffers[name])
                array = arrays[name]
                flat = np.frombuffer(raw, array.dtype)[: array.size]
                written[name] = flat.reshape(array.shape).copy()
        return written


def open_gpu(*features: str) -> Gpu:
    """A device of the second implementation with those of these features that its adapter has.

    Skips where no Vulkan (or Metal) adapter exists.
    """
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except Exception as error:  # wgpu raises plain RuntimeError, and other types without a loader
        pytest.skip(f"wgpu finds no adapter ({error}); on Debian: apt install mesa-vulkan-drivers")
    wanted = [feature for feature in features if feature in adapter.features]
    return Gpu(adapter.request_device_sync(required_features=wanted))


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """A device with subgroups where the adapter has them."""
    return open_gpu("subgroup")


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normals as float32."""
    return rng.standard_normal(shape).astype(np.float32)


def close(got: np.ndarray, want: np.ndarray, limit: float = 2e-6) -> None:
    """Relative L2 error within `limit`."""
    want = np.asarray(want, np.float64)
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30)
    assert error <= limit, error


def empty(*shape: int) -> np.ndarray:
    """What a kernel is to overwrite: NaN shows what it forgot."""
    return np.full(shape, np.nan, np.float32)


NONE = np.zeros(64, np.float32)
sizes = st.integers(1, 37)
matmul_sizes = st.integers(1, 37) | st.just(70)
seeds = st.integers(0, 2**32 - 1)
VARIANTS = [
    ("naive", {}),
    ("tiled", {}),
    *(("subgroup", {"WG": size}) for size in (32, 64, 128)),
    *(("blocked", {"TALL": tall, "WIDE": wide}) for tall in (1, 0) for wide in (1, 0)),
]


def matmul_case(
    variant: tuple[str, dict[str, int]], rows: int, cols: int, vec4: bool
) -> tuple[str, dict[str, int], tuple[int, int]]:
    """Suffix, constants and dispatch of a matmul variant for an output of rows × cols."""
    name, constants = variant
    if name == "naive":
        return name, {}, (-(-cols // 8), -(-rows // 8))
    if name == "tiled":
        return name, {}, (-(-cols // 64), -(-rows // 64))
    if name == "subgroup":
        return name, constants, (-(-cols // (4 * constants["WG"])), -(-rows // 8))
    tall, wide = 4 + 4 * constants["TALL"], 4 + 4 * constants["WIDE"]
    return (
        name,
        constants | {"VEC4": int(vec4)},
        (-(-cols // (8 * wide)), -(-rows // (8 * tall))),
    )


# --------------------------------------------------------------------------- matmul


@pytest.fixture(scope="module")
def variant(request: pytest.FixtureRequest, gpu: Gpu) -> Any:
    """A matmul variant; skips those that need subgroups where the adapter has none."""
    if request.param[0] == "subgroup":
        need_subgroups(gpu)
    return request.param


def need_subgroups(gpu: Gpu) -> None:
    """Skips where the adapter has none, as OpenGL's (wgpu's choice without a Vulkan driver)."""
    if "subgroup" not in gpu.device.features:
        info = gpu.device.adapter.info
        pytest.skip(
            f"no subgroups on {info['device']} through {info['backend_type']}; "
            "on Debian: apt install mesa-vulkan-drivers"
        )


every_variant = pytest.mark.parametrize(
    "variant",
    VARIANTS,
    ids=lambda one: "-".join(map(str, [one[0], *one[1].values()])),
    indirect=True,
)


@FEWER
@given(m=matmul_sizes, k=matmul_sizes, n=matmul_sizes, seed=seeds)
@pytest.mark.parametrize("multiple", [1, 4])
@every_variant
def test_matmul_forward(gpu, variant, multiple, m, k, n, seed) -> None:
    k, n = k * multiple, n * multiple
    rng = np.random.default_rng(seed)
    a, b, bias, residual = normal(rng, m, k), normal(rng, k, n), normal(rng, n), normal(rng, m, n)
    suffix, constants, groups = matmul_case(variant, m, n, k % 4 == 0 and n % 4 == 0)
    shape = {"ROWS": m, "INNER": k, "COLS": n} | constants

    def run(**epilogue: int) -> dict[str, np.ndarray]:
        return gpu.run(
            f"matmul_forward_{suffix}", shape | epilogue, groups,
            a=a, b=b, bias=bias, residual=residual, pre=empty(m, n), out=empty(m, n),
        )  # fmt: skip

    product = a.astype(np.float64) @ b
    close(run()["out"], product)
    close(run(BIAS=1, RESIDUAL=1)["out"], product + bias + residual)
    both = run(BIAS=1, GELU=1)
    close(both["pre"], product + bias)
    close(both["out"], reference.gelu_forward(product + bias))


@FEWER
@given(m=matmul_sizes, k=matmul_sizes, n=matmul_sizes, seed=seeds)
@pytest.mark.parametrize("multiple", [1, 4])
@every_variant
def test_matmul_backward_da(gpu, variant, multiple, m, k, n, seed) -> None:
    n *= multiple
    rng = np.random.default_rng(seed)
    dc, b, pre = normal(rng, m, n), normal(rng, k, n), normal(rng, m, k)
    suffix, constants, groups = matmul_case(variant, m, k, n % 4 == 0)
    shape = {"ROWS": m, "INNER": n, "COLS": k} | constants
    product = dc.astype(np.float64) @ b.T
    for gelu in (0, 1):
        got = gpu.run(
            f"matmul_backward_da_{suffix}", shape | {"GELU": gelu}, groups,
            dc=dc, b=b, pre=pre, da=empty(m, k),
        )  # fmt: skip
        close(got["da"], reference.gelu_backward(product, pre.astype(float)) if gelu else product)


@FEWER
@given(m=matmul_sizes, k=matmul_sizes, n=matmul_sizes, seed=seeds)
@pytest.mark.parametrize("multiple", [1, 4])
@every_variant
def test_matmul_backward_db(gpu, variant, multiple, m, k, n, seed) -> None:
    k, n = k * multiple, n * multiple
    rng = np.random.default_rng(seed)
    a, dc = normal(rng, m, k), normal(rng, m, n)
    suffix, constants, groups = matmul_case(variant, k, n, k % 4 == 0 and n % 4 == 0)
    got = gpu.run(
        f"matmul_backward_db_{suffix}",
        {"ROWS": k, "INNER": m, "COLS": n, "BIAS": 1} | constants,
        groups, a=a, dc=dc, db=empty(k, n), dbias=empty(n),
    )  # fmt: skip
    close(got["db"], a.T.astype(np.float64) @ dc)
    close(got["dbias"], dc.sum(axis=0, dtype=np.float64), 5e-6)


def vectors(floats: int) -> int:
    """So many floats, up to whole vectors of four."""
    return -(-floats // 4) * 4


def run_cut(
    gpu: Gpu, tile: dict[str, int], split: int, a: np.ndarray, dc: np.ndarray
) -> dict[str, np.ndarray]:
    """db and dbias of a product whose depth is cut, as it lies up to the next 64 floats; and both
    results' parts."""
    (m, k), n = a.shape, dc.shape[1]
    suffix, constants, groups = matmul_case(("blocked", tile), k, n, k % 4 == 0 and n % 4 == 0)
    of = {"ROWS": k, "COLS": n, "PARTS": split, "BIAS": 1}
    a, dc = (np.vstack([x, empty(8, x.shape[1])]) for x in (a, dc))  # what no part may read
    parts = gpu.run(
        f"matmul_backward_db_{suffix}", of | {"INNER": m} | constants, (*groups, split),
        a=a, dc=dc, db=empty(split, vectors(k * n)), dbias=empty(split, vectors(n)),
    )  # fmt: skip
    both = vectors(k * n) // 4 + vectors(n) // 4
    room = [empty(-(-floats // 64) * 64) for floats in (k * n, n)]
    added = gpu.run(
        "matmul_backward_db_sum", of, fold(both, 64),
        parts=parts["db"], part_sums=parts["dbias"], db=room[0], dbias=room[1],
    )  # fmt: skip
    return added | {"parts": parts["db"], "part_sums": parts["dbias"]}


def check_cut(
    gpu: Gpu, tile: dict[str, int], split: int, m: int, k: int, n: int, seed: int
) -> None:
    """Right, the sums of the parts from first to last to the bit, nothing but 0 in the gaps."""
    rng = np.random.default_rng(seed)
    a, dc = normal(rng, m, k), normal(rng, m, n)
    got = run_cut(gpu, tile, split, a, dc)
    close(got["db"][: k * n].reshape(k, n), a.T.astype(np.float64) @ dc)
    close(got["dbias"][:n], dc.sum(axis=0, dtype=np.float64), 5e-6)
    for name, of, floats in (("parts", "db", k * n), ("part_sums", "dbias", n)):
        total = got[name][0, :floats]
        for part in got[name][1:]:
            total = total + part[:floats]
        np.testing.assert_array_equal(got[of][:floats], total)
        assert not got[of][floats : vectors(floats)].any()
        assert np.isnan(got[of][vectors(floats) :]).all(), "more was written than the gap"
    again = run_cut(gpu, tile, split, a, dc)
    assert all(got[name].tobytes() == again[name].tobytes() for name in ("db", "dbias"))


tiles = st.builds(lambda tall, wide: {"TALL": tall, "WIDE": wide}, *[st.integers(0, 1)] * 2)
splits = st.sampled_from([2, 4, 8, 16])


@EXAMPLES
@given(tile=tiles, split=splits, m=matmul_sizes, k=matmul_sizes, n=matmul_sizes, seed=seeds)
@pytest.mark.parametrize("multiple", [1, 4])
def test_matmul_backward_db_in_parts(gpu, multiple, tile, split, m, k, n, seed) -> None:
    check_cut(gpu, tile, split, m, multiple * k, multiple * n, seed)


# Depths up to 5 leave most parts empty; of the others, 64 alone fills sixteen parts.
@pytest.mark.parametrize("m", [1, 3, 4, 5, 13, 33, 64, 129])
@pytest.mark.parametrize("split", [2, 16])
def test_parts_may_be_empty(gpu, split, m) -> None:
    for k, n in ((7, 5), (12, 8)):
        check_cut(gpu, {"TALL": 1, "WIDE": 1}, split, m, k, n, seed=m)


@pytest.mark.parametrize("size", [1, 5, 32, 128])
@pytest.mark.parametrize("product", [test_matmul_forward, test_matmul_backward_da,
                                     test_matmul_backward_db])  # fmt: skip
def test_subgroups_that_are_not_full(gpu, product, size) -> None:
    """Whatever the subgroup's size, lanes that are not there are not asked."""
    need_subgroups(gpu)
    for m, k, n in ((9, 35, 70), (17, 1, 3), (2, 130, 33)):
        product.hypothesis.inner_test(gpu, ("subgroup", {"WG": size}), 1, m, k, n, seed=size)


# --------------------------------------------------------------------------- layer norm

lanes = st.sampled_from([(1, 64), (8, 8), (32, 4), (64, 1)])


@EXAMPLES
@given(rows=sizes, c=st.integers(1, 150), share=lanes, add=st.booleans(), seed=seeds)
def test_layernorm(gpu, rows, c, share, add, seed) -> None:
    rng = np.random.default_rng(seed)
    x, dout = 3 * normal(rng, 1, rows, c) + 1, normal(rng, 1, rows, c)
    gain, shift = normal(rng, c), normal(rng, c)
    lane, group = share
    shape = {"ROWS": rows, "C": c, "LANES": lane, "GROUP": group}
    groups = (-(-rows // group),)
    y, kept = reference.layernorm_forward(x.astype(float), gain.astype(float), shift.astype(float))
    got = gpu.run(
        "layernorm_forward", shape, groups,
        x=x, gain=gain, shift=shift, stats=empty(rows, 2), out=empty(*x.shape),
    )  # fmt: skip
    # With one channel x - mean is 0 or a rounding error, which rstd = 316 multiplies.
    close(got["out"], y, 1e-5 if c > 1 else 1e-3)

    dx, dgain, dshift = reference.layernorm_backward(dout.astype(float), gain.astype(float), kept)
    before = normal(rng, *x.shape)
    back = gpu.run(
        "layernorm_backward", {**shape, "ADD": int(add)}, groups,
        dout=dout, x=x, gain=gain, stats=got["stats"], dx=before if add else empty(*x.shape),
    )  # fmt: skip
    if c > 2:  # below, dx is a difference of equal numbers
        close(back["dx"], dx + before if add else dx, 1e-4)
    params = gpu.run(
        "layernorm_backward_params", {"ROWS": rows, "C": c}, (-(-c // 16),),
        dout=dout, x=x, stats=got["stats"], dgain=empty(c), dshift=empty(c),
    )  # fmt: skip
    close(params["dshift"], dshift)
    if c > 1:
        close(params["dgain"], dgain, 1e-5)


# --------------------------------------------------------------------------- attention


@EXAMPLES
@given(b=st.integers(1, 3), t=sizes, h=st.integers(1, 3), d=st.integers(1, 40), seed=seeds)
def test_attention(gpu, b, t, h, d, seed) -> None:
    check_attention(gpu, b, t, h, d, seed)


@pytest.mark.parametrize("wide", [0, 1])
@pytest.mark.parametrize("d", [1, 4, 7, 16, 33, 64, 100, 128])
def test_attention_head_sizes(gpu, d, wide) -> None:
    check_attention(gpu, 1, 9, 2, d, 2 * d + wide)


def test_attention_long_rows(gpu) -> None:
    check_attention(gpu, 1, 1024, 1, 8, 3, limit=5e-6)


def test_the_key_bias_has_no_gradient(gpu) -> None:
    """Scores of standard deviation 10: what rounding leaves of the key bias's gradient is a tenth
    of the gate's 2e-6; with dout·out alone for delta it was three times that."""
    worst = 0.0
    for seed, (b, t, h, d) in enumerate([(3, 17, 1, 8), (1, 256, 1, 16), (2, 64, 2, 32)]):
        rng = np.random.default_rng(seed)
        c = h * d
        qkv, dout = normal(rng, b, t, 3 * c), normal(rng, b, t, c)
        qkv[..., : 2 * c] *= np.sqrt(10)
        _, dqkv = run_attention(gpu, h, qkv, dout, 0)
        query, key, value = np.split(dqkv.sum(axis=(0, 1), dtype=np.float64), 3)
        rest = np.linalg.norm(np.concatenate([query, value]))
        worst = max(worst, float(np.linalg.norm(key) / rest))
    assert worst < 2e-7


def check_attention(gpu: Gpu, b, t, h, d, seed, limit: float = 3e-6) -> None:
    """All three kernels at one shape, scores up to about ±10; odd seeds are WIDE."""
    rng = np.random.default_rng(seed)
    c = h * d
    qkv, dout = 2 * normal(rng, b, t, 3 * c), normal(rng, b, t, c)
    y, kept = reference.attention_forward(qkv.astype(float), h)
    out, got = run_attention(gpu, h, qkv, dout, seed % 2)
    close(out, y, limit)
    dqkv = reference.attention_backward(dout.astype(float), h, kept)
    close(got, dqkv, 2 * limit)
    if t >= 9:  # in short rows a saturated softmax leaves dq and dk as differences of equal numbers
        for part in range(3):
            third = slice(part * c, (part + 1) * c)
            close(got[..., third], dqkv[..., third], 10 * limit)


def run_attention(
    gpu: Gpu, h: int, qkv: np.ndarray, dout: np.ndarray, wide: int
) -> tuple[np.ndarray, np.ndarray]:
    """Output (B, T, C) and dqkv (B, T, 3C) of the three kernels."""
    b, t, c = dout.shape
    d = c // h
    shape = {"B": b, "T": t, "H": h, "D": d, "VEC4": int(d % 4 == 0), "WIDE": wide}
    groups = (-(-(b * h * -(-t // 4) * -(-d // (16 + 16 * wide))) // 64),)
    got = gpu.run(
        "attention_forward", shape, groups, qkv=qkv, out=empty(b, t, c), lse=empty(b, h, t)
    )
    dq = gpu.run(
        "attention_backward_dq", shape, groups,
        qkv=qkv, dout=dout, **got, delta=empty(b, h, t), dqkv=np.zeros_like(qkv),
    )  # fmt: skip
    dkv = gpu.run(
        "attention_backward_dkv", shape, groups,
        qkv=qkv, dout=dout, lse=got["lse"], delta=dq["delta"], dqkv=dq["dqkv"],
    )  # fmt: skip
    return got["out"], dkv["dqkv"]


# --------------------------------------------------------------------------- GELU


def on_a_grid(gpu: Gpu, kernel: str, x: np.ndarray, **more: np.ndarray) -> np.ndarray:
    """An element-wise kernel over any number of elements."""
    (out,) = gpu.run(kernel, {"SIZE": x.size, "STRIDE": 6400}, (100,), x=x, **more).values()
    return out


def test_gelu_is_exact_and_never_overflows(gpu) -> None:
    far = np.geomspace(1e-30, 3e38, 500)
    x = np.concatenate([np.linspace(-15, 15, 60_001), far, -far]).astype(np.float32)
    big = x.astype(np.float64)
    got = on_a_grid(gpu, "gelu_forward", x, out=empty(x.size)).astype(np.float64)
    assert np.isfinite(got).all()
    # erf = 2Φ - 1: an absolute error of 2e-7 in erf is 1e-7 in Φ; the product rounds once more.
    assert np.max(np.abs(got - big * ndtr(big)) / np.maximum(np.abs(big), 1e-30)) < 1.6e-7
    tail = (big < -2) & (big > -9)
    true = big[tail] * np.exp(log_ndtr(big[tail]))
    assert np.max(np.abs(got[tail] / true - 1)) < 2e-5

    dy = np.ones_like(x)
    slope = on_a_grid(gpu, "gelu_backward", x, dy=dy, dx=empty(x.size))
    want = ndtr(big) + big * np.exp(-0.5 * np.minimum(big * big, 1e3)) / np.sqrt(2 * np.pi)
    assert np.max(np.abs(slope - want)) < 3e-7


def test_every_kernel_has_the_same_gelu() -> None:
    bodies = {
        re.search(r"// Φ\(x\).*?\n}\n", source, re.S).group()  # type: ignore[union-attr]
        for source in SOURCES.values()
        if "normal_cdf" in source
    }
    assert len(bodies) == 1
    for name in ("gelu_forward", "gelu_backward"):
        bodies = {
            match.group()
            for source in SOURCES.values()
            if (match := re.search(rf"fn {name}\(.*?\n}}\n", source, re.S))
        }
        assert len(bodies) == 1, name


# --------------------------------------------------------------------------- embedding, loss


@EXAMPLES
@given(b=st.integers(1, 4), t=sizes, c=sizes, v=st.integers(2, 97), seed=seeds)
def test_encoder(gpu, b, t, c, v, seed) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, v, (b, t))
    wte, wpe, dx, dhead = (normal(rng, *s) for s in ((v, c), (t, c), (b, t, c), (v, c)))
    got = gpu.run(
        "encoder_forward", {"N": b * t, "T": t, "C": c}, fold(b * t * c, 256),
        tokens=tokens.astype(np.uint32), wte=wte, wpe=wpe, out=empty(b, t, c),
    )  # fmt: skip
    close(got["out"], wte[tokens].astype(float) + wpe, 1e-7)
    order = np.argsort(tokens.reshape(-1), kind="stable").astype(np.uint32)
    starts = np.searchsorted(np.sort(tokens.reshape(-1)), np.arange(v + 1)).astype(np.uint32)
    back = gpu.run(
        "encoder_backward", {"B": b, "T": t, "C": c, "V": v}, fold((v + t) * c, 256),
        order=order, starts=starts, dx=dx, dwte=dhead, dwpe=empty(t, c),
    )  # fmt: skip
    dwte, dwpe = reference.encoder_backward(dx.astype(float), tokens, v)
    close(back["dwte"], dwte + dhead)
    close(back["dwpe"], dwpe)


def fold(size: int, group: int) -> tuple[int, int]:
    """Workgroups for `size` invocations, in two dimensions, so that both indices are exercised."""
    count = -(-size // group)
    wide = max(1, int(count**0.5))
    return wide, -(-count // wide)


@EXAMPLES
@given(
    rows=sizes,
    v=st.integers(2, 300),
    share=lanes,
    scale=st.sampled_from([1.0, 30.0, 1e4]),
    seed=seeds,
)
def test_crossentropy(gpu, rows, v, share, scale, seed) -> None:
    rng = np.random.default_rng(seed)
    logits = (scale * normal(rng, 1, rows, v)).astype(np.float32)
    targets = rng.integers(0, v, (1, rows))
    lane, group = share
    got = gpu.run(
        "crossentropy_forward", {"ROWS": rows, "V": v, "LANES": lane, "GROUP": group},
        (-(-rows // group),), targets=targets.astype(np.uint32), logits=logits, losses=empty(rows),
    )  # fmt: skip
    loss, probs = reference.crossentropy_forward(logits.astype(float), targets)
    np.testing.assert_allclose(got["losses"].mean(dtype=np.float64), loss, rtol=2e-6, atol=1e-6)
    close(got["logits"], reference.crossentropy_backward(probs, targets), 5e-6)


# --------------------------------------------------------------------------- norm, AdamW


def recipe_of(config: ModelConfig) -> np.ndarray:
    """The uniform that gradnorm_finish and adamw read."""
    return np.array(
        [config.lr, config.beta1, 1 - config.beta1, config.beta2, 1 - config.beta2,
         config.eps, config.weight_decay, config.grad_clip], np.float32,
    )  # fmt: skip


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e3])
@pytest.mark.parametrize("t", [1, 2, 1000])
def test_norm_clip_and_adamw(gpu, clip, t) -> None:
    config = ModelConfig(
        n_layer=1, n_head=1, d_model=7, d_ff=28, ctx=5, batch=2, vocab=11, lr=0.01, beta1=0.9,
        beta2=0.999, eps=1e-8, weight_decay=0.1, grad_clip=clip,
    )  # fmt: skip
    rng = np.random.default_rng(t)
    size, partials, rows = flat_size(config), 64, 10
    state = {what: np.zeros(size, np.float32) for what in ("param", "grad", "m", "v")}
    decay = np.zeros(64, np.uint32)
    for slot in table(config):
        part = slice(slot.offset, slot.offset + slot.size)
        for values in state.values():
            values[part] = normal(rng, slot.size)
        state["v"][part] **= 2
        for block in range(slot.offset // 64, -(-(slot.offset + slot.size) // 64)):
            decay[block // 32] |= np.uint32(slot.decay << (block % 32))
    facts = np.zeros(64, np.uint32)
    facts[0] = 3
    facts[1:3] = np.array([1 / (1 - config.beta1**t), 1 / (1 - config.beta2**t)], np.float32).view(
        np.uint32
    )
    losses = np.abs(normal(rng, rows))
    got = gpu.run(
        "gradnorm_partial", {"VECTORS": size // 4, "PARTIALS": partials}, (1,),
        grad=state["grad"], partials=empty(partials, 4),
    )  # fmt: skip
    done = gpu.run(
        "gradnorm_finish", {"ROWS": rows, "PARTIALS": partials}, (1,), recipe=recipe_of(config),
        facts=facts, losses=losses, partials=got["partials"], clip=empty(2), results=empty(8),
    )  # fmt: skip
    norm = float(np.linalg.norm(state["grad"].astype(float)))
    scale = reference.clip_scale(norm, clip)
    np.testing.assert_allclose(done["clip"].prod(), scale, rtol=1e-6)
    np.testing.assert_allclose(done["results"][6:8], [losses.mean(), norm], rtol=1e-6)

    new = gpu.run(
        "adamw", {"VECTORS": size // 4}, fold(size // 4, 64), recipe=recipe_of(config), facts=facts,
        clip=done["clip"], decay=decay, **state,
    )  # fmt: skip
    want = {what: {} for what in state}
    for slot in table(config):
        for what, values in state.items():
            want[what][slot.name] = (
                values[slot.offset : slot.offset + slot.size].reshape(slot.shape).astype(float)
            )
    reference.adamw(config, want["param"], want["grad"], want["m"], want["v"], t, scale)
    gaps = np.ones(size, bool)
    for slot in table(config):
        part = slice(slot.offset, slot.offset + slot.size)
        gaps[part] = False
        for what in ("param", "m", "v"):
            close(new[what][part], want[what][slot.name].reshape(-1), 1e-6)
    assert all(not new[what][gaps].any() for what in ("param", "m", "v"))


FEW_SIZE = 640


def norm_of(gpu: Gpu, grad: np.ndarray, clip: float) -> tuple[float, np.ndarray]:
    """What the step's two kernels make of gradients: their norm and the clip factor's two parts."""
    config = ModelConfig(
        n_layer=1, n_head=1, d_model=7, d_ff=28, ctx=5, batch=2, vocab=11, lr=0.01, beta1=0.9,
        beta2=0.999, eps=1e-8, weight_decay=0.1, grad_clip=clip,
    )  # fmt: skip
    got = gpu.run(
        "gradnorm_partial", {"VECTORS": grad.size // 4, "PARTIALS": 64}, (1,),
        grad=grad, partials=empty(64, 4),
    )  # fmt: skip
    done = gpu.run(
        "gradnorm_finish", {"ROWS": 3, "PARTIALS": 64}, (1,), recipe=recipe_of(config),
        facts=np.zeros(64, np.uint32), losses=np.ones(3, np.float32), partials=got["partials"],
        clip=empty(2), results=empty(8),
    )  # fmt: skip
    assert done["results"][0] == 1
    return float(done["results"][1]), done["clip"]


@EXAMPLES
@given(
    exponents=st.tuples(st.floats(-36, 37), st.floats(-36, 37)), share=st.floats(0, 1), seed=seeds
)
def test_a_norm_is_right_wherever_it_is_finite(gpu, exponents, share, seed) -> None:
    rng = np.random.default_rng(seed)
    scales = np.where(rng.random(FEW_SIZE) < share, *(10.0**e for e in exponents))
    check_norm(gpu, (scales * rng.uniform(-1, 1, FEW_SIZE)).astype(np.float32))


# Around every bound between small, ordinary and large, and with both beside each other.
@pytest.mark.parametrize("power", [-120, -64, -63, -62, -51, -50, -49, -20, 0, 45, 46, 47, 63, 122])
@pytest.mark.parametrize("beside", [-120, -63, -50, -21, 46, 122])
def test_a_norm_is_right_at_every_bound(gpu, power, beside) -> None:
    grad = np.full(FEW_SIZE, 2.0**power, np.float32)
    grad[::3] = -1.5 * 2.0**beside
    check_norm(gpu, grad)


def check_norm(gpu: Gpu, grad: np.ndarray) -> None:
    norm = float(np.linalg.norm(grad.astype(float)))
    got, factors = norm_of(gpu, grad, 0.5)
    assert got == pytest.approx(norm, rel=2e-6)
    # One after the other: where the norm is large, no float holds their product.
    clipped = (grad * factors[0]) * factors[1]
    want = min(norm, 0.5 * norm / (norm + 1e-6)) if norm > 0.5 else norm
    assert float(np.linalg.norm(clipped.astype(float))) == pytest.approx(want, rel=4e-6)


def test_what_is_no_number_stays_one_in_the_norm(gpu) -> None:
    for value, also in ((np.nan, 0), (np.nan, 1e-30), (np.nan, 1e30), (np.inf, 1)):
        grad = np.full(FEW_SIZE, also, np.float32)
        grad[17] = value
        norm, _ = norm_of(gpu, grad, 1.0)
        assert not np.isfinite(norm), (value, also)
    assert norm_of(gpu, np.zeros(FEW_SIZE, np.float32), 1.0)[0] == 0

"""The generators of the 2026-09-02 receipt, against the same arithmetic in plain integers."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver import corpus, draws, tensors
from driver.records import ModelConfig

MASK = 2**32 - 1
SEEDS = st.integers(0, 2**53 - 1)


def plain_mulberry32(seed: int) -> Iterator[float]:
    """Word by word, as JavaScript runs it."""
    state = seed & MASK
    while True:
        state = (state + 0x6D2B79F5) & MASK
        t = state
        t = ((t ^ (t >> 15)) * (t | 1)) & MASK
        t ^= (t + (((t ^ (t >> 7)) * (t | 61)) & MASK)) & MASK
        yield ((t ^ (t >> 14)) & MASK) / 2**32


def plain_normals(seed: int) -> Iterator[float]:
    uniforms = plain_mulberry32(seed)
    for u, w in zip(uniforms, uniforms, strict=False):
        radius = math.sqrt(-2 * math.log(max(u, 1e-9)))
        yield radius * math.cos(2 * math.pi * w)
        yield radius * math.sin(2 * math.pi * w)


def plain_mix(x: int) -> int:
    x ^= x >> 16
    x = (x * 0x7FEB352D) & MASK
    x ^= x >> 15
    x = (x * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def model(**changes: object) -> ModelConfig:
    shape = {
        "n_layer": 2, "n_head": 1, "d_model": 3, "d_ff": 12, "ctx": 5, "batch": 2, "vocab": 7,
        "lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 0.0,
    }  # fmt: skip
    return ModelConfig.model_validate(shape | changes)


def test_the_first_uniforms_of_seed_42() -> None:
    # What any JavaScript engine prints for mulberry32(42).
    assert draws.mulberry32(42, 0, 3).tolist() == [
        0.6011037519201636,
        0.44829055899754167,
        0.8524657934904099,
    ]


@given(SEEDS, st.integers(0, 50), st.integers(0, 50))
def test_uniforms_from_anywhere(seed: int, start: int, count: int) -> None:
    stream = plain_mulberry32(seed)
    expected = [next(stream) for _ in range(start + count)][start:]
    assert draws.mulberry32(seed, start, count).tolist() == expected


def test_the_state_wraps() -> None:
    """After 2^32 draws, which is its period, it begins again; every sum is modulo 2^32."""
    assert np.array_equal(draws.mulberry32(7, 2**32, 5), draws.mulberry32(7, 0, 5))


@given(SEEDS, st.lists(st.integers(0, 9), max_size=8))
def test_normals_however_they_are_asked_for(seed: int, counts: list[int]) -> None:
    """The second of a pair survives from one call to the next."""
    source, stream = draws.normal_source("mulberry32", seed), plain_normals(seed)
    for count in counts:
        found = source(count)
        assert found.size == count
        assert found.tolist() == pytest.approx([next(stream) for _ in range(count)], abs=1e-14)


def test_normals_are_standard() -> None:
    z = draws.normal_source("mulberry32", 3)(200_001)
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1) < 0.01


def test_weights_in_storage_order() -> None:
    config, stream = model(), plain_normals(42)
    state = tensors.unflatten(config, tensors.initial_flat(config, 42, "mulberry32"))

    def take(shape: tuple[int, int], std: float) -> np.ndarray:
        drawn = [next(stream) * std for _ in range(math.prod(shape))]
        return np.array(drawn, np.float32).reshape(shape)

    residual = 0.02 / math.sqrt(4)
    expected = {"wte": take((7, 3), 0.02), "wpe": take((5, 3), 0.02)}
    for layer in range(2):
        h = f"h.{layer}."
        expected[h + "attn.wqkv"] = np.hstack([take((3, 3), 0.02) for _ in range(3)])
        expected[h + "attn.wo"] = take((3, 3), residual)
        expected[h + "mlp.w1"] = take((3, 12), 0.02)
        expected[h + "mlp.w2"] = take((12, 3), residual)
    for name, tensor in state.items():
        if name in expected:
            np.testing.assert_allclose(tensor, expected[name], rtol=1.2e-7, atol=0)
        else:
            assert (tensor == (1 if name.endswith(".g") else 0)).all(), name


def test_the_first_weights_of_seed_42() -> None:
    flat = tensors.initial_flat(model(), 42, "mulberry32")
    u, w = 0.6011037519201636, 0.44829055899754167
    assert flat[0] == np.float32(0.02 * math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * w))


@given(SEEDS, st.integers(1, 5), st.integers(1, 5), st.integers(1, 2**31))
def test_offsets(seed: int, steps: int, batch: int, bound: int) -> None:
    found = draws.hashed_offsets(seed, bound, steps, batch)
    for i in range(steps):
        for b in range(batch):
            words = ((i + 1) * 0x9E3779B9) & MASK, ((b + 1) * 0x85EBCA6B) & MASK
            assert found[i, b] == plain_mix((seed & MASK) ^ words[0] ^ words[1]) % bound


def test_batches_at_hashed_offsets() -> None:
    """An offset is any of the corpus's len − T, the last one included."""
    text = bytes(range(7)) * 30
    data = corpus.Corpus(name="x", data=text, sha256="0" * 64, entropy_nats_per_byte=None)
    config = model(batch=3)
    tokens = corpus.batches(data, config, 4, 42, "hashed")
    starts = draws.hashed_offsets(42, len(text) - config.ctx, 4, 3)
    for i, b in np.ndindex(4, 3):
        at = starts[i, b]
        assert tokens[i, b].tolist() == list(text[at : at + config.ctx + 1])
    assert not np.array_equal(tokens, corpus.batches(data, config, 4, 42))

"""The table of tensors and the initial state."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from driver import draws, presets, tensors
from driver.records import ModelConfig

# A busy machine is no failure.
STEADY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def model(**changes: int) -> ModelConfig:
    """The smallest preset's model with some sizes replaced."""
    return ModelConfig.model_validate(presets.load("tiny").model.model_dump() | changes)


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    heads, head_dim = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    return model(
        n_layer=draw(st.integers(1, 4)),
        n_head=heads,
        d_model=heads * head_dim,
        d_ff=draw(st.integers(1, 150)),
        ctx=draw(st.integers(1, 70)),
        vocab=draw(st.integers(2, 300)),
    )


@STEADY
@given(models())
def test_slots_are_aligned_and_do_not_overlap(config: ModelConfig) -> None:
    end = 0
    for slot in tensors.table(config):
        assert slot.offset % tensors.ALIGN == 0
        assert end <= slot.offset < end + tensors.ALIGN
        assert slot.size == math.prod(slot.shape)
        assert slot.decay == (len(slot.shape) == 2)
        end = slot.offset + slot.size
    assert end <= tensors.flat_size(config) < end + tensors.ALIGN


@STEADY
@given(models())
def test_names_are_unique_and_in_storage_order(config: ModelConfig) -> None:
    names = [slot.name for slot in tensors.table(config)]
    assert len(set(names)) == len(names) == 4 + 12 * config.n_layer
    assert names[:3] == ["wte", "wpe", "h.0.ln1.g"]
    assert names[-2:] == ["lnf.g", "lnf.b"]


@STEADY
@given(models(), st.integers(0, 2**32))
def test_flatten_and_unflatten_are_inverse(config: ModelConfig, seed: int) -> None:
    random = np.random.default_rng(seed)
    state = {
        slot.name: random.standard_normal(slot.shape).astype(np.float32)
        for slot in tensors.table(config)
    }
    flat = tensors.flatten(config, state)
    back = tensors.unflatten(config, flat)
    assert list(back) == list(state)
    for name, value in state.items():
        np.testing.assert_array_equal(back[name], value)
        assert back[name].shape == value.shape
    gaps = np.ones(flat.size, bool)
    for slot in tensors.table(config):
        gaps[slot.offset : slot.offset + slot.size] = False
    assert not flat[gaps].any()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("tiny", 70_464),
        ("small", 366_432),
        ("medium", 838_400),
        ("large", 2_743_296),
        ("xl", 6_416_896),
        ("behemoth", 473_244_160),
    ],
)
def test_parameter_counts_of_the_presets(name: str, count: int) -> None:
    assert tensors.parameter_count(presets.load(name).model) == count


def test_model_flops_of_large() -> None:
    config = presets.load("large").model
    matrices = 6 * 1536 * (2_743_296 - 128 * 192)
    assert tensors.model_flops(config) == matrices + 12 * 6 * 1536 * 128 * 192


def test_executed_flops_of_a_model_counted_by_hand() -> None:
    config = presets.load("tiny").model  # L 2, C 48, F 192, T 32, B 16, V 256
    N = 16 * 32
    layer = 48 * 3 * 48 + 48 * 48 + 2 * 48 * 192
    products = 3 * 2 * N * (2 * layer + 48 * 256)
    pairs = sum(t + 1 for t in range(32))  # of query and key
    attention = 2 * 7 * 2 * 16 * pairs * 48
    assert tensors.executed_flops(config) == products + attention


def test_initial_state_has_the_same_bits_everywhere() -> None:
    config = presets.load("tiny").model
    flat = tensors.flatten(config, tensors.initial_state(config, 42))
    digest = hashlib.sha256(flat.astype("<f4").tobytes()).hexdigest()
    assert digest == "516eb90ef1ab16bc3a5c237a959d1546c0a982fe839eb09af0f4eebdebb11d29"


@pytest.mark.parametrize("draw", [1, 100, 1000])
def test_initial_state_drawn_in_other_pieces(draw: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.load("tiny").model
    whole = tensors.initial_flat(config, 3)
    monkeypatch.setattr(tensors, "DRAW", draw)
    assert np.array_equal(tensors.initial_flat(config, 3), whole)


def test_initial_state_differs_between_seeds() -> None:
    config = presets.load("tiny").model
    one, two = (tensors.initial_state(config, seed) for seed in (0, 1))
    assert not np.array_equal(one["wte"], two["wte"])


@STEADY
@given(models(), st.integers(0, 2**53 - 1))
def test_initial_state_follows_gpt2(config: ModelConfig, seed: int) -> None:
    state = tensors.initial_state(config, seed)
    for slot in tensors.table(config):
        value = state[slot.name]
        assert value.dtype == np.float32
        assert value.shape == slot.shape
        if slot.name.endswith(".g"):
            assert (value == 1).all()
        elif not slot.decay:
            assert (value == 0).all()
        else:
            assert value.any()
            assert np.abs(value).max() < 0.02 * 9


def test_standard_deviations() -> None:
    config = presets.load("medium").model
    state = tensors.initial_state(config, 42)
    residual = 0.02 / math.sqrt(2 * config.n_layer)
    for slot in tensors.table(config):
        if slot.decay:
            std = residual if slot.name.endswith(("attn.wo", "mlp.w2")) else 0.02
            tolerance = 5 * std / math.sqrt(2 * slot.size)  # five standard errors
            assert state[slot.name].std() == pytest.approx(std, abs=tolerance)


def test_wqkv_is_three_square_draws_side_by_side() -> None:
    config = model(n_layer=1)
    C = config.d_model
    stream = np.random.Philox(key=7)
    draws.normals(stream, (config.vocab + config.ctx) * C)  # wte and wpe come first
    q, k, v = (
        (draws.normals(stream, C * C) * 0.02).astype(np.float32).reshape(C, C) for _ in range(3)
    )
    wqkv = tensors.initial_state(config, 7)["h.0.attn.wqkv"]
    np.testing.assert_array_equal(wqkv, np.hstack([q, k, v]))


def test_normals_agree_with_another_inverse_of_the_distribution() -> None:
    raw = np.random.Philox(key=3).random_raw(100_000)
    p = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    x = draws.normals(np.random.Philox(key=3), 100_000)
    np.testing.assert_allclose(x, ndtri(p), rtol=1e-13, atol=1e-15)


class Extremes:
    """A stream of the raw draws that lie farthest out and next to the middle."""

    def random_raw(self, count: int) -> np.ndarray:
        return np.array([0, 2**64 - 1, 2**63 - 1, 2**63], np.uint64)[:count]


def test_normals_stay_finite_in_the_far_tails() -> None:
    low, high, below, above = draws.normals(Extremes(), 4)  # type: ignore[arg-type]
    assert low == pytest.approx(ndtri(2.0**-54), rel=1e-14)
    assert 8 < high < 8.5  # the largest draw's p must not round to 1
    assert -1e-15 < below <= 0 <= above < 1e-15


def test_moments_of_the_normals() -> None:
    n = 400_000
    x = draws.normals(np.random.Philox(key=11), n)
    assert abs(x.mean()) < 5 / math.sqrt(n)
    assert x.var() == pytest.approx(1, abs=5 * math.sqrt(2 / n))
    assert abs((x**3).mean()) < 5 * math.sqrt(15 / n)
    assert (x**4).mean() == pytest.approx(3, abs=5 * math.sqrt(96 / n))

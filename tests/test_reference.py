"""The NumPy reference against an independent oracle, finite differences and a few formulas."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erfc

from driver import reference
from driver.cases import read_case, write_result
from driver.records import ModelConfig
from driver.reference import Reference, Tensors
from driver.replay import on_numpy
from driver.tensors import table

RECIPE = {
    "lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
}  # fmt: skip


def config(**changes: float) -> ModelConfig:
    shape = {
        "n_layer": 1, "n_head": 2, "d_model": 6, "d_ff": 7, "ctx": 3, "batch": 2, "vocab": 5,
    }  # fmt: skip
    return ModelConfig.model_validate(shape | RECIPE | changes)


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    heads = draw(st.integers(1, 3))
    return config(
        n_layer=draw(st.integers(1, 2)),
        n_head=heads,
        d_model=heads * draw(st.integers(1, 3)),
        d_ff=draw(st.integers(1, 9)),
        ctx=draw(st.integers(1, 5)),
        batch=draw(st.integers(1, 3)),
        vocab=draw(st.integers(2, 9)),
    )


def params_of(model: ModelConfig, seed: int, spread: float = 0.5) -> Tensors:
    """Random in every tensor, gains and biases included, so that no term is multiplied away."""
    rng = np.random.default_rng(seed)
    return {
        slot.name: rng.normal(1.0 if slot.name.endswith(".g") else 0.0, spread, slot.shape)
        for slot in table(model)
    }


def tokens_of(model: ModelConfig, seed: int, steps: int = 1) -> np.ndarray:
    rng = np.random.default_rng([seed, 1])
    return rng.integers(0, model.vocab, (steps, model.batch, model.ctx + 1), dtype=np.int32)


# --------------------------------------------------------------------------- the oracle


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["tiny", "tiny-jitter", "strong"])
def test_golden_cases(
    golden: Path, check_case: Path, tmp_path: Path, name: str, dtype: str
) -> None:
    case, result = read_case(golden / f"{name}.case.safetensors"), tmp_path / "result.safetensors"
    write_result(result, on_numpy(case, dtype))
    tight = ["--loss", "1e-12", "--grad", "1e-6", "--param", "1e-6"] if dtype == "float64" else []
    answer = golden / f"{name}.answer.safetensors"
    done = subprocess.run(
        [sys.executable, check_case, answer, result, *tight],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of" in done.stdout


def test_the_oracle_notices_a_wrong_gelu(
    golden: Path, check_case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tanh_gelu(x: np.ndarray, _ops: object) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    monkeypatch.setattr(reference, "gelu_forward", tanh_gelu)
    case, result = read_case(golden / "strong.case.safetensors"), tmp_path / "wrong.safetensors"
    write_result(result, on_numpy(case, "float64"))
    answer = golden / "strong.answer.safetensors"
    done = subprocess.run(
        [sys.executable, check_case, answer, result], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout


# --------------------------------------------------------------------------- gradients


def numeric_gradients(
    model: ModelConfig, params: Tensors, tokens: np.ndarray, h: float = 1e-5
) -> Tensors:
    """Central differences of the loss over five points, element by element.

    Error h⁴·f⁽⁵⁾/30 (Abramowitz and Stegun, 25.3.6): a layer norm over two channels is so bent that
    three points are wrong by 2e-5.
    """
    numeric: Tensors = {}
    for name, tensor in params.items():
        numeric[name] = np.empty_like(tensor)
        for at in np.ndindex(tensor.shape):
            kept = tensor[at]
            ends = []
            for moved in (kept + h, kept - h, kept + 2 * h, kept - 2 * h):
                tensor[at] = moved
                ends.append(reference.loss_only(model, params, tokens))
            tensor[at] = kept
            numeric[name][at] = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * h)
    return numeric


def check_gradients(model: ModelConfig, seed: int) -> None:
    params, tokens = params_of(model, seed), tokens_of(model, seed)[0]
    loss, grads = reference.loss_and_grads(model, params, tokens)
    assert loss == pytest.approx(reference.loss_only(model, params, tokens), rel=1e-13)
    assert grads.keys() == {slot.name for slot in table(model)}
    scale = reference.grad_norm(grads)
    for name, numeric in numeric_gradients(model, params, tokens).items():
        assert grads[name].shape == numeric.shape
        np.testing.assert_allclose(
            grads[name], numeric, rtol=1e-5, atol=2e-8 * max(1, scale), err_msg=name
        )


@settings(max_examples=8)
@given(models(), st.integers(0, 2**32))
def test_gradients_of_any_small_shape(model: ModelConfig, seed: int) -> None:
    check_gradients(model, seed)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_head": 1},
        {"ctx": 1},
        {"n_head": 6, "d_model": 6},
        {"vocab": 7, "d_ff": 5},
        {"n_layer": 3, "d_model": 2},
        {"batch": 1, "ctx": 1, "d_model": 2},
        {"n_layer": 2, "n_head": 1, "d_model": 2, "d_ff": 8, "ctx": 5, "batch": 1, "vocab": 4},
    ],
    ids=str,
)
def test_gradients_at_the_edges(changes: dict[str, int]) -> None:
    check_gradients(config(**changes), 3)


@settings(max_examples=30)
@given(models(), st.integers(0, 2**32))
def test_key_bias_has_no_gradient(model: ModelConfig, seed: int) -> None:
    _, grads = reference.loss_and_grads(model, params_of(model, seed), tokens_of(model, seed)[0])
    for layer in range(model.n_layer):
        _, k, v = np.split(grads[f"h.{layer}.attn.bqkv"], 3)
        assert np.abs(k).max() < 1e-12 * max(1, np.abs(v).max())


def test_attention_sees_no_future() -> None:
    qkv = np.random.default_rng(5).normal(size=(2, 6, 12))
    before, _ = reference.attention_forward(qkv, 2)
    qkv[:, 4:] += 3
    after, _ = reference.attention_forward(qkv, 2)
    assert np.array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


def test_crossentropy_of_large_logits() -> None:
    logits = np.array([[[1000.0, 0.0], [-1000.0, 0.0]]])
    loss, probs = reference.crossentropy_forward(logits, np.array([[0, 0]]))
    assert loss == 500.0
    assert np.isfinite(probs).all()


def test_float32_stays_float32() -> None:
    model = config()
    trained = Reference(model, params_of(model, 1), np.float32)
    result = trained.step(tokens_of(model, 1)[0])
    tensors = [*result.grads.values(), *trained.params.values(), *trained.m.values()]
    assert {tensor.dtype for tensor in tensors} == {np.dtype(np.float32)}


def test_the_initial_parameters_are_left_alone() -> None:
    model = config()
    params = params_of(model, 1)
    kept = {name: tensor.copy() for name, tensor in params.items()}
    Reference(model, params).step(tokens_of(model, 1)[0])
    assert all(np.array_equal(kept[name], params[name]) for name in params)


# --------------------------------------------------------------------------- clip, AdamW


def test_clip_is_on_above_the_limit_only() -> None:
    assert reference.clip_scale(1.0, 1.0) == 1.0
    above = math.nextafter(1.0, 2.0)
    assert reference.clip_scale(above, 1.0) == 1.0 / (above + 1e-6)
    assert reference.clip_scale(0.5, 1.0) == 1.0
    assert reference.clip_scale(1e9, 0.0) == 1.0
    assert reference.clip_scale(4.0, 2.0) == pytest.approx(0.5, rel=1e-6)


def test_the_norm_is_over_all_gradients() -> None:
    assert reference.grad_norm({"a": np.array([[3.0]]), "b": np.array([0.0, 4.0])}) == 5.0


@pytest.mark.parametrize("clip", [0.0, 1e-3, 1e3])
def test_adamw_against_its_formula(clip: float) -> None:
    model = config(grad_clip=clip, weight_decay=0.3, lr=0.01, eps=1e-3)
    params, tokens = params_of(model, 9), tokens_of(model, 9, steps=4)
    trained = Reference(model, params)
    p = {name: tensor.copy() for name, tensor in params.items()}
    m = dict.fromkeys(p, 0.0)
    v = dict.fromkeys(p, 0.0)
    for t in range(1, 5):
        _, grads = reference.loss_and_grads(model, p, tokens[t - 1])
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        factor = clip / (norm + 1e-6) if 0 < clip < norm else 1.0
        for name, old in p.items():
            g = grads[name] * factor
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.95 * v[name] + 0.05 * g**2
            update = (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.95**t)) + 1e-3)
            p[name] = old - 0.01 * update - (0.01 * 0.3 * old if old.ndim == 2 else 0.0)
        result = trained.step(tokens[t - 1])
        assert result.grad_norm == pytest.approx(norm, rel=1e-12)
        for name, want in p.items():
            np.testing.assert_allclose(trained.params[name], want, rtol=1e-10, atol=1e-14)
    assert trained.t == 4


def test_the_first_step_is_bias_corrected() -> None:
    # With m̂ = g and v̂ = g², the first step is lr·g/(|g| + eps) whatever the betas.
    model = config(weight_decay=0.0, grad_clip=0.0, eps=1e-12)
    params = params_of(model, 2)
    trained = Reference(model, params)
    grads = trained.step(tokens_of(model, 2)[0]).grads
    for name in ("wte", "lnf.g", "h.0.mlp.b1"):
        moved = trained.params[name] - params[name]
        seen = np.abs(grads[name]) > 1e-8
        assert seen.any()
        np.testing.assert_allclose(moved[seen], -3e-4 * np.sign(grads[name][seen]), rtol=1e-3)


def test_decay_moves_matrices_alone() -> None:
    ends = []
    for decay in (0.0, 0.5):
        model = config(weight_decay=decay)
        trained = Reference(model, params_of(model, 4))
        trained.step(tokens_of(model, 4)[0])
        ends.append(trained.params)
    start = params_of(config(), 4)
    for name, shape in ((slot.name, slot.shape) for slot in table(config())):
        if len(shape) == 1:
            assert np.array_equal(ends[0][name], ends[1][name]), name
        else:
            np.testing.assert_allclose(
                ends[0][name] - ends[1][name], 3e-4 * 0.5 * start[name], rtol=1e-9, atol=1e-15
            )


def test_gradients_are_given_before_clipping() -> None:
    tokens = tokens_of(config(), 6)[0]
    results = [
        Reference(model, params_of(model, 6)).step(tokens)
        for model in (config(grad_clip=0.0), config(grad_clip=1e-4))
    ]
    for name, grad in results[0].grads.items():
        assert np.array_equal(grad, results[1].grads[name])
    assert results[0].grad_norm == results[1].grad_norm > 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_keeps_the_leading_digits_of_its_tail(dtype: type) -> None:
    """Where all inputs lie in the tail, a gradient is made of nothing else."""
    x = np.linspace(-12, -3, 1001).astype(dtype)
    tail = erfc(-x.astype(np.float64) / math.sqrt(2)) / 2
    tolerance = 2e-5 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(reference.gelu_forward(x), x * tail, rtol=tolerance)
    pdf = np.exp(-(x.astype(np.float64) ** 2) / 2) / math.sqrt(2 * math.pi)
    slope = tail + x * pdf
    np.testing.assert_allclose(reference.gelu_backward(np.ones_like(x), x), slope, rtol=tolerance)

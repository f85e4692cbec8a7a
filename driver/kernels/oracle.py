"""What an operation is given, drawn from a seed, and what it must give: the float64 reference.

`draw` functions give an operation's inputs as float32 (or integers) by name; what a backward needs
from its forward is computed in float64 and rounded once. Inputs are chosen so that a wrong
constant shows: rows of layer norm whose variance is near eps, logits that overflow unless the
largest is taken away, second moments near AdamW's eps.
`exact` functions give its results in float64, through `reference`.
"""

import math

import numpy as np

from driver import reference
from driver.draws import normals
from driver.kernels.case import Arrays, Case
from driver.kernels.running import F64
from driver.tensors import F32, table

Stream = np.random.BitGenerator
STEP = 3  # AdamW's step number: both corrections count
SCALE = 0.7  # what clipping multiplies gradients by


def _normal(stream: Stream, *shape: int) -> F32:
    return normals(stream, math.prod(shape)).reshape(shape).astype(np.float32)


def _tokens(case: Case, stream: Stream) -> np.ndarray:
    """(B, T+1), any of the vocabulary."""
    B, T, V = (case.sizes[letter] for letter in "BTV")
    drawn = stream.random_raw(B * (T + 1)) % np.uint64(V)
    return np.asarray(drawn.astype(np.int32).reshape(B, T + 1))


def _cycled(values: tuple[float, ...], count: int) -> F32:
    """(count, 1)."""
    return np.resize(np.array(values, np.float32), count)[:, None]


def _f64(x: Arrays, *names: str) -> list[F64]:
    return [x[name].astype(np.float64) for name in names]


# --------------------------------------------------------------------------- encoder


def draw_encoder_forward(case: Case, stream: Stream) -> Arrays:
    """Tokens and both tables."""
    T, C, V = (case.sizes[letter] for letter in "TCV")
    tokens = _tokens(case, stream)
    return {"tokens": tokens, "wte": _normal(stream, V, C), "wpe": _normal(stream, T, C)}


def encoder_forward(case: Case, x: Arrays) -> Arrays:
    """x (B, T, C)."""
    return {"x": reference.encoder_forward(x["tokens"][:, :-1], *_f64(x, "wte", "wpe"))}


def draw_encoder_backward(case: Case, stream: Stream) -> Arrays:
    """The residual's gradient, and the head's part that is in dwte already."""
    B, T, C, V = (case.sizes[letter] for letter in "BTCV")
    tokens = _tokens(case, stream)
    return {"tokens": tokens, "dx": _normal(stream, B, T, C), "dwte": _normal(stream, V, C)}


def encoder_backward(case: Case, x: Arrays) -> Arrays:
    """dwte (V, C) with what was there; dwpe (T, C)."""
    dx, before = _f64(x, "dx", "dwte")
    dwte, dwpe = reference.encoder_backward(dx, x["tokens"][:, :-1], case.sizes["V"])
    return {"dwte": before + dwte, "dwpe": dwpe}


# --------------------------------------------------------------------------- layer norm


def draw_layernorm_forward(case: Case, stream: Stream) -> Arrays:
    """Rows of very different variance, among them such near eps; means as large as deviations."""
    N, C = case.sizes["N"], case.sizes["C"]
    spread = _cycled((1.0, 3e-3, 30.0, 1e-4), N)
    return {
        "x": (_normal(stream, N, C) + _normal(stream, N, 1)) * spread,
        "g": 1 + np.float32(0.1) * _normal(stream, C),
        "b": np.float32(0.1) * _normal(stream, C),
    }


def layernorm_forward(case: Case, x: Arrays) -> Arrays:
    """y (N, C); mean, rstd (N)."""
    rows, g, b = _f64(x, "x", "g", "b")
    y, (_, rstd) = reference.layernorm_forward(rows, g, b)
    return {"y": y, "mean": rows.mean(-1), "rstd": rstd[:, 0]}


def draw_layernorm_backward(case: Case, stream: Stream) -> Arrays:
    """The forward's inputs, mean and rstd, and two gradients."""
    N, C = case.sizes["N"], case.sizes["C"]
    x = draw_layernorm_forward(case, stream)
    kept = layernorm_forward(case, x)
    saved = {name: kept[name].astype(np.float32) for name in ("mean", "rstd")}
    return x | saved | {"dy": _normal(stream, N, C), "dx": _normal(stream, N, C)}


def layernorm_backward(case: Case, x: Arrays) -> Arrays:
    """dx (N, C) with what was there; dg, db (C)."""
    rows, g, b, dy, before = _f64(x, "x", "g", "b", "dy", "dx")
    _, kept = reference.layernorm_forward(rows[None], g, b)
    dx, dg, db = reference.layernorm_backward(dy[None], g, kept)
    return {"dx": before + dx[0], "dg": dg, "db": db}


# --------------------------------------------------------------------------- attention


def draw_attention_forward(case: Case, stream: Stream) -> Arrays:
    """Scores of standard deviation 2 or so: probabilities far from equal."""
    B, T, C = (case.sizes[letter] for letter in "BTC")
    return {"qkv": np.float32(1.5) * _normal(stream, B, T, 3 * C)}


def attention_forward(case: Case, x: Arrays) -> Arrays:
    """out (B, T, C); row_top, row_inverse (B, H, T): the largest score, 1/Σ e^(score − top)."""
    (qkv,) = _f64(x, "qkv")
    out, (q, k, _, _) = reference.attention_forward(qkv, case.sizes["H"])
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    top = scores.max(-1)
    inverse = 1 / np.exp(scores - top[..., None]).sum(-1)
    return {"out": out, "row_top": top, "row_inverse": inverse}


def draw_attention_backward(case: Case, stream: Stream) -> Arrays:
    """The forward's input, each row's top rounded and the inverse that belongs to that."""
    B, T, C = (case.sizes[letter] for letter in "BTC")
    x = draw_attention_forward(case, stream)
    kept = attention_forward(case, x)
    top = kept["row_top"].astype(np.float32)
    inverse = kept["row_inverse"] * np.exp(top - kept["row_top"])
    dout = _normal(stream, B, T, C)
    return x | {"dout": dout, "row_top": top, "row_inverse": inverse.astype(np.float32)}


def attention_backward(case: Case, x: Arrays) -> Arrays:
    """dqkv (B, T, 3C)."""
    qkv, dout = _f64(x, "qkv", "dout")
    _, kept = reference.attention_forward(qkv, case.sizes["H"])
    return {"dqkv": reference.attention_backward(dout, case.sizes["H"], kept)}


# --------------------------------------------------------------------------- GELU


def draw_gelu_forward(case: Case, stream: Stream) -> Arrays:
    """Far into both tails."""
    return {"x": np.float32(3) * _normal(stream, case.sizes["N"], case.sizes["F"])}


def gelu_forward(case: Case, x: Arrays) -> Arrays:
    """y, slope (N, F)."""
    (at,) = _f64(x, "x")
    return {"y": reference.gelu_forward(at), "slope": _slope(at)}


def _slope(x: F64) -> F64:
    return reference.gelu_backward(np.ones_like(x), x)


def draw_gelu_backward(case: Case, stream: Stream) -> Arrays:
    """A gradient, and the slope rounded."""
    x = draw_gelu_forward(case, stream)
    (at,) = _f64(x, "x")
    return x | {"slope": _slope(at).astype(np.float32), "dx": _normal(stream, *at.shape)}


def gelu_backward(case: Case, x: Arrays) -> Arrays:
    """dx (N, F)."""
    dy, at = _f64(x, "dx", "x")
    return {"dx": reference.gelu_backward(dy, at)}


# --------------------------------------------------------------------------- cross-entropy


def draw_crossentropy(case: Case, stream: Stream) -> Arrays:
    """Rows of logits far above and below 0."""
    B, T, V = (case.sizes[letter] for letter in "BTV")
    offsets = _cycled((0.0, 100.0, -100.0), B * T).reshape(B, T, 1)
    tokens = _tokens(case, stream)
    return {"tokens": tokens, "logits": np.float32(3) * _normal(stream, B, T, V) + offsets}


def crossentropy(case: Case, x: Arrays) -> Arrays:
    """Mean loss; the gradient in the logits' place."""
    (logits,) = _f64(x, "logits")
    targets = x["tokens"][:, 1:]
    loss, probs = reference.crossentropy_forward(logits, targets)
    return {"logits": reference.crossentropy_backward(probs, targets), "loss": np.array([loss])}


# --------------------------------------------------------------------------- sums, AdamW


def draw_bias_backward(case: Case, stream: Stream) -> Arrays:
    """A gradient."""
    return {"dy": _normal(stream, case.sizes["N"], case.sizes["O"])}


def bias_backward(case: Case, x: Arrays) -> Arrays:
    """db (O)."""
    (dy,) = _f64(x, "dy")
    return {"db": reference.bias_backward(dy[None])}


def draw_grad_norm(case: Case, stream: Stream) -> Arrays:
    """A flat gradient, zero in the gaps between tensors."""
    return {"grad": _flat(case, stream)}


def _flat(case: Case, stream: Stream) -> F32:
    floats = case.sizes["floats"]
    inside = np.zeros(floats, bool)
    for slot in table(case.config):
        inside[slot.offset : slot.offset + slot.size] = True
    return np.where(inside, np.float32(0.01) * _normal(stream, floats), np.float32(0))


def grad_norm(case: Case, x: Arrays) -> Arrays:
    """One number."""
    return {"norm": np.array([reference.grad_norm({"grad": x["grad"]})])}


def draw_adamw(case: Case, stream: Stream) -> Arrays:
    """A state in training; gradients and moments of three magnitudes, the least near eps."""
    c = case.config
    magnitude = np.resize(np.array([1, 1e-3, 1e-6], np.float32), case.sizes["floats"])
    m, root = (_flat(case, stream) * magnitude for _ in range(2))
    slots = [(slot.offset, slot.size, slot.decay) for slot in table(c)]
    return {
        "param": _flat(case, stream),
        "m": m,
        "v": root * root,
        "grad": _flat(case, stream) * magnitude,
        "slots": np.array(slots, np.int32),
        "recipe": np.array([c.lr, c.beta1, c.beta2, c.eps, c.weight_decay, STEP, SCALE]),
    }


def adamw(case: Case, x: Arrays) -> Arrays:
    """param, m, v, flat."""
    param, grad, m, v = (_by_tensor(case, x[name]) for name in ("param", "grad", "m", "v"))
    reference.adamw(case.config, param, grad, m, v, STEP, SCALE)
    return {"param": _flattened(case, param), "m": _flattened(case, m), "v": _flattened(case, v)}


def _by_tensor(case: Case, flat: F32) -> reference.Tensors:
    return {
        slot.name: flat[slot.offset : slot.offset + slot.size]
        .reshape(slot.shape)
        .astype(np.float64)
        for slot in table(case.config)
    }


def _flattened(case: Case, tensors: reference.Tensors) -> F64:
    flat = np.zeros(case.sizes["floats"])
    for slot in table(case.config):
        flat[slot.offset : slot.offset + slot.size] = tensors[slot.name].reshape(-1)
    return flat

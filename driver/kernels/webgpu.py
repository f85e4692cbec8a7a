"""The operations of a step as WGSL has them: operands by the names that its files bind.

The inputs and the exact results are those of the C operations, arranged otherwise: layer norm keeps
mean and rstd side by side, attention keeps the logarithm of each row's sum, GELU's backward makes
the slope again, cross-entropy gives one loss a row. Bias gradients are part of the products, and
the gradient norm is not run apart.

Bounds are the formulas' own with the accuracy that the WGSL specification asks of e^x, quotients,
roots and logarithms. GELU is required, not derived: 5e-7 of the larger of 1 and |x|, and of |dy|.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from driver.kernels import bounds, oracle
from driver.kernels.bounds import Bounds
from driver.kernels.case import Arrays, Case, Sizes
from driver.kernels.entry import Entry, letters, read, updated, written
from driver.kernels.running import F64, WGSL, Running, accuracy, exact, rounded
from driver.parity import UNIT
from driver.records import ModelConfig
from driver.tensors import ALIGN, flat_size

GELU = 5e-7
LOG_ULP, LOG_NEAR_1 = 3, 2.0**-21  # of WGSL's log: relative, or absolute within [0.5, 2]
Draw = Callable[[Case, np.random.BitGenerator], Arrays]


def _renamed(found: Arrays | Bounds, names: dict[str, str]) -> Arrays:
    return {names.get(name, name): array for name, array in found.items()}


def _log_error(total: Running) -> F64:
    """Absolute error of the logarithm of a sum."""
    carried = -np.log1p(-np.minimum(total.error / total.value, 0.5))
    own = np.maximum(LOG_ULP * 2 * UNIT * np.abs(np.log(total.value)), LOG_NEAR_1)
    return np.asarray(carried + own)


# --------------------------------------------------------------------------- encoder


def _draw_encoder_forward(case: Case, stream: np.random.BitGenerator) -> Arrays:
    x = oracle.draw_encoder_forward(case, stream)
    return x | {"inputs": x["tokens"], "tokens": x["tokens"][:, :-1]}


def _encoder_forward(of: Callable[[Case, Arrays], Arrays | Bounds]) -> Callable[..., Arrays]:
    def found(case: Case, x: Arrays) -> Arrays:
        return _renamed(of(case, x | {"tokens": x["inputs"]}), {"x": "out"})

    return found


def _draw_encoder_backward(case: Case, stream: np.random.BitGenerator) -> Arrays:
    """With the positions sorted by token and where each token's begin."""
    x = oracle.draw_encoder_backward(case, stream)
    tokens = x["tokens"][:, :-1].reshape(-1)
    counts = np.bincount(tokens, minlength=case.sizes["V"])
    starts = np.concatenate([[0], np.cumsum(counts)])
    order = np.argsort(tokens, kind="stable").reshape(x["tokens"][:, :-1].shape)
    return x | {"order": order, "starts": starts}


# --------------------------------------------------------------------------- layer norm

_LAYERNORM = {"g": "gain", "b": "shift", "y": "out", "dy": "dout", "dg": "dgain", "db": "dshift"}


def _with_stats(found: Arrays) -> Arrays:
    """Mean and rstd of a row side by side."""
    if "mean" in found:
        found = found | {"stats": np.stack([found["mean"], found["rstd"]], -1)}
    return found


def _layernorm(of: Callable[[Case, Arrays], Arrays | Bounds]) -> Callable[..., Arrays]:
    def found(case: Case, x: Arrays) -> Arrays:
        made = _renamed(_with_stats(dict(of(case, x))), _LAYERNORM)
        return {name: array for name, array in made.items() if name not in ("mean", "rstd")}

    return found


def _draw_layernorm(of: Draw) -> Draw:
    def drawn(case: Case, stream: np.random.BitGenerator) -> Arrays:
        x = of(case, stream)
        return x | _renamed(_with_stats(x), _LAYERNORM)

    return drawn


# --------------------------------------------------------------------------- attention


def attention_forward(case: Case, x: Arrays) -> Arrays:
    """out (B, T, C); lse (B, H, T), log Σ e^score."""
    found = oracle.attention_forward(case, x)
    return {"out": found["out"], "lse": found["row_top"] - np.log(found["row_inverse"])}


def attention_forward_bound(case: Case, x: Arrays) -> Bounds:
    """As in C, but the softmax runs online: for every block of 4 keys to come, a term is multiplied
    by an e^x once more. All exponents of a term together are its distance from the row's top.
    """
    _, _, v = bounds.qkv_heads(case, x["qkv"])
    scores, mask = bounds.attention_scores(case, x["qkv"]), bounds.causal_mask(case)
    top = np.where(mask, scores.value, -np.inf).max(-1, keepdims=True)
    e = (scores.where(mask) - exact(top).where(mask)).exp().where(mask)
    blocks = math.ceil(case.sizes["T"] / 4)
    e = Running(e.value, e.error + blocks * (2 * 3 + 1) * UNIT * e.value)
    total = e.sum(-1)
    out = (e @ v) * (exact(1.0) / total)
    lse = _log_error(total) + UNIT * (np.abs(top) + np.abs(np.log(total.value)))
    return {"out": bounds.joined(out.error), "lse": lse[..., 0]}


def draw_attention_backward(case: Case, stream: np.random.BitGenerator) -> Arrays:
    """The forward's input and what it keeps, rounded, and a gradient."""
    x = oracle.draw_attention_backward(case, stream)
    kept = attention_forward(case, x)
    return x | {name: array.astype(np.float32) for name, array in kept.items()}


def attention_backward(case: Case, x: Arrays) -> Arrays:
    """dqkv (B, T, 3C); delta (B, H, T), each row's dout·out."""
    dqkv = oracle.attention_backward(case, x)["dqkv"]
    out = attention_forward(case, x)["out"]
    return {"dqkv": dqkv, "delta": (_split(case, x["dout"]) * _split(case, out)).sum(-1)}


def attention_backward_bound(case: Case, x: Arrays) -> Bounds:
    """The formula, probabilities made again from lse, delta from `out`, both of them rounded."""
    q, k, v = bounds.qkv_heads(case, x["qkv"])
    scores, mask = bounds.attention_scores(case, x["qkv"]), bounds.causal_mask(case)
    dout, out = exact(_split(case, x["dout"])), rounded(_split(case, x["out"]))
    p = (scores.where(mask) - rounded(x["lse"][..., None]).where(mask)).exp().where(mask)
    dp, delta = dout @ v.transposed(), (dout * out).sum(-1)
    delta += (p * (dp - delta)).sum(-1)  # what rounding left of a row's sum of ds, exactly 0
    ds = p * (dp - delta) * bounds.score_scale(case)
    parts = (ds @ k, ds.transposed() @ q, p.transposed() @ dout)
    dqkv = np.concatenate([bounds.joined(part.error) for part in parts], axis=-1)
    return {"dqkv": dqkv, "delta": delta.error[..., 0]}


def _split(case: Case, x: np.ndarray) -> F64:
    return bounds.split(case, x.astype(np.float64))


# --------------------------------------------------------------------------- GELU


def draw_gelu_backward(case: Case, stream: np.random.BitGenerator) -> Arrays:
    """A point and a gradient."""
    x = oracle.draw_gelu_backward(case, stream)
    return x | {"dy": x["dx"]}


def gelu_forward_bound(case: Case, x: Arrays) -> Bounds:
    """Required."""
    return {"out": GELU * np.maximum(1, np.abs(x["x"].astype(np.float64)))}


def gelu_backward_bound(case: Case, x: Arrays) -> Bounds:
    """Required."""
    return {"dx": GELU * np.abs(x["dy"].astype(np.float64)) + 2.0**-126}


# --------------------------------------------------------------------------- cross-entropy


def _draw_crossentropy(case: Case, stream: np.random.BitGenerator) -> Arrays:
    x = oracle.draw_crossentropy(case, stream)
    return x | {"targets": x["tokens"][:, 1:]}


def crossentropy(case: Case, x: Arrays) -> Arrays:
    """A loss a row; the gradient of their mean in the logits' place."""
    logits = x["logits"].astype(np.float64)
    top = logits.max(-1, keepdims=True)
    at_target = np.take_along_axis(logits, x["targets"][..., None].astype(np.int64), -1)
    losses = np.log(np.exp(logits - top).sum(-1)) - (at_target - top)[..., 0]
    return {"logits": oracle.crossentropy(case, x)["logits"], "losses": losses}


def crossentropy_bound(case: Case, x: Arrays) -> Bounds:
    """The formula."""
    logits, targets = exact(x["logits"]), x["targets"][..., None].astype(np.int64)
    top = exact(logits.value.max(-1, keepdims=True))
    total = (logits - top).exp().sum(-1)
    probs = (logits - top).exp() / total
    hit = np.arange(case.sizes["V"]) == targets
    dlogits = (probs - exact(1.0).where(hit)) / exact(targets.size)
    below = exact(np.take_along_axis(logits.value, targets, -1)) - top
    loss = Running(np.log(total.value), _log_error(total)) - below
    return {"logits": dlogits.error, "losses": loss.error[..., 0]}


# --------------------------------------------------------------------------- AdamW


def _adamw_sizes(config: ModelConfig) -> Sequence[Sizes]:
    floats = flat_size(config)
    (tensors,) = letters("floats", "tensors")(config)
    return [tensors | {"words": math.ceil(floats / ALIGN / 32)}]


def draw_adamw(case: Case, stream: np.random.BitGenerator) -> Arrays:
    """The recipe as a uniform, the step's facts, the clip factor, a decay bit for 64 floats."""
    x = oracle.draw_adamw(case, stream)
    lr, beta1, beta2, eps, weight_decay, t, scale = x["recipe"]
    decay = np.zeros(case.sizes["words"], np.uint32)
    for offset, size, decays in x["slots"]:
        for block in range(offset // ALIGN, -(-(offset + size) // ALIGN) if decays else 0):
            decay[block // 32] |= np.uint32(1 << (block % 32))
    corrections = np.array([1 / (1 - beta1**t), 1 / (1 - beta2**t)], np.float32)
    return x | {
        "recipe_64": x["recipe"],
        "recipe": np.array([lr, beta1, 1 - beta1, beta2, 1 - beta2, eps, weight_decay, 1.0]),
        "facts": np.concatenate([np.zeros(1, np.uint32), corrections.view(np.uint32)]),
        "clip": np.array([scale, 1.0]),
        "decay": decay,
    }


def adamw_bound(case: Case, x: Arrays) -> Bounds:
    """The formula."""
    return bounds.adamw(case, x | {"recipe": x["recipe_64"]})


# --------------------------------------------------------------------------- the table


def _in_wgsl(bound: Callable[[Case, Arrays], Bounds]) -> Callable[[Case, Arrays], Bounds]:
    def bounded(case: Case, x: Arrays) -> Bounds:
        with accuracy(WGSL):
            return bound(case, x)

    return bounded


def _attention_flops(products: int) -> Callable[[Sizes], int]:
    return lambda n: products * n["B"] * n["T"] * (n["T"] + 1) * n["C"]


TABLE = (
    Entry(
        "encoder_forward", "encoder", letters("B", "T", "C", "V"),
        (read("tokens", "B T", "<u4"), read("wte", "V C"), read("wpe", "T C"),
         written("out", "B T C")),
        _draw_encoder_forward, _encoder_forward(oracle.encoder_forward),
        _in_wgsl(_encoder_forward(bounds.encoder_forward)),
    ),
    Entry(
        "encoder_backward", "encoder", letters("B", "T", "C", "V"),
        (read("order", "B T", "<u4"), read("starts", "V+1", "<u4"), read("dx", "B T C"),
         updated("dwte", "V C"), written("dwpe", "T C")),
        _draw_encoder_backward, oracle.encoder_backward, _in_wgsl(bounds.encoder_backward),
    ),
    Entry(
        "layernorm_forward", "layernorm", letters("N", "C"),
        (read("x", "N C"), read("gain", "C"), read("shift", "C"), written("stats", "N 2"),
         written("out", "N C")),
        _draw_layernorm(oracle.draw_layernorm_forward), _layernorm(oracle.layernorm_forward),
        _in_wgsl(_layernorm(bounds.layernorm_forward)),
    ),
    Entry(
        "layernorm_backward", "layernorm", letters("N", "C"),
        (read("dout", "N C"), read("x", "N C"), read("gain", "C"), read("stats", "N 2"),
         updated("dx", "N C"), written("dgain", "C"), written("dshift", "C")),
        _draw_layernorm(oracle.draw_layernorm_backward), _layernorm(oracle.layernorm_backward),
        _in_wgsl(_layernorm(bounds.layernorm_backward)),
    ),
    Entry(
        "attention_forward", "attention", letters("B", "T", "C", "H"),
        (read("qkv", "B T 3C"), written("out", "B T C"), written("lse", "B H T")),
        oracle.draw_attention_forward, attention_forward, _in_wgsl(attention_forward_bound),
        flops=_attention_flops(2),
    ),
    Entry(
        "attention_backward", "attention", letters("B", "T", "C", "H"),
        (read("qkv", "B T 3C"), read("out", "B T C"), read("dout", "B T C"),
         read("lse", "B H T"), written("delta", "B H T"), written("dqkv", "B T 3C")),
        draw_attention_backward, attention_backward, _in_wgsl(attention_backward_bound),
        flops=_attention_flops(5),
    ),
    Entry(
        "gelu_forward", "gelu", letters("N", "F"),
        (read("x", "N F"), written("out", "N F")),
        oracle.draw_gelu_forward, lambda case, x: {"out": oracle.gelu_forward(case, x)["y"]},
        gelu_forward_bound,
    ),
    Entry(
        "gelu_backward", "gelu", letters("N", "F"),
        (read("x", "N F"), read("dy", "N F"), written("dx", "N F")),
        draw_gelu_backward, oracle.gelu_backward, gelu_backward_bound,
    ),
    Entry(
        "crossentropy", "crossentropy", letters("B", "T", "V"),
        (read("targets", "B T", "<u4"), updated("logits", "B T V"), written("losses", "B T")),
        _draw_crossentropy, crossentropy, _in_wgsl(crossentropy_bound),
    ),
    Entry(
        "adamw", "adamw", _adamw_sizes,
        (read("recipe", "8"), read("facts", "3", "<u4"), read("clip", "2"),
         read("decay", "words", "<u4"), read("grad", "floats"), updated("param", "floats"),
         updated("m", "floats"), updated("v", "floats")),
        draw_adamw, oracle.adamw, _in_wgsl(adamw_bound),
    ),
)  # fmt: skip
ENTRIES = {entry.name: entry for entry in TABLE}

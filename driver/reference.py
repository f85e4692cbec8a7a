"""The NumPy GPT that every arm is checked against: forward, backward by hand, clip, AdamW.

Letters: L layers, H heads, C d_model, D = C/H, F d_ff, T context, B batch, V vocab, N = B·T.
Each operation's backward stands below its forward and carries the name that C and WGSL use too.
A leading `d` means the gradient of the loss with respect to that value. Works in float64 (the
reference proper) or float32 (an arm like any other), for any shape.

Model: Radford et al. 2019 (GPT-2), pre-LN blocks, exact GELU, tied head. Optimiser: Loshchilov and
Hutter 2019 (AdamW), decay on two-dimensional tensors only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import DTypeLike, NDArray

from driver.records import ModelConfig
from driver.tensors import table

Array = NDArray[Any]
Tensors = dict[str, Array]
LN_EPS = 1e-5


@dataclass(frozen=True)
class StepResult:
    """One training step: mean cross-entropy (nats), gradient norm before clipping, gradients."""

    loss: float
    grad_norm: float
    grads: Tensors


def _normal_cdf(x: Array) -> Array:
    # scipy imports a part when it is first used, and most commands compute nothing.
    values: Array = scipy.special.ndtr(x)
    return values


@dataclass(frozen=True)
class Arithmetic:
    """How products and the normal distribution are computed; another way rounds otherwise."""

    matmul: Callable[[Array, Array], Array] = np.matmul
    normal_cdf: Callable[[Array], Array] = _normal_cdf


PLAIN = Arithmetic()


class Reference:
    """A GPT in training. `params`, `m`, `v` are tensors by name; `t` counts AdamW steps taken."""

    def __init__(
        self,
        config: ModelConfig,
        params: Tensors,
        dtype: DTypeLike = np.float64,
        ops: Arithmetic = PLAIN,
    ) -> None:
        self.config = config
        self.ops = ops
        self.dtype = np.dtype(dtype)
        self.params = {name: p.astype(dtype) for name, p in params.items()}
        self.m = {name: np.zeros_like(p) for name, p in self.params.items()}
        self.v = {name: np.zeros_like(p) for name, p in self.params.items()}
        self.t = 0

    def step(self, tokens: Array) -> StepResult:
        """Trains on one batch; tokens (B, T+1), inputs are columns 0…T−1, targets 1…T."""
        loss, grads = loss_and_grads(self.config, self.params, tokens, self.ops)
        norm = grad_norm(grads)
        scale = clip_scale(norm, self.config.grad_clip)
        self.t += 1
        adamw(self.config, self.params, grads, self.m, self.v, self.t, scale)
        return StepResult(loss, norm, grads)


# --------------------------------------------------------------------------- the step, downwards


def loss_only(
    config: ModelConfig,
    params: Tensors,
    tokens: Array,
    go_on: Callable[[], None] = lambda: None,
) -> float:
    """Mean cross-entropy of one batch without keeping what a backward pass needs.

    `go_on` is called after every layer and may raise to end the work.
    """
    return crossentropy_forward(logits_of(config, params, tokens[:, :-1], go_on), tokens[:, 1:])[0]


def logits_of(
    config: ModelConfig,
    params: Tensors,
    inputs: Array,
    go_on: Callable[[], None] = lambda: None,
) -> Array:
    """Logits (B, T, V) of `inputs` (B, T), T at most the context; `go_on` as in `loss_only`."""
    x = encoder_forward(inputs, params["wte"], params["wpe"])
    for layer in range(config.n_layer):
        x, _ = block_forward(config, params, f"h.{layer}.", x)
        go_on()
    h, _ = layernorm_forward(x, params["lnf.g"], params["lnf.b"])
    return np.asarray(h @ params["wte"].T)


def loss_and_grads(
    config: ModelConfig, params: Tensors, tokens: Array, ops: Arithmetic = PLAIN
) -> tuple[float, Tensors]:
    """Mean cross-entropy (nats) and the exact gradient of every tensor, before clipping."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = encoder_forward(inputs, params["wte"], params["wpe"])  # (B, T, C)
    saved = []
    for layer in range(config.n_layer):
        x, kept = block_forward(config, params, f"h.{layer}.", x, ops)
        saved.append(kept)
    h, kept_lnf = layernorm_forward(x, params["lnf.g"], params["lnf.b"])
    logits = ops.matmul(h, params["wte"].T)  # (B, T, V)
    loss, probs = crossentropy_forward(logits, targets)

    grads: Tensors = {}
    dlogits = crossentropy_backward(probs, targets)
    dh, dwteT = matmul_backward(dlogits, h, params["wte"].T, ops)
    dx, grads["lnf.g"], grads["lnf.b"] = layernorm_backward(dh, params["lnf.g"], kept_lnf)
    for layer in reversed(range(config.n_layer)):
        dx = block_backward(config, params, grads, f"h.{layer}.", dx, saved[layer], ops)
    dwte, grads["wpe"] = encoder_backward(dx, inputs, config.vocab)
    grads["wte"] = dwteT.T + dwte
    return loss, grads


def block_forward(
    config: ModelConfig, p: Tensors, h: str, x: Array, ops: Arithmetic = PLAIN
) -> tuple[Array, tuple[Any, ...]]:
    """x += attention(ln1(x)); x += mlp(ln2(x)). x (B, T, C)."""
    n1, kept_ln1 = layernorm_forward(x, p[h + "ln1.g"], p[h + "ln1.b"])
    qkv = ops.matmul(n1, p[h + "attn.wqkv"]) + p[h + "attn.bqkv"]  # (B, T, 3C)
    a, kept_attn = attention_forward(qkv, config.n_head, ops)
    x = x + ops.matmul(a, p[h + "attn.wo"]) + p[h + "attn.bo"]
    n2, kept_ln2 = layernorm_forward(x, p[h + "ln2.g"], p[h + "ln2.b"])
    f = ops.matmul(n2, p[h + "mlp.w1"]) + p[h + "mlp.b1"]  # (B, T, F)
    g = gelu_forward(f, ops)
    x = x + ops.matmul(g, p[h + "mlp.w2"]) + p[h + "mlp.b2"]
    return x, (n1, kept_ln1, a, kept_attn, n2, kept_ln2, f, g)


def block_backward(
    config: ModelConfig,
    p: Tensors,
    grads: Tensors,
    h: str,
    dx: Array,
    kept: tuple[Any, ...],
    ops: Arithmetic = PLAIN,
) -> Array:
    """Gradient of the block's input; adds the block's parameter gradients to `grads`."""
    n1, kept_ln1, a, kept_attn, n2, kept_ln2, f, g = kept
    dg, grads[h + "mlp.w2"] = matmul_backward(dx, g, p[h + "mlp.w2"], ops)
    grads[h + "mlp.b2"] = bias_backward(dx)
    df = gelu_backward(dg, f, ops)
    dn2, grads[h + "mlp.w1"] = matmul_backward(df, n2, p[h + "mlp.w1"], ops)
    grads[h + "mlp.b1"] = bias_backward(df)
    dln2, grads[h + "ln2.g"], grads[h + "ln2.b"] = layernorm_backward(dn2, p[h + "ln2.g"], kept_ln2)
    dx = dx + dln2
    da, grads[h + "attn.wo"] = matmul_backward(dx, a, p[h + "attn.wo"], ops)
    grads[h + "attn.bo"] = bias_backward(dx)
    dqkv = attention_backward(da, config.n_head, kept_attn, ops)
    dn1, grads[h + "attn.wqkv"] = matmul_backward(dqkv, n1, p[h + "attn.wqkv"], ops)
    grads[h + "attn.bqkv"] = bias_backward(dqkv)
    dln1, grads[h + "ln1.g"], grads[h + "ln1.b"] = layernorm_backward(dn1, p[h + "ln1.g"], kept_ln1)
    return dx + dln1


# --------------------------------------------------------------------------- encoder


def encoder_forward(inputs: Array, wte: Array, wpe: Array) -> Array:
    """x = wte[token] + wpe[position]. inputs (B, T), wte (V, C), wpe (T, C) → (B, T, C)."""
    return wte[inputs] + wpe[: inputs.shape[1]]


def encoder_backward(dx: Array, inputs: Array, vocab: int) -> tuple[Array, Array]:
    """dx (B, T, C) → dwte (V, C) of the lookup alone, dwpe (T, C)."""
    C = dx.shape[-1]
    order = np.argsort(inputs, axis=None, kind="stable")
    found, starts = np.unique(inputs.reshape(-1)[order], return_index=True)
    dwte = np.zeros((vocab, C), dx.dtype)
    dwte[found] = np.add.reduceat(dx.reshape(-1, C)[order], starts, axis=0)
    return dwte, dx.sum(axis=0)


# --------------------------------------------------------------------------- layer norm


def layernorm_forward(x: Array, g: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    """(x − mean)/sqrt(var + 1e-5)·g + b over C, biased variance. Keeps x̂ and 1/σ."""
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(LN_EPS))
    xhat = centred * rstd
    return xhat * g + b, (xhat, rstd)


def layernorm_backward(
    dy: Array, g: Array, kept: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """dx = rstd·(dx̂ − mean(dx̂) − x̂·mean(dx̂·x̂)) with dx̂ = dy·g; also dg, db."""
    xhat, rstd = kept
    dg = (dy * xhat).sum(axis=(0, 1))
    db = dy.sum(axis=(0, 1))
    dxhat = dy * g
    mean = dxhat.mean(axis=-1, keepdims=True)
    mean_xhat = (dxhat * xhat).mean(axis=-1, keepdims=True)
    return rstd * (dxhat - mean - xhat * mean_xhat), dg, db


# --------------------------------------------------------------------------- matmul, bias


def matmul_backward(dy: Array, x: Array, w: Array, ops: Arithmetic = PLAIN) -> tuple[Array, Array]:
    """y = x @ w: dx = dy·wᵀ (dA), dw = xᵀ·dy (dB). dy (B, T, out), x (B, T, in), w (in, out)."""
    dw = ops.matmul(x.reshape(-1, x.shape[-1]).T, dy.reshape(-1, dy.shape[-1]))
    return ops.matmul(dy, w.T), dw


def bias_backward(dy: Array) -> Array:
    """Sum over all positions. dy (B, T, out) → (out)."""
    return np.asarray(dy.sum(axis=(0, 1)))


# --------------------------------------------------------------------------- attention


def attention_forward(
    qkv: Array, n_head: int, ops: Arithmetic = PLAIN
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """Causal softmax(q·kᵀ/sqrt(D))·v. qkv (B, T, 3C): q, k, v side by side, heads contiguous.

    Returns (B, T, C) and q, k, v (B, H, T, D), probabilities (B, H, T, T).
    """
    q, k, v = (split_heads(part, n_head) for part in np.split(qkv, 3, axis=-1))
    T, D = q.shape[2], q.shape[3]
    scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) * qkv.dtype.type(1 / math.sqrt(D))
    scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs = e / e.sum(axis=-1, keepdims=True)
    return join_heads(ops.matmul(probs, v)), (q, k, v, probs)


def attention_backward(
    dout: Array, n_head: int, kept: tuple[Array, Array, Array, Array], ops: Arithmetic = PLAIN
) -> Array:
    """dout (B, T, C) → dqkv (B, T, 3C)."""
    q, k, v, probs = kept
    do = split_heads(dout, n_head)
    dv = ops.matmul(probs.transpose(0, 1, 3, 2), do)
    dprobs = ops.matmul(do, v.transpose(0, 1, 3, 2))
    dscores = probs * (dprobs - (dprobs * probs).sum(axis=-1, keepdims=True))
    dscores = dscores * dout.dtype.type(1 / math.sqrt(q.shape[3]))
    dq = ops.matmul(dscores, k)
    dk = ops.matmul(dscores.transpose(0, 1, 3, 2), q)
    return np.concatenate([join_heads(x) for x in (dq, dk, dv)], axis=-1)


def split_heads(x: Array, n_head: int) -> Array:
    """(B, T, C) → (B, H, T, D)."""
    B, T, C = x.shape
    return x.reshape(B, T, n_head, C // n_head).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """(B, H, T, D) → (B, T, C)."""
    B, H, T, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * D)


# --------------------------------------------------------------------------- GELU


def gelu_forward(x: Array, ops: Arithmetic = PLAIN) -> Array:
    """x·Φ(x), Φ the exact normal distribution; x/2·(1 + erf(x/√2)) would lose Φ's small tail."""
    return np.asarray(x * ops.normal_cdf(x))


def gelu_backward(dy: Array, x: Array, ops: Arithmetic = PLAIN) -> Array:
    """dy·(Φ(x) + x·φ(x))."""
    pdf = np.exp(x.dtype.type(-0.5) * x * x) * x.dtype.type(1 / math.sqrt(2 * math.pi))
    return np.asarray(dy * (ops.normal_cdf(x) + x * pdf))


# --------------------------------------------------------------------------- cross-entropy


def crossentropy_forward(logits: Array, targets: Array) -> tuple[float, Array]:
    """Mean over N of −log softmax(logits)[target], in nats; and the probabilities (B, T, V)."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    e = np.exp(shifted)
    total = e.sum(axis=-1, keepdims=True)
    at_target = np.take_along_axis(shifted, targets[..., None], axis=-1)
    losses = np.log(total) - at_target
    return float(losses.mean(dtype=np.float64)), e / total


def crossentropy_backward(probs: Array, targets: Array) -> Array:
    """dlogits = (probs − onehot(target)) / N."""
    dlogits = probs.copy()
    at_target = np.take_along_axis(probs, targets[..., None], axis=-1)
    np.put_along_axis(dlogits, targets[..., None], at_target - 1, axis=-1)
    return np.asarray(dlogits / probs.dtype.type(targets.size))


# --------------------------------------------------------------------------- clip, AdamW


def grad_norm(grads: Tensors) -> float:
    """Global L2 norm over all gradients."""
    return math.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in grads.values()))


def clip_scale(norm: float, limit: float) -> float:
    """Factor on all gradients: limit/(norm + 1e-6) where clipping is on and the norm is above."""
    return limit / (norm + 1e-6) if limit > 0 and norm > limit else 1.0


def adamw(
    config: ModelConfig,
    params: Tensors,
    grads: Tensors,
    m: Tensors,
    v: Tensors,
    t: int,
    scale: float,
) -> None:
    """One AdamW update in place, step number `t` from 1; gradients enter times `scale`."""
    b1, b2, lr = config.beta1, config.beta2, config.lr
    for slot in table(config):
        p, g = params[slot.name], grads[slot.name] * grads[slot.name].dtype.type(scale)
        wd = config.weight_decay if slot.decay else 0.0
        m_new = m[slot.name] = b1 * m[slot.name] + (1 - b1) * g
        v_new = v[slot.name] = b2 * v[slot.name] + (1 - b2) * g * g
        m_hat = m_new / (1 - b1**t)
        v_hat = v_new / (1 - b2**t)
        params[slot.name] = p - lr * (m_hat / (np.sqrt(v_hat) + config.eps) + wd * p)

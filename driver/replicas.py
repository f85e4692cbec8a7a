"""How far float32 alone may move a curve: replicas of the reference that round otherwise.

A replica is the same model with its channels, heads' dimensions, inner units of the MLP and
sequences of a batch in another order. The mathematics is the same, every sum runs over other
neighbours. Half of the replicas add products without rounding them first, as fused multiply-adds
do; half take the error function from another formula. Their largest deviation from the float64
reference is the band of what arithmetic explains.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driver.parity import Mask, tensor_error
from driver.records import ModelConfig, ParamsDeviation
from driver.reference import Arithmetic, Array, Reference, Tensors

REPLICAS = 8
# Terms of a product's sum between two roundings to float32.
_STRIP = 32


@dataclass(frozen=True)
class Band:
    """Largest relative deviation of any replica: step by step, and of parameters at some steps."""

    losses: list[float]
    grad_norms: list[float]
    params: dict[int, ParamsDeviation]


def band(
    config: ModelConfig,
    params: Tensors,
    tokens: NDArray[np.int32],
    losses: Sequence[float],
    grad_norms: Sequence[float],
    ends: Mapping[int, Tensors],
    leave_out: Mapping[str, Mask],
    on_step: Callable[[int], None] = lambda _: None,
) -> Band:
    """`REPLICAS` float32 runs from `params` on `tokens` (steps, B, T+1) against the reference's
    losses and norms, which have at least as many steps, and against its parameters after as many
    steps as the keys of `ends` say, without the elements of `leave_out`."""
    steps = len(tokens)
    worst_loss, worst_norm = [0.0] * steps, [0.0] * steps
    worst_params: dict[int, ParamsDeviation] = {}
    for index in range(REPLICAS):
        rng = _order_of(index)
        replica = Reference(config, relabelled(config, params, rng), np.float32, arithmetic(index))
        rows = rng.permutation(config.batch)
        for step in range(steps):
            found = replica.step(tokens[step][rows])
            # An arm hands its loss over in float32.
            loss = float(np.float32(found.loss))
            worst_loss[step] = _worse(worst_loss[step], loss, losses[step])
            worst_norm[step] = _worse(worst_norm[step], found.grad_norm, grad_norms[step])
            if step + 1 in ends:
                want = relabelled(config, ends[step + 1], _order_of(index))
                masks = relabelled(config, leave_out, _order_of(index)) if leave_out else {}
                for name, param in want.items():
                    error = tensor_error(param, replica.params[name], name, masks.get(name)).rel_l2
                    error = error if math.isfinite(error) else math.inf
                    if step + 1 not in worst_params or error > worst_params[step + 1].rel_l2:
                        worst_params[step + 1] = ParamsDeviation(
                            step=step + 1, rel_l2=error, tensor=name
                        )
            on_step(index * steps + step + 1)
    return Band(worst_loss, worst_norm, worst_params)


def _order_of(index: int) -> np.random.Generator:
    """What a replica's order is drawn from: anew for whatever has to be in the same order."""
    return np.random.Generator(np.random.Philox(key=[5, index]))


def arithmetic(index: int) -> Arithmetic:
    """That of one replica: every second one fused, every second pair with another erf."""
    plain = Arithmetic()
    return Arithmetic(
        matmul=fused_matmul if index % 2 else plain.matmul,
        normal_cdf=rational_cdf if index // 2 % 2 else plain.normal_cdf,
    )


def _worse(worst: float, got: float, want: float) -> float:
    error = abs(got - want) / max(abs(want), 1e-300)
    return max(worst, error) if math.isfinite(error) else math.inf


def fused_matmul(a: Array, b: Array) -> Array:
    """a @ b with exact products, rounded to a's type after every `_STRIP` terms of a sum."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    for k in range(0, a.shape[-1], _STRIP):
        strip = a[..., k : k + _STRIP].astype(np.float64) @ b[..., k : k + _STRIP, :]
        total = (total + strip).astype(a.dtype)
    return total


def rational_cdf(x: Array) -> Array:
    """Normal distribution in x's type by Abramowitz and Stegun 7.1.26, off by 1e-7 at most."""
    kind = x.dtype.type
    z = np.abs(x) * kind(math.sqrt(0.5))
    t = 1 / (1 + kind(0.3275911) * z)
    sum_ = np.zeros_like(t)
    for c in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        sum_ = (sum_ + kind(c)) * t
    tail = kind(0.5) * sum_ * np.exp(-z * z)
    return np.asarray(np.where(x < 0, tail, 1 - tail))


def relabelled(
    config: ModelConfig, params: Mapping[str, Array], rng: np.random.Generator
) -> Tensors:
    """The same function of tokens, its channels and units in another order.

    C (channels) alike everywhere; F within each MLP; D within each head, alike for q and k.
    """
    C, D = config.d_model, config.head_dim
    c = rng.permutation(C)
    new: Tensors = {name: params[name][:, c] for name in ("wte", "wpe")}
    for name in ("lnf.g", "lnf.b"):
        new[name] = params[name][c]
    for layer in range(config.n_layer):
        h = f"h.{layer}."
        f = rng.permutation(config.d_ff)
        qk, v = (
            np.concatenate([head * D + rng.permutation(D) for head in range(config.n_head)])
            for _ in range(2)
        )
        qkv = np.concatenate([qk, C + qk, 2 * C + v])
        for name in ("ln1.g", "ln1.b", "ln2.g", "ln2.b", "attn.bo", "mlp.b2"):
            new[h + name] = params[h + name][c]
        new[h + "attn.wqkv"] = params[h + "attn.wqkv"][np.ix_(c, qkv)]
        new[h + "attn.bqkv"] = params[h + "attn.bqkv"][qkv]
        new[h + "attn.wo"] = params[h + "attn.wo"][np.ix_(v, c)]
        new[h + "mlp.w1"] = params[h + "mlp.w1"][np.ix_(c, f)]
        new[h + "mlp.b1"] = params[h + "mlp.b1"][f]
        new[h + "mlp.w2"] = params[h + "mlp.w2"][np.ix_(f, c)]
    return new

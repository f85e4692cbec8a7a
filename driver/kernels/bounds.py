"""How far a float32 kernel's results may lie from the exact ones: a bound for every operation.

Each function takes an operation's case and its operands by name, and gives a bound of the absolute
error of every result, by name. Most are the operation's own formula in the order of the kernels,
written in `running`, which carries rounding errors along; what is summed is summed in any order.
Values that forward keeps for backward enter rounded once.

Two are not derived but required: GELU within 2e-7 and its slope within 3e-7. A bound derived from
the kernel's rational approximation would be several times as large.
"""

import math

import numpy as np

from driver import reference
from driver.kernels.case import Arrays, Case
from driver.kernels.running import F64, Running, exact, rounded
from driver.parity import UNIT, gamma

GELU = 2e-7
GELU_SLOPE = 3e-7
DOUBLE = 2.0**-53  # float64's unit roundoff
Bounds = dict[str, F64]


def _f64(x: Arrays, name: str) -> F64:
    return x[name].astype(np.float64)


# --------------------------------------------------------------------------- encoder


def encoder_forward(case: Case, x: Arrays) -> Bounds:
    """One addition."""
    rows = exact(x["wte"][x["tokens"][:, :-1]])
    return {"x": (rows + exact(x["wpe"])).error}


def encoder_backward(case: Case, x: Arrays) -> Bounds:
    """A token's positions and what is there already; a position's sequences."""
    B, V, inputs = case.sizes["B"], case.sizes["V"], x["tokens"][:, :-1]
    dwte, dwpe = reference.encoder_backward(np.abs(_f64(x, "dx")), inputs, V)
    counts = np.bincount(inputs.reshape(-1), minlength=V)
    growth = np.array([gamma(int(count)) for count in counts])
    return {
        "dwte": growth[:, None] * (np.abs(_f64(x, "dwte")) + dwte),
        "dwpe": gamma(B - 1) * dwpe,
    }


# --------------------------------------------------------------------------- layer norm


def layernorm_forward(case: Case, x: Arrays) -> Bounds:
    """The formula; the error of the mean counts at every deviation, though they sum to 0."""
    C = exact(case.sizes["C"])
    mean = exact(x["x"]).sum(-1) / C
    deviation = exact(x["x"]) - mean
    variance = (deviation * deviation).sum(-1) / C
    rstd = exact(1.0) / (variance + rounded(reference.LN_EPS)).sqrt()
    y = deviation * rstd * exact(x["g"]) + exact(x["b"])
    return {"y": y.error, "mean": mean.error[:, 0], "rstd": rstd.error[:, 0]}


def layernorm_backward(case: Case, x: Arrays) -> Bounds:
    """The formula, mean and rstd rounded; dx is added to what is there."""
    C = exact(case.sizes["C"])
    rstd, dy = rounded(x["rstd"][:, None]), exact(x["dy"])
    xhat = (exact(x["x"]) - rounded(x["mean"][:, None])) * rstd
    dxhat = dy * exact(x["g"])
    mean, mean_xhat = dxhat.sum(-1) / C, (dxhat * xhat).sum(-1) / C
    dx = exact(x["dx"]) + (dxhat - mean - xhat * mean_xhat) * rstd
    return {"dx": dx.error, "dg": (dy * xhat).sum(0).error[0], "db": dy.sum(0).error[0]}


# --------------------------------------------------------------------------- attention


def attention_forward(case: Case, x: Arrays) -> Bounds:
    """Softmax does not depend on what is subtracted from a row, so the top's error does not count
    in `out`; it does in `row_inverse`, which belongs to the exact top.
    """
    _, _, v = qkv_heads(case, x["qkv"])
    scores, mask = attention_scores(case, x["qkv"]), causal_mask(case)
    top = np.where(mask, scores.value, -np.inf).max(-1, keepdims=True)
    top_error = np.where(mask, scores.error, 0.0).max(-1, keepdims=True)

    def exponentials(of_top: Running) -> Running:
        # Above the diagonal nothing is computed, and nothing may overflow here.
        return (scores.where(mask) - of_top.where(mask)).exp().where(mask)

    e = exponentials(exact(top))
    out = (e @ v) * (exact(1.0) / e.sum(-1))
    inverse = exact(1.0) / exponentials(Running(top, top_error)).sum(-1)
    return {
        "out": reference.join_heads(out.error),
        "row_top": top_error[..., 0],
        "row_inverse": inverse.error[..., 0],
    }


def attention_backward(case: Case, x: Arrays) -> Bounds:
    """The formula, from probabilities made again out of the row's top and inverse."""
    q, k, v = qkv_heads(case, x["qkv"])
    dout = exact(reference.split_heads(x["dout"], case.sizes["H"]))
    scores, mask = attention_scores(case, x["qkv"]), causal_mask(case)
    top, inverse = exact(x["row_top"][..., None]), rounded(x["row_inverse"][..., None])
    p = ((scores.where(mask) - top.where(mask)).exp() * inverse).where(mask)
    dp = dout @ v.transposed()
    ds = p * (dp - (p * dp).sum(-1)) * score_scale(case)
    parts = (ds @ k, ds.transposed() @ q, p.transposed() @ dout)
    return {"dqkv": np.concatenate([reference.join_heads(part.error) for part in parts], axis=-1)}


def split(case: Case, x: np.ndarray) -> np.ndarray:
    """(B, T, C) → (B, H, T, D)."""
    return reference.split_heads(x, case.sizes["H"])


def joined(x: F64) -> F64:
    """(B, H, T, D) → (B, T, C)."""
    return reference.join_heads(x)


def qkv_heads(case: Case, qkv: np.ndarray) -> tuple[Running, Running, Running]:
    """q, k, v, each (B, H, T, D)."""
    q, k, v = (reference.split_heads(part, case.sizes["H"]) for part in np.split(qkv, 3, -1))
    return exact(q), exact(k), exact(v)


def score_scale(case: Case) -> Running:
    """1/sqrt(D): a root and a quotient, each rounded."""
    return rounded(math.sqrt(case.sizes["H"] / case.sizes["C"]), 2)


def attention_scores(case: Case, qkv: np.ndarray) -> Running:
    """q·k/sqrt(D), (B, H, T, T)."""
    q, k, _ = qkv_heads(case, qkv)
    return (q @ k.transposed()) * score_scale(case)


def causal_mask(case: Case) -> np.ndarray:
    """(T, T): which keys a row sees."""
    return np.tril(np.ones((case.sizes["T"], case.sizes["T"]), bool))


# --------------------------------------------------------------------------- GELU


def gelu_forward(case: Case, x: Arrays) -> Bounds:
    """Required: 2e-7; from 4 on, where half a unit in the last place is more, u·|y| beside it."""
    y = np.abs(reference.gelu_forward(_f64(x, "x")))
    return {"y": GELU + np.where(y >= 4, UNIT * y, 0.0), "slope": np.full(y.shape, GELU_SLOPE)}


def gelu_backward(case: Case, x: Arrays) -> Bounds:
    """One product; the slope is rounded."""
    return {"dx": (exact(x["dx"]) * rounded(x["slope"])).error}


# --------------------------------------------------------------------------- cross-entropy


def crossentropy(case: Case, x: Arrays) -> Bounds:
    """Softmax in float32, one at the target taken away; logarithm and mean in float64."""
    logits, targets = exact(x["logits"]), x["tokens"][:, 1:, None]
    N = targets.size
    top = exact(logits.value.max(-1, keepdims=True))
    e = (logits - top).exp()
    total = e.sum(-1)
    probs = e * (exact(1.0) / (total * exact(N)))
    hit = np.arange(case.sizes["V"]) == targets
    dlogits = probs - rounded(1 / N).where(hit)
    # −log(1 − error/total) is the most that the logarithm can lose.
    of_log = -np.log1p(-np.minimum(total.error / total.value, 0.5))
    at_target = np.take_along_axis(logits.value, targets, -1)
    magnitude = np.abs(np.log(total.value)) + np.abs(top.value - at_target)
    loss = of_log.mean() + gamma(N + 8, DOUBLE) * magnitude.mean()
    return {"logits": dlogits.error, "loss": np.array([loss])}


# --------------------------------------------------------------------------- sums, AdamW


def bias_backward(case: Case, x: Arrays) -> Bounds:
    """A sum over positions."""
    return {"db": exact(x["dy"]).sum(0).error[0]}


def grad_norm(case: Case, x: Arrays) -> Bounds:
    """Squares of float32 are exact in float64, in which they are summed. The root halves a sum's
    relative error; the other half of the bound is for the reference's own sum, in float64 too.
    """
    norm = np.sqrt(np.square(_f64(x, "grad")).sum())
    return {"norm": np.array([gamma(case.sizes["floats"] + 4, DOUBLE) * norm])}


def adamw(case: Case, x: Arrays) -> Bounds:
    """The formula; every constant of the step is made in float64 and rounded once."""
    lr, beta1, beta2, eps, weight_decay, t, scale = map(float, x["recipe"])
    decay = np.zeros(case.sizes["floats"])
    for offset, size, decays in x["slots"]:
        decay[offset : offset + size] = weight_decay * decays
    g = exact(x["grad"]) * rounded(scale)
    m = exact(x["m"]) * rounded(beta1) + g * rounded(1 - beta1)
    v = exact(x["v"]) * rounded(beta2) + g * g * rounded(1 - beta2)
    root = (v * rounded(1 / (1 - beta2**t))).sqrt() + rounded(eps)
    change = rounded(decay) * exact(x["param"]) + m * rounded(1 / (1 - beta1**t)) / root
    return {
        "param": (exact(x["param"]) - change * rounded(lr)).error,
        "m": m.error,
        "v": v.error,
    }

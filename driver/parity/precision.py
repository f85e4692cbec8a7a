"""Tolerances of reduced precision, derived from the format before anything was measured with it.

A half has 11 significant bits: rounding to nearest moves a normal number by at most U = 2^-11 of
itself, each independently of the others, so a product with rounded weights is off by at most U of
itself in the L2 norm. On the way to a gradient there are at most P = 8·L + 3 such products (four
matrices per layer forward and again backward, the tied head three times); independent errors add as
squares. Layer norm and softmax may double what enters them. Hence one step:

    gradients   2·U·√P
    parameters  twice that: with warm moments AdamW divides by a root that is off as well
    first loss  2·U: a loss moves no more than twice as far as the logits, relatively

Over a curve errors are added to the weights step by step, in part with the same sign: ten times as
much, the band's steps included, since the band is what float32 explains. The key bias keeps its
float32 limit: its gradient is 0 whatever the weights are.

Products in half precision round each activation, each product and the sums of four as well: four
roundings more, some of them three times over, taken together as three times the error.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

Precision = Literal["off", "storage", "compute"]

U = 2.0**-11
ONE_STEP = 2.0
CURVE = 10.0
PRODUCTS = 3.0
NAMES: dict[Precision, str] = {
    "off": "float32",
    "storage": "f16 weights",
    "compute": "f16 weights and products",
}


def precision_of(options: Mapping[str, Any]) -> Precision:
    """What an arm with these options computes in; arms without the option: float32."""
    asked = options.get("f16", "off")
    return asked if asked in ("storage", "compute") else "off"


def reduced_limits(precision: Precision, n_layer: int) -> dict[str, float]:
    """Limits of the gates that are wider than float32's, by name; none for float32."""
    if precision == "off":
        return {}
    worse = PRODUCTS if precision == "compute" else 1.0
    grads = worse * ONE_STEP * U * math.sqrt(8 * n_layer + 3)
    loss = worse * ONE_STEP * U
    limits = {
        "parity.grads": grads,
        "parity.wide": grads,
        "parity.params": 2 * grads,
        "parity.first_loss": loss,
        "curve.loss": CURVE * loss,
        "curve.grad_norm": CURVE * grads,
        "band.loss": CURVE * loss,
        "band.grad_norm": CURVE * grads,
        "final.params": CURVE * 2 * grads,
    }
    return {name: float(f"{limit:.0e}") for name, limit in limits.items()}

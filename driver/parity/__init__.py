"""Error measures against the reference, and the gates that use them."""

from driver.parity.gates import (
    ADAPTER_IDENTITY,
    LEAST_BLOCKS,
    SIDES,
    differences,
    gate_plans,
    judge,
)
from driver.parity.measures import (
    curve_error,
    key_bias_ratio,
    paired_drift,
    slots_repeat,
    tensor_error,
    within_band,
    without_key_bias,
)

__all__ = [
    "ADAPTER_IDENTITY",
    "LEAST_BLOCKS",
    "SIDES",
    "curve_error",
    "differences",
    "gate_plans",
    "judge",
    "key_bias_ratio",
    "paired_drift",
    "slots_repeat",
    "tensor_error",
    "within_band",
    "without_key_bias",
]

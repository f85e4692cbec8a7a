"""Error measures against the reference, and the gates that use them."""

from driver.parity.gates import (
    ADAPTER_IDENTITY,
    LEAST_BLOCKS,
    LEAST_CURVE_TO_LEARN,
    SIDES,
    differences,
    gate_limits,
    gate_plans,
    judge,
)
from driver.parity.measures import (
    curve_error,
    key_bias_ratio,
    loss_drift,
    loss_errors,
    paired_drift,
    slots_by_block,
    slots_repeat,
    tensor_error,
    within_band,
    without_key_bias,
)
from driver.parity.precision import NAMES, Precision, precision_of, reduced_limits
from driver.parity.rounding import UNIT, gamma, half_product_error, largest_ratio, product_error

__all__ = [
    "ADAPTER_IDENTITY",
    "LEAST_BLOCKS",
    "LEAST_CURVE_TO_LEARN",
    "NAMES",
    "SIDES",
    "UNIT",
    "Precision",
    "curve_error",
    "differences",
    "gamma",
    "gate_limits",
    "gate_plans",
    "half_product_error",
    "judge",
    "key_bias_ratio",
    "largest_ratio",
    "loss_drift",
    "loss_errors",
    "paired_drift",
    "precision_of",
    "product_error",
    "reduced_limits",
    "slots_by_block",
    "slots_repeat",
    "tensor_error",
    "within_band",
    "without_key_bias",
]

"""Single kernels apart from the step: checked against float64, then timed beside the roofline."""

from driver.kernels.session import Request, run
from driver.kernels.shapes import GRAMMAR, OPS, Work, check_arm, check_op, parse_shapes

__all__ = ["GRAMMAR", "OPS", "Request", "Work", "check_arm", "check_op", "parse_shapes", "run"]

"""From a kernel's samples to the figures of its row; what was timed must be what was checked."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from driver.records import KernelRow, OperationRow
from driver.workbench import over_roofline, quartiles

Row = TypeVar("Row", KernelRow, OperationRow)


def refused(row: Row, digest: str, detail: dict[str, Any]) -> Row | None:
    """The row as a failure where the timed run gave other bits than the checked one, else None."""
    if detail["output_sha256"] == digest:
        return None
    reason = "it gave other bits when it was timed than when it was checked"
    return row.model_copy(update={"status": "FAIL", "reason": reason})


def figures(name: str, speeds: Sequence[float], tops: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles of the speeds, as `name`, and of their shares of the roofline `tops`."""
    share = over_roofline(speeds, tops)
    return {
        name: float(np.median(speeds)),
        f"{name}_quartiles": quartiles(speeds),
        "share": float(np.median(share)),
        "share_quartiles": quartiles(share),
    }

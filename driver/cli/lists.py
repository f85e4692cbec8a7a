"""Commands that list what the project knows."""

import json
from typing import Annotated

import typer

from driver import presets, report
from driver.arms import MEANINGS, OPTIONS, UNSET
from driver.cli.frame import JsonOption, terminal
from driver.doctor import DoctorReport
from driver.errors import UsageError
from driver.records import (
    Calibration,
    CompareReport,
    GeometryReport,
    HistoryAdded,
    HistoryReceipt,
    HistoryReport,
    KernelReport,
    LadderReport,
    Receipt,
    Record,
    Reproduction,
    VerifyAnswer,
)
from driver.versions import Versions


def presets_command(as_json: JsonOption = False) -> None:
    """List the presets.

    Example: driver presets
    """
    loaded = [presets.load(name) for name in presets.names()]
    if as_json:
        print(json.dumps([preset.model_dump(mode="json") for preset in loaded], indent=1))
        return
    print(report.preset_list(loaded, terminal()[0]))


def arms_command(as_json: JsonOption = False) -> None:
    """List the arms and their options.

    Example: driver arms
    """
    if as_json:
        tree = {
            name: {
                "meaning": MEANINGS[name],
                "options": {
                    key: {"default": o.default, "choices": list(o.choices), "meaning": o.meaning}
                    for key, o in (options | UNSET.get(name, {})).items()
                },
            }
            for name, options in OPTIONS.items()
        }
        print(json.dumps(tree, indent=1))
        return
    print(report.arm_list(terminal()[0]))


def schema(
    of: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="receipt | kernels | ladder | compare | reproduce | calibrate | verify | "
            "geometry | doctor | version | history-list (one row of it) | history-compare | "
            "history-add",
        ),
    ] = "receipt",
) -> None:
    """Print the JSON Schema of a receipt, or of what another command prints as JSON.

    Example: driver schema > receipt.schema.json
    """
    records: dict[str, type[Record]] = {
        "receipt": Receipt, "kernels": KernelReport, "ladder": LadderReport,
        "compare": CompareReport, "reproduce": Reproduction, "calibrate": Calibration,
        "verify": VerifyAnswer,
        "geometry": GeometryReport, "doctor": DoctorReport, "version": Versions,
        "history-list": HistoryReceipt,
        "history-compare": HistoryReport, "history-add": HistoryAdded,
    }  # fmt: skip
    if of not in records:
        raise UsageError(f"schema {of}: expected one of {', '.join(records)}")
    print(json.dumps(records[of].model_json_schema(), indent=1))

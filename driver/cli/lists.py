"""Commands that list what the project knows."""

import json
from typing import Annotated

import typer

from driver import (
    presets,
)
from driver.arms import MEANINGS, OPTIONS, UNSET
from driver.cli.frame import JsonOption
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
from driver.tensors import model_flops, parameter_count
from driver.versions import Versions


def presets_command(as_json: JsonOption = False) -> None:
    """List the presets.

    Example: driver presets
    """
    loaded = [presets.load(name) for name in presets.names()]
    if as_json:
        print(json.dumps([preset.model_dump(mode="json") for preset in loaded], indent=1))
        return
    widest = max(len(preset.name) for preset in loaded)
    print(
        f"{'preset':{widest}} {'L':>3} {'H':>3} {'C':>5} {'T':>4} {'B':>3} {'parameters':>12} "
        f"{'GFLOP/step':>11}  budget"
    )
    for p in loaded:
        print(
            f"{p.name:{widest}} {p.n_layer:3} {p.n_head:3} {p.d_model:5} {p.ctx:4} {p.batch:3} "
            f"{parameter_count(p.model):12,} {model_flops(p.model) / 1e9:11.2f}  {p.budget:6}  "
            f"{p.description}"
        )


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
    for name, options in OPTIONS.items():
        print(f"{name}: {MEANINGS[name]}")
        for key, option in options.items():
            choices = " | ".join((*option.choices, *(["auto"] if option.auto else [])))
            if not option.choices:
                choices = "a number | auto" if option.auto else "a number"
            print(f"    {key}={option.default}  {option.meaning} ({choices})")
        for key, option in UNSET.get(name, {}).items():
            print(f"    {key}=REV|DIR  {option.meaning}")
    print("\nwasm and wasm64: kernels=naive | forward | forward-dA | forward-dA-dB sets the three")
    print("products together; an mm_ option beside it wins. On webgpu matmul= sets all three.")
    print("tile= sets the tiles of all three; a tile_ option beside it wins.")
    print("Arms are separated by `,`; options follow `:` and are joined by `+`:")
    print("    wasm:threads=1+simd=scalar,webgpu:matmul=naive")


def schema(
    of: Annotated[
        str,
        typer.Argument(
            help="receipt | kernels | ladder | compare | reproduce | calibrate | verify | "
            "geometry | doctor | version | history-list (one row of it) | history-compare | "
            "history-add"
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

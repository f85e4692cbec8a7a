"""Commands that read receipts."""

import json
from pathlib import Path
from typing import Annotated

import typer

from driver import (
    report,
    store,
)
from driver.cli.frame import JsonOption, terminal
from driver.errors import DriverError
from driver.plan import evaluator
from driver.receipt import parse
from driver.receipt import verify as verify_receipt


def verify(
    receipts: Annotated[list[Path], typer.Argument(help="Receipt files.")],
    as_json: JsonOption = False,
) -> None:
    """Check receipts offline: schema, digests, and every derived number computed again.

    Example: driver verify receipts/*.receipt.json
    """
    answers, failed, unreadable = [], False, False
    for path in receipts:
        try:
            faults, remarks = verify_receipt(store.read_json(path), evaluator())
        except DriverError as error:
            faults, remarks, unreadable = [str(error)], [], True
        failed = failed or bool(faults)
        answers.append(
            {"receipt": str(path), "valid": not faults, "faults": faults, "remarks": remarks}
        )
        if not as_json:
            print(f"{path}: {'INVALID' if faults else 'valid'}")
            for line in faults[:20]:
                print(f"  {line}")
            if len(faults) > 20:
                print(f"  and {len(faults) - 20} more")
            for line in remarks:
                print(f"  note: {line}")
    if as_json:
        print(json.dumps(answers, indent=1))
    raise typer.Exit(2 if unreadable else 1 if failed else 0)


def report_command(
    receipt: Annotated[Path, typer.Argument(help="A receipt file.")],
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of it instead.")
    ] = None,
) -> None:
    """Show a receipt as text.

    Example: driver report receipts/small-wasm-webgpu.receipt.json
    """
    data = store.read_json(receipt)
    found = parse(data)
    if svg:
        store.write_text(svg, report.svg(found))
        return
    faults, _ = verify_receipt(data, evaluator())
    if faults:
        print(f"INVALID receipt ({len(faults)} faults, see driver verify): {faults[0]}\n")
    print(report.text(found, *terminal()))
    if faults:
        raise typer.Exit(1)

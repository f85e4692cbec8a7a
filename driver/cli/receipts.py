"""Commands that read receipts."""

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from driver import rebuild, report, store
from driver.cli.frame import JsonOption, terminal
from driver.errors import DriverError, ReceiptError
from driver.plan import evaluator
from driver.receipt import examine, parse, schema_faults
from driver.receipt import verify as verify_receipt
from driver.records import LadderReport, VerifyAnswer

LADDER = LadderReport.model_fields["format"].default


def verify(
    receipts: Annotated[list[Path], typer.Argument(help="Receipt files.")],
    rebuilds: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="Also compile its modules from this source and compare digests."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check receipts offline: schema, digests, and every derived number computed again.

    valid: it all holds. unconfirmed: another evaluator than the one
    installed judged it, and this one comes to something else (code 1).
    INVALID: it contradicts itself (code 1). A digest shows that nothing
    was changed since, not who wrote it; `driver reproduce` runs it again.

    Example: driver verify receipts/*.receipt.json
    """
    answers = [_verified(path, rebuilds) for path in receipts]
    if as_json:
        print(json.dumps([answer.model_dump(mode="json") for answer in answers], indent=1))
    else:
        for answer in answers:
            print(report.verify_answer(answer))
    if any(answer.status == "unreadable" for answer in answers):
        raise typer.Exit(2)
    whole = all(
        answer.status == "valid" and all(file.same for file in answer.rebuilt or ())
        for answer in answers
    )
    raise typer.Exit(0 if whole else 1)


def report_command(
    receipt: Annotated[Path, typer.Argument(help="A receipt file, or a ladder's.")],
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of it instead.")
    ] = None,
) -> None:
    """Show a receipt as text, or a ladder.

    Example: driver report receipts/small-wasm-webgpu.receipt.json
    """
    ladder = None if svg else _ladder(receipt)
    if ladder:
        print(report.ladder(ladder, *terminal()))
        return
    data = store.read_receipt(receipt)
    try:
        found = parse(data)
    except ReceiptError as error:
        raise ReceiptError(f"{receipt}: {error}") from error
    if svg:
        store.write_text(svg, report.svg(found))
        return
    faults, _ = verify_receipt(data, evaluator())
    if faults:
        print(f"INVALID receipt ({len(faults)} faults, see driver verify): {faults[0]}\n")
    print(report.text(found, *terminal()))
    if faults:
        raise typer.Exit(1)


def _ladder(path: Path) -> LadderReport | None:
    """The ladder in a file, None where it says that it is something else. Raises ReceiptError."""
    data = store.read_json(path)
    if not isinstance(data, dict) or data.get("format") != LADDER:
        return None
    try:
        return LadderReport.model_validate(data)
    except ValidationError as error:
        raise ReceiptError(f"{path}: not a whole ladder: {schema_faults(error)}") from error


def _verified(path: Path, rebuilds: bool) -> VerifyAnswer:
    """What one file is, never an error: the others are looked at too."""
    name = str(path)
    try:
        data = store.read_receipt(path)
    except DriverError as error:
        return VerifyAnswer(receipt=name, status="unreadable", faults=(str(error),))
    found = examine(data, evaluator())
    remarks, files = found.remarks, None
    if rebuilds and found.status != "invalid":
        subject = parse(data).subject
        files = rebuild.rebuild(subject)
        if rebuild.differing(files):
            remarks = (*remarks, *rebuild.source_remarks(subject))
    return VerifyAnswer(
        receipt=name, status=found.status, faults=found.faults, unconfirmed=found.unconfirmed,
        remarks=remarks, rebuilt=files,
    )  # fmt: skip

"""Commands that read receipts."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from driver import rebuild, report, store
from driver.cli.frame import JsonOption, terminal
from driver.errors import DriverError, ReceiptError, UsageError
from driver.faults import listed
from driver.plan import evaluator
from driver.receipt import examine
from driver.records import LadderReport, VerifyAnswer
from driver.report.terminal import visible

LADDER = LadderReport.model_fields["format"].default


def verify(
    receipts: Annotated[list[Path], typer.Argument(metavar="RECEIPT...", help="Receipt files.")],
    rebuilds: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Also compile its modules, draw its state and batches, and compare digests.",
        ),
    ] = False,
    corpus_file: Annotated[
        str | None,
        typer.Option(
            "--corpus", metavar="FILE", help="With --rebuild: the text, where it was a file."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check receipts offline: schema, digests, and every derived number computed again.

    valid: it all holds. unconfirmed: another evaluator than the one
    installed judged it, and this one comes to something else (code 1).
    INVALID: it contradicts itself (code 1). A digest shows that nothing
    was changed since, not who wrote it; `driver reproduce` runs it again.

    Example: driver verify receipts/*.receipt.json
    """
    if corpus_file and not rebuilds:
        raise UsageError("--corpus is what --rebuild draws batches from; give both")
    answers = [_verified(path, rebuilds, corpus_file) for path in receipts]
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
    receipt: Annotated[
        Path, typer.Argument(metavar="RECEIPT", help="A receipt file, or a ladder's.")
    ],
    out: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="OUT", help="File to write; of several, each ending says which is which."
        ),
    ] = None,
    html: Annotated[
        bool, typer.Option("--html", help="As a page; without OUT beside the receipt.")
    ] = False,
    markdown: Annotated[
        bool,
        typer.Option("--markdown", "--md", help="As a summary for a CI job; without OUT printed."),
    ] = False,
    junit: Annotated[
        bool, typer.Option("--junit", help="As JUnit XML; without OUT beside the receipt.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of the text.")
    ] = None,
) -> None:
    """Show a receipt as text, or a ladder; or write a page, a summary, test results.

    Example: driver report receipts/small-wasm-webgpu.receipt.json --html page.html
    """
    kinds = [
        kind for kind, asked in (("html", html), ("markdown", markdown), ("junit", junit)) if asked
    ]
    targets = _targets(receipt, kinds, out or [])
    ladder = _ladder(receipt)
    if ladder and (kinds or svg):
        raise UsageError(
            f"{receipt}: a ladder is shown as text only; the receipts of its pairs lie beside it "
            "and have pages"
        )
    if ladder:
        print(report.ladder(ladder, *terminal()))
        return
    data = store.read_receipt(receipt)
    found = store.whole(receipt, data)
    if svg:
        store.write_text(svg, report.svg(found))
        if not kinds:
            return
    check = examine(data, evaluator())
    for kind in kinds:
        text, target = _FORMS[kind](found, check), targets[kind]
        if target is None:
            print(text, end="")
        else:
            store.write_text(target, text)
            print(f"{kind}: {target}", file=sys.stderr)
    if doubt := report.doubts(check):
        words = f"{doubt.title} ({len(doubt.lines)} lines, see driver verify): {doubt.lines[0]}"
        print(visible(words) + ("" if kinds else "\n"), file=sys.stderr if kinds else sys.stdout)
    if not kinds:
        print(report.text(found, *terminal()))
    if doubt:
        raise typer.Exit(1)


_FORMS = {"html": report.html, "markdown": report.markdown, "junit": report.junit}
_ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".xml": "junit"}


def _targets(receipt: Path, kinds: Sequence[str], out: Sequence[Path]) -> dict[str, Path | None]:
    """Where each kind of report goes, None for stdout; raises UsageError."""
    targets: dict[str, Path | None] = {
        "html": store.page_path(receipt),
        "markdown": None,
        "junit": receipt.with_suffix(".junit.xml"),
    }
    asked = set(kinds)
    for path in out:
        kind = next(iter(asked)) if len(out) == len(kinds) == 1 else _ENDINGS.get(path.suffix)
        if kind not in asked:
            wanted = " ".join(f"--{kind}" for kind in kinds) or "--html, --markdown or --junit"
            raise UsageError(
                f"{path}: nothing is left to be written there; {wanted} with a file ending in "
                ".html, .md or .xml each"
            )
        asked.remove(kind)
        targets[kind] = path
    for kind in kinds:
        target = targets[kind]
        if target is not None:
            store.check_target(target.resolve())
            if target.exists() and target.samefile(receipt):
                raise UsageError(f"{target} is the receipt itself; name another file")
    return targets


def _ladder(path: Path) -> LadderReport | None:
    """The ladder in a file, None where it says that it is something else. Raises ReceiptError."""
    data = store.read_json(path)
    if not isinstance(data, dict) or data.get("format") != LADDER:
        return None
    try:
        return LadderReport.model_validate(data)
    except ValidationError as error:
        raise ReceiptError(f"{path}: not a whole ladder: {listed(error)}") from error


def _verified(path: Path, rebuilds: bool, corpus_file: str | None) -> VerifyAnswer:
    """What one file is, never an error: the others are looked at too."""
    name = str(path)
    try:
        data = store.read_receipt(path)
    except DriverError as error:
        return VerifyAnswer(receipt=name, status="unreadable", faults=(str(error),))
    found = examine(data, evaluator())
    remarks, files = found.remarks, None
    receipt = found.receipt
    if rebuilds and receipt and found.status != "invalid":
        files = rebuild.rebuild(receipt.subject) + rebuild.redraw(receipt.plan, corpus_file)
        if rebuild.differing(files):
            remarks = (*remarks, *rebuild.source_remarks(receipt.subject))
    return VerifyAnswer(
        receipt=name, status=found.status, faults=found.faults, unconfirmed=found.unconfirmed,
        remarks=remarks, rebuilt=files,
    )  # fmt: skip

"""A receipt as JUnit XML: one test case per gate, figures as properties.

A gate that failed is a failure, whose `type` is its class: a *qualifying* one (a software adapter,
too few blocks) limits what may be claimed and leaves `driver run` with code 0, so whoever turns a
job red by this file looks at the type, or at `driver run`'s code instead. Gates that do not apply
or that could not be judged are skipped, with the reason.
"""

import math
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from driver.receipt import Examination
from driver.records import Gate, Receipt
from driver.report.words import Doubt, doubts, estimate_lines

# What XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(receipt: Receipt, check: Examination | None = None) -> str:
    """The file's text. Where `driver verify` doubts the receipt, a case of its own fails."""
    cases = [_case(gate) for gate in receipt.gates]
    if doubt := doubts(check):
        cases.append(_doubtful(doubt))
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": 0,
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    numbers = {key: str(count) for key, count in counts.items()}
    whole = ElementTree.Element("testsuites", {"name": "driver", **numbers})
    name = f"driver {receipt.plan.preset.get('name')}"
    started = receipt.plan.frozen_utc[:19]
    suite = ElementTree.SubElement(
        whole, "testsuite", {"name": _xml(name), "timestamp": _xml(started), **numbers}
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _figures(receipt):
        ElementTree.SubElement(properties, "property", {"name": key, "value": _xml(value)})
    suite.extend(cases)
    ElementTree.indent(whole)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(
        whole, encoding="unicode"
    ) + "\n"  # fmt: skip


def _case(gate: Gate) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", {"classname": f"driver.{gate.gate_class}", "name": _xml(gate.name)}
    )
    reason = _xml(gate.reason)
    if gate.status == "fail":
        failure = {"type": gate.gate_class, "message": reason}
        ElementTree.SubElement(case, "failure", failure).text = reason
    elif gate.status in ("unknown", "not-applicable"):
        ElementTree.SubElement(case, "skipped", {"message": f"{gate.status}: {reason}"})
    return case


def _doubtful(doubt: Doubt) -> ElementTree.Element:
    case = ElementTree.Element("testcase", {"classname": "driver.verify", "name": "valid receipt"})
    message = _xml(f"{doubt.title}: {doubt.meaning}")
    failure = ElementTree.SubElement(case, "failure", {"type": "verify", "message": message})
    failure.text = _xml("\n".join(doubt.lines[:20]))
    return case


def _figures(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """What a dashboard would draw; only what was measured."""
    estimate = receipt.comparison.estimate
    yield "verdict", receipt.verdict.status
    yield "headline", receipt.verdict.headline
    yield "estimate", estimate_lines(receipt)[0]
    yield "word", estimate.word
    yield "adapter", receipt.environment.adapter_verdict
    yield "digest", receipt.digest
    numbers: list[tuple[str, float | None]] = [
        ("ratio", estimate.ratio),
        ("ratio_low", estimate.low),
        ("ratio_high", estimate.high),
        ("blocks", estimate.blocks),
        ("drift_loss", receipt.comparison.drift.loss),
    ]
    for summary in receipt.comparison.arms:
        yield f"arm_{summary.side}", summary.arm
        numbers.append((f"step_ms_{summary.side}", summary.median_step_ms))
        numbers.append((f"gflops_{summary.side}", summary.gflops))
        numbers.append((f"last_loss_{summary.side}", summary.last_loss))
    for key, value in numbers:
        if value is not None and math.isfinite(value):
            yield key, repr(value)


def _xml(text: str) -> str:
    return _NOT_XML.sub("", text)

"""Receipts as JSON data: numbers that are not finite, digests, and the way back."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import rfc8785
from pydantic import ValidationError

from driver.errors import ReceiptError
from driver.records import Plan, Receipt, Record

FORMAT = "driver-receipt/1"
R = TypeVar("R", bound=Record)
_KINDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def seal(data: dict[str, Any]) -> dict[str, Any]:
    """JSON data with numbers that are not finite moved to `nonfinite`, and the digest set."""
    found: list[dict[str, str]] = []
    whole = _plain({**data, "nonfinite": [], "digest": ""})
    clean: dict[str, Any] = _without_nonfinite(whole, "", found)
    clean["nonfinite"] = found
    clean["digest"] = digest(clean)
    return clean


def digest(data: Mapping[str, Any]) -> str:
    """SHA-256 over the RFC 8785 form of everything but `digest`; raises ReceiptError."""
    return sha256({key: value for key, value in data.items() if key != "digest"})


def plan_digest(plan: Plan) -> str:
    """SHA-256 over the RFC 8785 form of the plan without its own `sha256`."""
    return sha256(plan.model_dump(mode="json", exclude={"sha256"}))


def frozen(plan: Plan) -> Plan:
    """The plan with its digest."""
    return plan.model_copy(update={"sha256": plan_digest(plan)})


def sha256(data: Any) -> str:
    try:
        return hashlib.sha256(canonical(data)).hexdigest()
    except (rfc8785.CanonicalizationError, RecursionError, UnicodeEncodeError) as error:
        raise ReceiptError(f"the receipt has no canonical form ({error})") from error


def canonical(data: Any) -> bytes:
    """The RFC 8785 form of JSON data, as `rfc8785.dumps` gives it, in a tenth of its time.

    json's own encoder differs in how it writes integral and very large or small floats, which are
    written anew; where it could differ in more than that, rfc8785 does it all.
    """
    try:
        text = json.dumps(
            data, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        # Keys are sorted by UTF-16 units, which from here on is another order than Python's.
        if text.isascii() or not _HIGH.search(text):
            # Without escapes every quote begins or ends a string. The two signs stand for an
            # escaped backslash and quote: json writes neither of them as it is.
            plain = text.replace("\\\\", "\0").replace('\\"', "\1")
            parts = plain.split('"')
            numbers = "," + '"'.join(parts[::2])  # each number follows one of ,:[
            if not _LONG.search(numbers):
                parts[::2] = _rewritten(numbers)[1:].split('"')
                return '"'.join(parts).replace("\1", '\\"').replace("\0", "\\\\").encode()
    except (ValueError, TypeError):
        pass
    found: bytes = rfc8785.dumps(data)
    return found


_HIGH = re.compile("[\ud800-\U0010ffff]")
# Integers that may be beyond 2^53, which rfc8785 refuses.
_LONG = re.compile(r"[,:\[]-?\d{16,}(?![\d.e])")
_MINUS_ZERO = re.compile(r"-0(?![\d.])")
# Floats that Python writes with an exponent, and ECMAScript without.
_POSITIONAL = re.compile(r"([,:\[]-?)(\d)(?:\.(\d+))?+e(?:-0([56])|\+(1[6-9]|20))(?!\d)")


def _rewritten(numbers: str) -> str:
    """JSON without its strings, its floats not as Python writes them but as ECMAScript does."""
    for end in ",]}":
        numbers = numbers.replace(".0" + end, end)
    numbers = _MINUS_ZERO.sub("0", numbers.removesuffix(".0"))
    for digit in "789":
        numbers = numbers.replace("e-0" + digit, "e-" + digit)
    return _POSITIONAL.sub(_positional, numbers)


def _positional(found: re.Match[str]) -> str:
    """1.5e-05 → 0.000015, 1.5e+16 → 15000000000000000."""
    before, first, rest, small, large = found.groups(default="")
    if small:
        return f"{before}0.{'0' * (int(small) - 1)}{first}{rest}"
    return before + (first + rest).ljust(int(large) + 1, "0")


def _without_nonfinite(value: Any, path: str, found: list[dict[str, str]]) -> Any:
    if isinstance(value, Mapping):
        return {
            str(key): _without_nonfinite(item, f"{path}/{_pointer(str(key))}", found)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_nonfinite(item, f"{path}/{i}", found) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        kind = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        found.append({"path": path, "kind": kind})
        return None
    return value


def portable(record: R) -> R:
    """The record without what RFC 8785 refuses: integers from 2^53 and lone surrogates."""
    return type(record).model_validate(_plain(record.model_dump(mode="python")))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return str(value)
    if isinstance(value, str):  # a page may log half of a pair
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def restored(data: dict[str, Any]) -> dict[str, Any]:
    """The numbers of `nonfinite` put back, in a copy; the data themselves where there are none.

    Raises ReceiptError for a wrong path.
    """
    entries = data.get("nonfinite", [])
    if not isinstance(entries, list):
        raise ReceiptError("nonfinite is not a list")
    if not entries:
        return data
    copy: dict[str, Any] = _copied(data)
    for entry in entries:
        path, kind = (entry.get("path"), entry.get("kind")) if isinstance(entry, dict) else (0, 0)
        if not isinstance(path, str) or not path.startswith("/") or str(kind) not in _KINDS:
            raise ReceiptError(f"nonfinite: {entry!r:.100} is no pair of JSON pointer and kind")
        keys = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
        target: Any = copy
        try:
            for key in keys[:-1]:
                target = target[_key(target, key)]
            last = _key(target, keys[-1])
            held = target[last]
            if held is None:
                target[last] = _KINDS[str(kind)]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ReceiptError(f"nonfinite: {path!r:.100} leads nowhere") from error
        if held is not None:
            raise ReceiptError(f"nonfinite: {path!r:.100} holds {held!r:.50}, expected null")
    return copy


def _key(target: Any, key: str) -> Any:
    """The index or name of a JSON pointer's part; an array's index is digits alone (RFC 6901)."""
    if not isinstance(target, list):
        return key
    if not (key.isascii() and key.isdigit()):
        raise ValueError(key)
    return int(key)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def parse(data: Any) -> Receipt:
    """Checks format and schema; raises ReceiptError naming the first few faults."""
    if not isinstance(data, dict):
        raise ReceiptError(f"a receipt is a JSON object, this is {type(data).__name__}")
    try:
        found = data.get("format")
        if found != FORMAT:
            raise ReceiptError(f"format is {found!r:.100}; this version reads {FORMAT!r}")
        return Receipt.model_validate(restored(data))
    except RecursionError as error:
        raise ReceiptError("nested too deeply for a receipt") from error
    except ValidationError as error:
        raise ReceiptError(schema_faults(error)) from error


def schema_faults(error: ValidationError) -> str:
    """The first few faults of a record that does not fit its schema, and how many there are."""
    faults = [f"{_place(fault['loc'])}: {fault['msg']}" for fault in error.errors()[:5]]
    more = error.error_count() - len(faults)
    return "; ".join(faults) + (f"; and {more} more" if more else "")


def _place(loc: Sequence[int | str]) -> str:
    """Where a fault lies; a key of a stranger's choosing is quoted, so that no escape gets out."""
    parts = (str(part) for part in loc)
    return "/".join(part if part.isidentifier() or part.isdigit() else repr(part) for part in parts)

"""Receipts as JSON data: numbers that are not finite, digests, and the way back."""

import hashlib
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeVar

import rfc8785
from pydantic import ValidationError
from pydantic_core import to_json

from driver.errors import ReceiptError
from driver.faults import kind_of, listed
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
    """The RFC 8785 form of JSON data, as `rfc8785.dumps` gives it, in a third of its time.

    Pydantic's encoder writes strings as the RFC does, and the numbers that `_readied` leaves to
    it; where data have anything else, rfc8785 does it all.
    """
    try:
        text = to_json(_readied(data))
        # Keys are sorted by UTF-16 units, which from here on is another order than Python's.
        if text.isascii() or not _HIGH.search(text):
            return _MARKED.sub(rb"\1", text)
    except (ValueError, TypeError):  # unusual data, or text that is none of UTF-8
        pass
    found: bytes = rfc8785.dumps(data)
    return found


_HIGH = re.compile(rb"[\xee-\xf4]")  # where UTF-8 of U+E000 and above begins
_MARK = "\0"  # at the start of a string that stands for the number after it
_MARKED = re.compile(rb'"\\u0000([^"]*)"')


def _readied(value: Any) -> Any:
    """JSON data with sorted keys, and floats that an encoder writes as ECMAScript does if it writes
    the shortest digits, an exponent below 1e-5, and ".0" after whole ones.

    Raises ValueError where that is not enough.
    """
    kind = type(value)
    if kind is float:
        size = abs(value)
        if 1e-5 <= size < 2**53 or size < 1e-6:
            return int(value) if value.is_integer() else value
        if size < 1e-5:  # an exponent for Pydantic, none for ECMAScript
            return f"{_MARK}{Decimal(repr(value)):f}"
    elif kind is str:
        if _MARK not in value:
            return value
    elif kind is dict:
        if not any(_MARK in key for key in value):
            return {key: _readied(value[key]) for key in sorted(value)}
    elif kind is list or kind is tuple:
        return [_readied(item) for item in value]
    elif kind is bool or value is None or (kind is int and abs(value) < 2**53):
        return value
    raise ValueError("unusual data")


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
        raise ReceiptError(f"a receipt is a JSON object, this is {kind_of(data)}")
    try:
        found = data.get("format")
        if found != FORMAT:
            raise ReceiptError(f"format is {found!r:.100}; this version reads {FORMAT!r}")
        return Receipt.model_validate(restored(data))
    except RecursionError as error:
        raise ReceiptError("nested too deeply for a receipt") from error
    except ValidationError as error:
        raise ReceiptError(listed(error)) from error

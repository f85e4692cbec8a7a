"""What is wrong with data from outside, as Pydantic found it, in words for people.

Its own messages name classes and Python's types, which whoever wrote a file has never heard of.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_OBJECT, _LIST = "should be an object with keys", "should be a list"
_WHOLE, _NUMBER = "should be a whole number", "should be a number"
_TRUTH = "should be true or false"
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is no key that is known here",
    "none_required": "should be null",
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "dict_type": _OBJECT,
    "mapping_type": _OBJECT,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "string_type": "should be text",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
}
# Ends of messages that begin with the name of a type of Python's.
_SHOULD = ("Input should", "String should", "Value should")


def in_words(detail: ErrorDetails) -> str:
    """What one value should be or lacks, to be read after its key: `should be a whole number`."""
    kind, message = detail["type"], detail["msg"].removeprefix("Value error, ")
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in ("too_long", "too_short"):
        context = detail["ctx"]
        most, have = context.get("max_length"), context.get("actual_length")
        bound = f"at least {context.get('min_length')}" if most is None else f"at most {most}"
        return f"should have {bound} entries" + (f", not {have}" if have is not None else "")
    for start in _SHOULD:
        if message.startswith(start):
            return f"should{message.removeprefix(start)}"
    return message[:1].lower() + message[1:]


def listed(error: ValidationError) -> str:
    """The first few faults of a record that does not fit its schema, and how many there are."""
    shown = [f"{place(one['loc'])} {in_words(one)}".strip() for one in error.errors()[:5]]
    more = error.error_count() - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def place(loc: Sequence[int | str]) -> str:
    """Where a fault lies; a key of a stranger's choosing is quoted, so that no escape gets out."""
    parts = (str(part) for part in loc)
    return "/".join(
        part if part.isidentifier() or part.isdigit() else f"{part!r:.80}" for part in parts
    )


def kind_of(value: Any) -> str:
    """What a JSON value is, as its author would say it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "something else")

"""Numbers as words, where rounding or grammar could say something else than the number does."""

from collections.abc import Sequence

_MOST_DIGITS = 17  # of a float; more tell nothing apart


def counted(number: object, noun: str, plural: str = "") -> str:
    """`1 block`, `4 blocks`; `plural` where it is not the noun with an s.

    A page's number is whatever the page said.
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def told_apart_from(value: float, limits: Sequence[float] = (1.0,), digits: int = 4) -> str:
    """The value in `digits` significant digits, or in as many as tell it from each limit.

    Whoever reads `1 to 1.07` beside `faster` would have to doubt one of them.
    """
    return f"{value:.{_digits(value, limits, digits)}g}"


def interval_text(
    low: float, high: float, limits: Sequence[float] = (1.0,), digits: int = 4
) -> str:
    """`1.005 to 1.067`: both ends in the same number of digits, which tell them from each limit."""
    least = max(_digits(end, limits, digits) for end in (low, high))
    return f"{low:.{least}g} to {high:.{least}g}"


def _digits(value: float, limits: Sequence[float], digits: int) -> int:
    for least in range(digits, _MOST_DIGITS):
        shown = float(f"{value:.{least}g}")
        if all(_order(shown, limit) == _order(value, limit) for limit in limits):
            return least
    return _MOST_DIGITS


def _order(value: float, limit: float) -> int:
    """1 above, −1 below, 0 at the limit or for what is no number."""
    return (value > limit) - (value < limit)

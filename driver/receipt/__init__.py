"""Receipts: assembled from raw data, digested, and checked by computing everything again.

`derive` is the one function that turns raw data into comparison, gates and verdict; `driver run`
writes what it gives and `driver verify` compares with what it gives. The digest is SHA-256 over the
RFC 8785 form. It proves that nothing changed since, not who wrote it: whoever recomputes everything
consistently can forge a receipt, and only reproducing it tells.
"""

from driver.receipt.checking import Examination, examine, verify
from driver.receipt.deriving import assemble, decide, derive, from_the_faster_side
from driver.receipt.sealing import (
    FORMAT,
    canonical,
    digest,
    frozen,
    parse,
    plan_digest,
    restored,
    seal,
)

__all__ = [
    "FORMAT",
    "Examination",
    "assemble",
    "canonical",
    "decide",
    "derive",
    "digest",
    "examine",
    "from_the_faster_side",
    "frozen",
    "parse",
    "plan_digest",
    "restored",
    "seal",
    "verify",
]

"""Receipts → DuckDB: added once, listed, plotted, queried, exported; new ones set beside earlier.

Rows hold what was computed again from the raw data when a receipt was added, beside what its file
says. Whatever a receipt's verdict is, it is kept.
"""

from driver.history.against import DEFAULT_LAST, judge, spread_of
from driver.history.database import (
    TABLES,
    Answer,
    Filter,
    add,
    by_digest,
    default_path,
    export,
    opened,
    query,
    receipts,
    seen,
)
from driver.history.rows import Rows, Seen, find, read, read_all, read_one

__all__ = [
    "DEFAULT_LAST",
    "TABLES",
    "Answer",
    "Filter",
    "Rows",
    "Seen",
    "add",
    "by_digest",
    "default_path",
    "export",
    "find",
    "judge",
    "opened",
    "query",
    "read",
    "read_all",
    "read_one",
    "receipts",
    "seen",
    "spread_of",
]

"""The server: the page, its job and data go in, its progress and result come out."""

from driver.server.app import JobServer, Site, read_body
from driver.server.job import PIECE_BYTES, JobHandle, RefusedError, check_result, parsed

__all__ = [
    "PIECE_BYTES",
    "JobHandle",
    "JobServer",
    "RefusedError",
    "Site",
    "check_result",
    "parsed",
    "read_body",
]

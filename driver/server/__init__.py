"""The loopback server: the page, its job and data go in, its progress and result come out."""

from driver.server.app import JobServer
from driver.server.job import PIECE_BYTES, JobHandle, check_result

__all__ = ["PIECE_BYTES", "JobHandle", "JobServer", "check_result"]

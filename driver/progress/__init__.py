"""What is going on, on stderr: one reporter for everything that works, several ways to show it."""

from driver.progress.reporter import Reporter, display_for
from driver.progress.state import SlotNow

__all__ = ["Reporter", "SlotNow", "display_for"]

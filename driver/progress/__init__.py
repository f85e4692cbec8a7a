"""What is going on, on stderr: one reporter for everything that works, several ways to show it."""

from driver.progress.displays import Display, Silent
from driver.progress.reporter import Reporter, display_for
from driver.progress.state import SlotNow, State

__all__ = ["Display", "Reporter", "Silent", "SlotNow", "State", "display_for"]

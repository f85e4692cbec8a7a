"""The bench by hand: the page of `driver serve`, and the driver's side of it."""

from driver.serve.session import Settings, serve
from driver.serve.state import Wish

__all__ = ["Settings", "Wish", "serve"]

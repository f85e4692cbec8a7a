"""A bench driver for training in browsers."""

__version__ = "0.1.0"

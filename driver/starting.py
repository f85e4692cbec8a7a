"""Ctrl-C while the imports run: one line instead of a traceback. Imported before everything else.

An exception would not do: whichever module is being imported may catch it or turn it into its own.
"""

import os
import signal
from types import FrameType

_INTERRUPTED = 130  # as errors.Interrupted, which is not imported yet


def _leave(_: int, __: FrameType | None) -> None:
    os.write(2, b"driver: interrupted\n")
    os._exit(_INTERRUPTED)


def done() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, as always."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Where Ctrl-C is ignored, as in a background job of a script, it stays so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)

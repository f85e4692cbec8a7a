"""What has to be settled before the other imports: Ctrl-C meanwhile, and streams that are closed.

Ctrl-C: one line instead of a traceback. An exception would not do: whichever module is being
imported may catch it or turn it into its own.

A standard stream that is closed (`>&-`) counts as the null device. Left closed, its number would
go to the next file that is opened, and what libraries and browsers print would land in that.
"""

import io
import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130  # as errors.Interrupted, which is not imported yet


def _leave(_: int, __: FrameType | None) -> None:
    os.write(2, b"driver: interrupted\n")
    os._exit(_INTERRUPTED)


def done() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, as always."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_closed_streams() -> None:
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:  # the lowest number that is free is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            stream = io.FileIO(number, mode, closefd=False)
            buffered = io.BufferedReader(stream) if mode == "r" else io.BufferedWriter(stream)
            setattr(sys, name, io.TextIOWrapper(buffered, encoding="utf-8"))


_open_closed_streams()
# Where Ctrl-C is ignored, as in a background job of a script, it stays so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)

"""Long work in a thread that ends soon after whoever waits for it is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
GoOn = Callable[[], None]


class Unwanted(Exception):
    """Nobody waits for this work any more. Raised and ended within its thread."""


async def aside(work: Callable[[GoOn], T]) -> T:
    """What `work(go_on)` returns, from a thread, so that the event loop hears of Ctrl-C.

    A thread cannot be cancelled, and the program's end waits for it: so `work` calls `go_on` often
    (in training, after every step), which raises Unwanted once the caller was cancelled.
    """
    unwanted = threading.Event()

    def go_on() -> None:
        if unwanted.is_set():
            raise Unwanted

    try:
        return await asyncio.to_thread(work, go_on)
    finally:
        unwanted.set()

"""Signals that wait until work is done that they must not break off."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tamiz.platforms import ENDING


@contextmanager
def signals_held() -> Iterator[None]:
    """Holds back what ends the program: an interrupted import leaves half a module behind."""
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main one
        yield
        return
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _: held.append(received))
        for number in (signal.SIGINT, *ENDING)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in held:
            signal.raise_signal(received)

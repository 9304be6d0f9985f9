"""Bounds on what code that came with a model may take of this process."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tamiz.files.errors import TamizError


@contextmanager
def bounded(what: str, seconds: float, memory: int) -> Iterator[None]:
    """Ends Python code that takes too long or too much.

    Time is looked at before every line of Python, so a single call into C may go beyond it; the
    memory bounds what such a call can have to do.

    Args:
        what: Name of what is bounded, for the errors.
        seconds: Most time.
        memory: Most bytes that the process may grow by.

    Raises:
        TamizError: It took too much of either.
    """
    end = time.monotonic() + seconds

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TimeoutError
        return look

    before, traced = resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()
    limits = [_size() + memory, *(limit for limit in before if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    sys.settrace(look)
    try:
        yield
    except TimeoutError as error:
        raise TamizError(f"{what}: takes more than {seconds:g} s") from error
    except MemoryError as error:
        raise TamizError(f"{what}: takes more than {memory >> 20} MB") from error
    finally:
        sys.settrace(traced)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _size() -> int:
    """Bytes of this process's address space."""
    import psutil

    return int(psutil.Process().memory_info().vms)

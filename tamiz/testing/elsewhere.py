"""Fits in a process of their own, as `tamiz build --jobs` does."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tamiz.api.technique import Fit, FitFunction

_SCRIPT = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
fit, arguments = pickle.load(sys.stdin.buffer)
from threadpoolctl import threadpool_limits
with threadpool_limits(1):
    pickle.dump([fit(*each) for each in arguments], sys.stdout.buffer)
"""


def fit_in_another_process(fit: FitFunction, arguments: Sequence[tuple[Any, ...]]) -> list[Fit]:
    """Calls ``fit(*each)`` for all arguments in a new Python process.

    Raises:
        AssertionError: The function or the arguments cannot be pickled, or a fit failed there.
    """
    try:
        sent = pickle.dumps(sys.path) + pickle.dumps((fit, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(f"cannot be sent to another process: {error}") from error
    done = subprocess.run([sys.executable, "-c", _SCRIPT], input=sent, capture_output=True)
    assert done.returncode == 0, f"fails in another process: {done.stderr.decode()}"
    fits: list[Fit] = pickle.loads(done.stdout)
    return fits

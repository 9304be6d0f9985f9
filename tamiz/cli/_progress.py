"""Progress on stderr of what takes seconds: a bar in a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tamiz.system.progress import Progress

#: Seconds between two lines where stderr is no terminal.
INTERVAL = 5.0


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yields a function that reports a step: what is running, steps done, steps in all.

    A terminal shows a bar with the time that is left at the current pace. Anything else gets the
    last report as a line every `INTERVAL` seconds.
    """
    if not sys.stderr.isatty():
        with _lines() as report:
            yield report
        return
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = rich_progress.Progress(
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total or None
        )


@contextmanager
def status(what: str) -> Iterator[Callable[[str], None]]:
    """As `progress_bar`, for steps that are not counted; `what` is the first one."""
    with progress_bar() as report:
        report(what, 0, 0)
        yield lambda what: report(what, 0, 0)


@contextmanager
def _lines() -> Iterator[Progress]:
    """Prints the last report every `INTERVAL` seconds, from a thread of its own."""
    start, ended, last = time.monotonic(), threading.Event(), ("", 0, 0)

    def report(what: str, done: int, total: int) -> None:
        nonlocal last
        last = what, done, total

    def tick() -> None:
        while not ended.wait(INTERVAL):
            what, done, total = last
            count = f" ({done} of {total})" if total > 1 else ""
            print(f"{time.monotonic() - start:.0f} s: {what}{count}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()

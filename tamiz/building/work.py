"""The folder of a running build, which one process holds, and the seconds of its steps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tamiz.files.errors import TamizError, naming
from tamiz.platforms import held


@contextmanager
def held_alone(work: Path, target: Path) -> Iterator[None]:
    """Makes the folder of the work and holds it; the system lets go when the process ends."""
    with naming(target):
        work.mkdir(parents=True, exist_ok=True)
    with held(work.resolve()) as alone:
        if not alone:
            raise TamizError(f"{target}: another build is writing it, expected one at a time")
        yield


def empty(folder: Path) -> None:
    """Removes all that is in a folder."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@dataclass
class Clock:
    """Seconds spent, by what was done."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Adds the seconds of a block."""
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.seconds[what] = round(self.seconds.get(what, 0.0) + spent, 3)

"""Workers that fit: this process, several on this machine, or a cluster of dask.

A cluster's machines see the folders of the build under the same paths.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tamiz.files.errors import LostWorkerError, TamizError
from tamiz.system.cores import cores

#: What joblib warns of where a process starts anew to give its memory back, which loses nothing.
_RESTARTED = "A worker stopped while some jobs were given to the executor"

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Workers:
    """Workers of a build.

    Attributes:
        jobs: How many processes; -1 for as many as the cluster has, 1 for this one, with a thread
            for each core.
        ours: Whether they are processes that this one starts.
    """

    jobs: int = 1
    ours: bool = True

    @property
    def here(self) -> bool:
        """Whether they are threads of this process."""
        return self.jobs == 1

    def map(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[_Result]:
        """Results in the order of the items.

        Raises:
            LostWorkerError: A process of a worker ended, which the system does to one that takes
                too much memory.
        """
        if self.here:
            with ThreadPoolExecutor(cores()) as pool:
                yield from pool.map(function, items)
            return
        from joblib import Parallel, delayed

        warnings.filterwarnings("ignore", _RESTARTED, UserWarning)
        parallel = Parallel(
            n_jobs=self.jobs,
            return_as="generator",
            pre_dispatch="2*n_jobs",
            **({"initializer": _watch, "initargs": (os.getpid(),)} if self.ours else {}),
        )
        with _lost_worker_explained():
            yield from parallel(delayed(function)(item) for item in items)


@contextmanager
def _lost_worker_explained() -> Iterator[None]:
    from concurrent.futures.process import BrokenProcessPool

    try:
        yield
    except BrokenProcessPool as error:
        raise LostWorkerError(
            "a worker process was ended, as the system does when memory runs out; "
            "try fewer --jobs, and --resume to keep the fits that are done"
        ) from error


def _watch(parent: int) -> None:
    """Ends this process when its parent was killed, which closes no pool."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, name="tamiz-parent", daemon=True).start()


@contextmanager
def workers(backend: str, jobs: int) -> Iterator[Workers]:
    """Engages workers.

    Args:
        backend: ``loky`` for processes of this machine; ``dask`` for the cluster of its default
            client or of DASK_SCHEDULER_ADDRESS, or for one that it starts on this machine.
        jobs: Processes, for ``loky``.

    Raises:
        TamizError: dask is not installed, or its cluster does not answer.
    """
    if backend == "loky":
        yield Workers(jobs)
        return
    from joblib import parallel_config

    with _cluster(), parallel_config(backend="dask"):
        yield Workers(-1, ours=False)


@contextmanager
def _cluster() -> Iterator[None]:
    """Makes a default client of dask where there is none, and closes that one."""
    try:
        from distributed import Client
    except ImportError as error:
        raise TamizError(
            "--backend=dask: dask is not installed, expected what"
            f" pip install 'tamiz[dask]' brings: {error}"
        ) from error
    try:
        Client.current()
    except ValueError:  # there is none
        pass
    else:
        yield
        return
    try:
        client = Client()
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        reason = str(error).strip().splitlines()[0]
        raise TamizError(f"--backend=dask: its cluster does not answer: {reason}") from error
    with client:
        yield

"""Workers that fit: this process, several on this machine, or a cluster of dask or ray.

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
from tamiz.system.machine import cores

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
        one_by_one: Whether results come as they are made, and not all in the end.
        ours: Whether they are processes that this one starts.
    """

    jobs: int = 1
    one_by_one: bool = True
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
            return_as="generator" if self.one_by_one else "list",
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
        backend: ``loky`` for processes of this machine; ``dask`` or ``ray`` for the cluster that
            the engine finds (its default client, DASK_SCHEDULER_ADDRESS, RAY_ADDRESS), or for one
            that it starts on this machine.
        jobs: Processes, for ``loky``.

    Raises:
        TamizError: The engine is not installed, or its cluster does not answer.
    """
    if backend == "loky":
        yield Workers(jobs)
        return
    from joblib import parallel_config

    engage = _dask if backend == "dask" else _ray
    with _explained(backend):
        release = engage()
    try:
        with parallel_config(backend=backend):
            # ray's pool has no generator.
            yield Workers(-1, one_by_one=backend == "dask", ours=False)
    finally:
        release()


@contextmanager
def _explained(backend: str) -> Iterator[None]:
    """Says in one sentence why there is no cluster."""
    try:
        yield
    except ImportError as error:
        raise TamizError(
            f"--backend={backend}: {backend} is not installed, expected what"
            f" pip install 'tamiz[{backend}]' brings: {error}"
        ) from error
    except (OSError, ValueError) as error:  # TimeoutError and ConnectionError are OSErrors
        reason = str(error).strip().splitlines()[0]
        raise TamizError(f"--backend={backend}: its cluster does not answer: {reason}") from error


def _dask() -> Callable[[], None]:
    """Makes a default client; returns what closes it."""
    from distributed import Client

    try:
        Client.current()
    except ValueError:  # there is none
        close: Callable[[], None] = Client().close
        return close
    return _nothing


def _ray() -> Callable[[], None]:
    """Connects; returns what disconnects."""
    import ray
    from ray.util.joblib import register_ray

    register_ray()
    if ray.is_initialized():
        return _nothing
    ray.init(log_to_driver=False)
    shutdown: Callable[[], None] = ray.shutdown
    return shutdown


def _nothing() -> None:
    """Somebody else's cluster stays."""

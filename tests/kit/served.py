"""A server in a thread, for clients that speak HTTP."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from kit.patience import PATIENCE
from tamiz.serving.api.served import State
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog, load
from tamiz.serving.engine import Limits
from tamiz.serving.server import Address, make_server, run
from tamiz.serving.settings import Settings


@contextlib.contextmanager
def served(bundles: dict[str, Path]) -> Iterator[str]:
    """Serves bundles by name; the server's address, as soon as they are loaded."""
    catalog = Catalog()
    state = State(catalog, Settings(), ready=False)
    addresses: queue.Queue[str] = queue.Queue()
    started: list[uvicorn.Server] = []

    def load_all() -> None:
        for name, path in bundles.items():
            catalog.add(load(str(path), name, 2, Limits(4096)))

    def serve() -> None:
        server = make_server(make_app(state), Address(port=0), 1.0, addresses.put)
        started.append(server)
        run(server, state, load_all, 1.0)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    address = addresses.get(timeout=PATIENCE)
    while not state.ready:
        time.sleep(0.01)
    yield address
    started[0].should_exit = True
    thread.join(PATIENCE)

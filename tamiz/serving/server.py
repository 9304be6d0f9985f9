"""Runs the server: binds its address, loads models behind it, drains at the end."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tamiz.serving.api.served import State
from tamiz.system.open_files import raise_open_files

#: Bytes of the headers of a request; connections at once; seconds that an idle one stays open.
_HEADERS, _CONNECTIONS, _IDLE = 32 << 10, 4096, 30


@dataclass(frozen=True)
class Address:
    """Where a server listens.

    Attributes:
        host: Address of an interface.
        port: Port; 0 takes a free one.
        uds: Path of a Unix socket, in place of host and port.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    uds: Path | None = None


def make_server(
    app: FastAPI, address: Address, drain: float, listening: Callable[[str], None]
) -> uvicorn.Server:
    """A server that does not run yet.

    Args:
        app: The application.
        address: Where to listen.
        drain: Seconds that answers have to end after SIGTERM or SIGINT.
        listening: Gets the server's address when it listens.
    """
    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        uds=None if address.uds is None else str(address.uds),
        log_config=None,
        access_log=False,
        h11_max_incomplete_event_size=_HEADERS,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=max(1, round(drain)),
        server_header=False,
    )
    return _Server(config, address, listening)


def run(server: uvicorn.Server, state: State, load: Callable[[], None], drain: float) -> None:
    """Serves until SIGTERM or SIGINT; then answers that are being made may end.

    Args:
        server: The server.
        state: Its state; `ready` is set when `load` has ended.
        load: Loads the models; runs in a thread of its own, while `/health` says 503.
        drain: Seconds that engines have to end.

    Raises:
        Exception: What `load` raised; the server ends then.
    """
    failed: list[BaseException] = []

    def loading() -> None:
        try:
            load()
            state.ready = True
        except BaseException as error:
            failed.append(error)
            server.should_exit = True

    raise_open_files()
    thread = threading.Thread(target=loading, name="tamiz-load", daemon=True)
    thread.start()
    try:
        server.run()
    finally:
        state.catalog.close(drain)
    if failed:
        raise failed[0]


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(
        self, config: uvicorn.Config, address: Address, listening: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._address, self._listening = address, listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._listening(self._url())

    def _url(self) -> str:
        if self._address.uds is not None:
            return f"unix:{self._address.uds}"
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def logging_as(form: str) -> Iterator[logging.Logger]:
    """Writes the log to stderr, as lines or as JSON; neither holds text of prompts or answers.

    Yields:
        The server's own logger.
    """
    handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    log = logging.getLogger("tamiz.serving")
    log.setLevel(logging.INFO)
    try:
        yield log
    finally:
        root.removeHandler(handler)


class _JsonLines(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        import orjson

        line = {"time": record.created, "level": record.levelname, "message": record.getMessage()}
        return orjson.dumps(line).decode()

"""Runs the server: binds its address, loads models behind it, drains at the end."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from tamiz.files.errors import TamizError
from tamiz.platforms import own_address, raise_open_files
from tamiz.serving.api.served import State

#: Bytes of the headers of a request; connections at once; seconds that an idle one stays open.
_HEADERS, _CONNECTIONS, _IDLE = 32 << 10, 4096, 30
#: A family of addresses that names have and that the system does not, such as IPv6.
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
#: The family of Unix sockets, which Python lacks in Windows.
_UNIX: int | None = getattr(socket, "AF_UNIX", None)


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

    def __str__(self) -> str:
        """The address as messages name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.uds is None else str(self.uds)


def make_server(
    app: FastAPI, address: Address, drain: float, listening: Callable[[str], None]
) -> uvicorn.Server:
    """A server that has its address and does not run yet.

    Args:
        app: The application.
        address: Where to listen.
        drain: Seconds that answers have to end after SIGTERM or SIGINT.
        listening: Gets the server's address when it listens.

    Raises:
        TamizError: The address cannot be had.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        h11_max_incomplete_event_size=_HEADERS,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=max(1, round(drain)),
        server_header=False,
    )
    return _Server(config, _bound(address), listening)


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
    """Listens on bound sockets, and says when."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: list[socket.socket],
        listening: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._sockets, self._listening = sockets, listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(self._sockets)
        if self.started:
            self._listening(_url(self._sockets[0]))


def _bound(address: Address) -> list[socket.socket]:
    """A socket for each address that the host's name has, or a Unix socket.

    Raises:
        TamizError: Another program listens there, or this machine has no such address.
    """
    sockets: list[socket.socket] = []
    absent = None
    try:
        for family, place in _places(address):
            try:
                sockets.append(_socket(family, place))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
        if absent is not None and not sockets:
            raise absent
    except OSError as error:
        for each in sockets:
            each.close()
        other = "--port=0, which takes a free one" if address.uds is None else "another --uds"
        raise TamizError(f"{address}: cannot listen: {error.strerror}; try {other}") from error
    return sockets


def _socket(family: int, place: Any) -> socket.socket:
    made = socket.socket(family)
    try:
        own_address(made)
        if family == socket.AF_INET6:  # the other family has a socket of its own
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
    except OSError:
        made.close()
        raise
    return made


def _places(address: Address) -> Iterator[tuple[int, Any]]:
    """Families and addresses of the sockets; a Unix socket that nobody listens on is removed."""
    if address.uds is None:
        yield from _places_of_host(address.host, address.port)
        return
    if _UNIX is None:
        raise TamizError(f"--uds: {address}: this system has no Unix sockets; try --port")
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(address.uds.stat().st_mode) and not _answers(address.uds, _UNIX):
            address.uds.unlink()
    yield _UNIX, str(address.uds)


def _places_of_host(host: str, port: int) -> Iterator[tuple[int, Any]]:
    """All that a name stands for. A number is asked of nobody."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, place in found:
            yield family, place
    else:
        yield socket.AF_INET if version == 4 else socket.AF_INET6, (host, port)


def _answers(path: Path, family: int) -> bool:
    """Whether somebody listens on a Unix socket."""
    with socket.socket(family) as client:
        return client.connect_ex(str(path)) == 0


def _url(bound: socket.socket) -> str:
    name = bound.getsockname()
    if bound.family == _UNIX:
        return f"unix:{name}"
    host, port = name[:2]
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

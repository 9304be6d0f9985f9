"""Where a server listens, and what it says where it cannot."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from tamiz.files.errors import TamizError
from tamiz.serving.server import Address, make_server


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def make(address: Address) -> None:
    make_server(FastAPI(), address, 1.0, print)


def test_a_port_in_use_is_refused(taken: int) -> None:
    with pytest.raises(TamizError, match=rf"127\.0\.0\.1:{taken}: cannot .* in use; try --port=0"):
        make(Address(port=taken))


def test_a_host_of_another_machine_is_refused() -> None:
    with pytest.raises(TamizError, match=r"192\.0\.2\.1:8080: cannot listen: "):
        make(Address("192.0.2.1"))


def test_a_family_that_the_system_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container `localhost` often has an address of IPv6, which nothing can bind."""
    found = [
        (socket.AF_INET6, 1, 6, "", ("2001:db8::1", 0)),
        (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    make(Address("localhost", 0))
    found.pop()
    with pytest.raises(TamizError, match="localhost:0: cannot listen: "):
        make(Address("localhost", 0))


def test_a_socket_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none" / "socket"
    with pytest.raises(TamizError, match="none/socket: cannot listen: No such file or directory"):
        make(Address(uds=path))


def test_the_socket_of_a_server_that_ended_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
    make(Address(uds=path))
    assert path.is_socket()


def test_the_socket_of_a_server_that_runs_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as running:
        running.bind(str(path))
        running.listen()
        with pytest.raises(
            TamizError, match=r"socket: cannot listen: .* in use; try another --uds"
        ):
            make(Address(uds=path))

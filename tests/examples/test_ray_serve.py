"""The deployment on Ray Serve, on this machine."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
from pathlib import Path

import pytest

from kit.command_line import ok
from kit.programs import post, running

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_it_answers_as_tamiz_run_does(dense_dir: Path) -> None:
    pytest.importorskip("ray.serve", reason="needs ray: pip install 'ray[serve]'")
    port = free_port()
    request = json.dumps({"prompt": "hello", "max_new_tokens": 5}).encode()
    with running("ray_serve.py", dense_dir, "--threads", 1, "--port", port) as process:
        while True:
            try:
                status, answer = post(f"http://127.0.0.1:{port}/", request)
            except (urllib.error.URLError, ConnectionError, json.JSONDecodeError):
                assert process.poll() is None
                time.sleep(1)
                continue
            if status == 200:
                break
    expected = ok("run", dense_dir, "--raw", "--prompt", "hello", "--max-new-tokens", 5, "--json")
    assert answer["text"] == json.loads(expected)["text"]

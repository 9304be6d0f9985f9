"""A server and its children make no network connection that its user did not ask for."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kit import network

#: onnxruntime 1.29 and newer look up a host about 20 s after their start where nothing tells them
#: not to.
SECONDS = 25


@pytest.mark.slow
def test_a_server_and_its_children_make_no_connection(tiny: Path, tmp_path: Path) -> None:
    """It answers in a chat template, which a child renders, and within a grammar."""
    environment = network.recording(network.recorder(tmp_path), tmp_path)
    line = [sys.executable, "-m", "tamiz", "serve", f"tiny={tiny}", "--port=0"]
    log = tmp_path / "log"
    start = time.monotonic()
    with log.open("wb") as out:
        server = subprocess.Popen(line, env=environment, stdout=out, stderr=out)
    try:
        url = address(server, log)
        for more in ({}, {"response_format": {"type": "json_object"}}):
            said = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **more}
            ask(url, said | {"max_tokens": 4})
        time.sleep(max(0.0, SECONDS - (time.monotonic() - start)))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert network.noted(tmp_path) == []


def address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Where the server is, once it has loaded its model."""
    while server.poll() is None:
        said = log.read_text("utf-8")
        found = re.search(r"http://[\d.]+:\d+", said)
        if found and "tiny: ready" in said:
            return found[0]
        time.sleep(0.05)
    pytest.fail(log.read_text("utf-8"))


def ask(url: str, body: object) -> None:
    """Sends a chat completion."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["choices"]

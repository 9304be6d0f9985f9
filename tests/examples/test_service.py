"""The HTTP service answers like `tamiz run`, and refuses in one sentence."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit.command_line import ok
from kit.patience import PATIENCE
from kit.programs import post, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(dense_dir: Path) -> Iterator[str]:
    with running("service/service.py", dense_dir, "--port", 0, "--threads", 1) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def test_it_answers_as_tamiz_run_does(url: str, dense_dir: Path) -> None:
    request = json.dumps({"prompt": "hello", "max_new_tokens": 5}).encode()
    status, answer = post(f"{url}/generate", request)
    expected = ok("run", dense_dir, "--prompt", "hello", "--max-new-tokens", 5, "--json")
    assert status == 200
    assert answer["text"] == json.loads(expected)["text"]
    assert answer["tokens"] == json.loads(expected)["tokens"]


def test_requests_at_one_time_get_the_answers_of_single_ones(url: str) -> None:
    requests = [
        json.dumps({"prompt": f"hello {n}", "temperature": 1.0, "seed": n}).encode()
        for n in range(4)
    ]
    alone = [post(f"{url}/generate", request)[1]["text"] for request in requests]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda r: post(f"{url}/generate", r)[1]["text"], requests))
    assert together == alone


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "expected a JSON object"),
        (b"{}", "prompt: expected a string"),
        (b'{"prompt": "a", "max": 3}', "found max, expected prompt, max_new_tokens"),
        (b'{"prompt": "a", "max_new_tokens": 0}', "max_new_tokens: found 0"),
        (b'{"prompt": "a", "temperature": "hot"}', "temperature and seed: expected numbers"),
        (b'{"prompt": "a", "temperature": -1}', "temperature is -1"),
    ],
)
def test_it_refuses_in_one_sentence(url: str, request_: bytes, message: str) -> None:
    status, answer = post(f"{url}/generate", request_)
    assert status == 400
    assert message in answer["error"]


def test_a_long_request_is_not_read(url: str) -> None:
    client = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    client.putrequest("POST", "/generate")
    client.putheader("Content-Length", str(1 << 40))
    client.endheaders()
    answer = client.getresponse()
    assert answer.status == 400
    assert "expected 1 to 1048576" in json.load(answer)["error"]
    client.close()


def test_health_and_other_paths(url: str) -> None:
    with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE) as answer:
        assert json.load(answer) == {"status": "ok"}
    assert post(f"{url}/other", b"{}")[0] == 404

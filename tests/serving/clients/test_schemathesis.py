"""Requests that the description of the API allows, and others: no 5xx, replies as described."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.encoders import write_classifier, write_encoder
from kit.served import served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("schemathesis") is None, reason="pip install schemathesis"
    ),
]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "missing_required_header",
    "use_after_free",
)


@pytest.fixture
def address(tiny: Path, tmp_path: Path) -> Iterator[str]:
    """A server with a model for each route."""
    encoder, ranker = write_encoder(tmp_path / "encoder"), write_classifier(tmp_path / "ranker")
    with served({"tiny": tiny, "encoder": encoder, "ranker": ranker}) as url:
        yield url


def test_replies_are_as_described(address: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--max-examples", "12", "--seed", "1"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--continue-on-failure"),
            *("--request-timeout", "300", "--no-color"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

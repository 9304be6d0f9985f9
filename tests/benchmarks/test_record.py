"""A result file says where, when and with what it was measured."""

import json
import os
from pathlib import Path

from benchmarks.common import record


def test_a_record_holds_its_origin_and_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    record.write(
        path,
        "peers",
        {"decode_tok_s": 3.5},
        settings={"threads": 2, "model": tmp_path / "a.gguf"},
        peers={"llama.cpp": "1"},
    )
    stored = json.loads(path.read_text("utf-8"))
    assert list(stored) == [
        "benchmark", "date", "commit", "machine", "versions", "settings", "results",
    ]  # fmt: skip
    assert stored["results"] == {"decode_tok_s": 3.5}
    assert stored["settings"] == {"threads": 2, "model": "a.gguf"}
    assert stored["versions"]["llama.cpp"] == "1"
    assert {"tamiz", "tamiz-ops", "onnxruntime"} <= set(stored["versions"])
    assert stored["machine"]["cores"] == len(os.sched_getaffinity(0))


def test_what_is_not_installed_has_no_version() -> None:
    assert record.versions(["no-such-distribution"]) == {}

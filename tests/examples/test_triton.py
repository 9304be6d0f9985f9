"""The model repository for Triton: what it names is there, and runs in ONNX Runtime.

Triton itself is not started: it comes as a container of some GB.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from kit.programs import EXAMPLES, run

pytestmark = pytest.mark.slow


def test_the_repository_has_what_its_configuration_names(shared_dir: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    options = ["--name", "sieve", "--mounted", repository, "--threads", 3]
    printed = run("triton_repository/fill.py", shared_dir, repository, *options)
    assert printed.strip() == str(repository / "sieve")
    config = (repository / "sieve" / "config.pbtxt").read_text("utf-8")
    fields = dict(re.findall(r"(\w+): \"([^\"]*)\"", config))
    assert fields["name"] == "sieve"
    assert fields["backend"] == "onnxruntime"
    assert re.search(r'key: "intra_op_thread_count" value: { string_value: "3" }', config)
    assert config.count("{") == config.count("}")
    assert "$" not in config.split("\n", 1)[1]
    session_options = ort.SessionOptions()
    session_options.register_custom_ops_library(fields["op_library_filename"])
    session = ort.InferenceSession(repository / "sieve" / "1" / "model.onnx", session_options)
    feeds = {
        "input_ids": np.array([[5, 9, 33]]),
        "attention_mask": np.ones((1, 3), np.int64),
        "position_ids": np.arange(3)[None],
    }
    sizes = {"batch_size": 1, "past_sequence_length": 0}
    for past in session.get_inputs()[3:]:
        feeds[past.name] = np.zeros([sizes.get(size, size) for size in past.shape], np.float32)
    assert np.isfinite(session.run(["logits"], feeds)[0]).all()


@pytest.mark.parametrize("name", ['a"b', "../x"])
def test_names_that_a_configuration_cannot_hold(
    shared_dir: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(AssertionError, match="expected letters, digits"):
        run("triton_repository/fill.py", shared_dir, tmp_path / "models", "--name", name)
    assert not (tmp_path / "models").exists()


def test_the_guide_shows_this_configuration() -> None:
    guide = (EXAMPLES.parent / "docs" / "guides" / "deploy.md").read_text("utf-8")
    template = (EXAMPLES / "triton_repository" / "config.pbtxt").read_text("utf-8")
    for line in template.splitlines()[1:]:
        assert re.sub(r"\$\w+", "…", line).split("…")[0] in guide

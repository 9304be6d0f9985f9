import json
import os
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tamiz.files.bundle import Source, write_manifest
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling

PROMPT = [5, 90, 33, 200, 17, 60]


@pytest.fixture
def endless(model, monkeypatch) -> Any:
    """A model without stop tokens."""
    monkeypatch.setattr(model, "stop_ids", frozenset())
    return model


def test_greedy_takes_the_largest_logit_of_a_full_run_each_time(endless) -> None:
    ids = list(PROMPT)
    for token in endless.generate(PROMPT, Sampling(), max_new_tokens=20):
        assert token == endless.logits(np.array([ids]))[0, -1].argmax()
        ids.append(token)
    assert len(ids) == len(PROMPT) + 20


def test_the_same_seed_generates_the_same_tokens(endless) -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    first = list(endless.generate(PROMPT, sampling, 30))
    assert list(endless.generate(PROMPT, sampling, 30)) == first
    assert list(endless.generate(PROMPT, Sampling(temperature=1.0, seed=4), 30)) != first


def test_a_stop_token_ends_the_generation_and_is_not_given(endless, monkeypatch) -> None:
    tokens = list(endless.generate(PROMPT, Sampling(temperature=1.0, seed=1), 30))
    stop = tokens[10]
    monkeypatch.setattr(endless, "stop_ids", frozenset([stop]))
    stopped = list(endless.generate(PROMPT, Sampling(temperature=1.0, seed=1), 30))
    assert stopped == tokens[: tokens.index(stop)]


def test_without_a_maximum_the_limit_ends_the_generation(endless) -> None:
    assert len(list(endless.generate(PROMPT, Sampling()))) == endless.limit - len(PROMPT)


def test_a_kept_sequence_continues_as_if_everything_were_read_again(endless) -> None:
    sequence = endless.sequence()
    first = list(endless.generate(PROMPT, Sampling(), 10, sequence))
    longer = [*PROMPT, *first, 7, 8, 9]
    expected = list(endless.generate(longer, Sampling(), 10))
    assert list(endless.generate(longer, Sampling(), 10, sequence)) == expected
    other = [5, 90, 100, 101]
    expected = list(endless.generate(other, Sampling(), 10))
    assert list(endless.generate(other, Sampling(), 10, sequence)) == expected


def test_more_tokens_than_the_context_leaves_are_what_it_leaves(endless) -> None:
    room = endless.limit - len(PROMPT)
    assert len(list(endless.generate(PROMPT, Sampling(), room + 1))) == room
    assert len(list(endless.generate(PROMPT, Sampling(), 10**9))) == room


@pytest.mark.parametrize("limit", [None, 0, -1, 10**12, 1.5, "256"])
def test_a_limit_that_no_model_has_is_refused(tiny_dense, limit) -> None:
    _change(tiny_dense, "config.json", max_position_embeddings=limit)
    with pytest.raises(TamizError, match=rf"max_position_embeddings is {limit!r}, expected an int"):
        Model.load(tiny_dense)


def test_a_prompt_that_does_not_fit_is_refused(model) -> None:
    with pytest.raises(TamizError, match=r"256 tokens do not fit"):
        list(model.generate([5] * 256, Sampling()))


def test_an_empty_prompt_is_refused(model) -> None:
    with pytest.raises(TamizError, match="the prompt is empty"):
        list(model.generate([], Sampling()))


def test_stop_tokens_come_from_the_generation_config(tiny_dense) -> None:
    assert Model.load(tiny_dense).stop_ids == {1}
    _change(tiny_dense, "generation_config.json", eos_token_id=[1, 7])
    assert Model.load(tiny_dense).stop_ids == {1, 7}
    _change(tiny_dense, "generation_config.json", eos_token_id="end")
    with pytest.raises(TamizError, match=r"generation_config.json: eos_token_id is 'end'"):
        Model.load(tiny_dense)


def test_a_model_that_is_no_decoder_is_refused(tiny_dense) -> None:
    shutil.copy(tiny_dense / "tokenizer.onnx", tiny_dense / "model.onnx")
    write_manifest(tiny_dense, "dense", Source("changed by a test"))
    with pytest.raises(TamizError, match=r"model.onnx: "):
        Model.load(tiny_dense)


def test_an_onnxruntime_that_is_too_old_is_named(tiny_dense, monkeypatch) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.9.1")
    with pytest.raises(TamizError, match=r"found onnxruntime 1\.9\.1, expected 1\.20 or newer"):
        Model.load(tiny_dense)


def test_onnxruntime_prints_no_second_error(tiny_dense, capfd) -> None:
    model = (tiny_dense / "model.onnx").read_bytes()
    (tiny_dense / "model.onnx").write_bytes(model.replace(b"MatMul", b"MatMux"))
    write_manifest(tiny_dense, "dense", Source("changed by a test"))
    with pytest.raises(TamizError, match=r"model.onnx: onnxruntime cannot load it"):
        Model.load(tiny_dense)
    assert capfd.readouterr().err == ""


def test_an_unknown_isa_is_named(shared_dir) -> None:
    program = "import sys; from tamiz.runtime.model import Model; Model.load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(shared_dir)],
        env={**os.environ, "TAMIZ_ISA": "odd"},
        capture_output=True,
        text=True,
    )
    *_, last = done.stderr.splitlines()
    assert last.startswith("tamiz.files.errors.TamizError: ")
    assert "TAMIZ_ISA is 'odd', expected one of" in last


def _change(bundle, name, **values) -> None:
    path = bundle / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    write_manifest(bundle, "dense", Source("changed by a test"))

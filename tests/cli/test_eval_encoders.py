"""`tamiz eval` and `tamiz build` of encoders."""

import json
import shutil
from pathlib import Path

import pytest

from kit.command_line import ok, refused
from kit.encoders import write_encoder, write_text
from tamiz.files.bundle import Source, write_manifest

pytestmark = pytest.mark.slow


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "encoder", width=32)


def test_a_built_encoder_is_compared_with_its_source(encoder: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    summary = ok("build", encoder, "-o", built, "--block-quant=on").splitlines()
    assert summary[0].startswith(f"{built}: 1 of 1 weights replaced")
    assert summary[-1].endswith(f"see what is in it: tamiz inspect {built}")
    text = write_text(tmp_path / "text.txt", 2000)
    arguments = ["eval", built, "--against", encoder, "--text", text, "--window", 34]
    found = json.loads(ok(*arguments, "--json"))
    assert set(found) == {"cos_mean", "cos_p05", "same_nearest", "windows"}
    assert found["windows"] == 62
    assert 0.98 < found["cos_p05"] < found["cos_mean"] < 1
    assert json.loads(ok(*arguments, "--windows", 3, "--json"))["windows"] == 3
    assert "cos_mean" in ok(*arguments)
    same = json.loads(ok("eval", encoder, *arguments[2:], "--json"))
    assert same["cos_mean"] == pytest.approx(1, abs=1e-6)


def limited(encoder: Path, folder: Path, positions: int) -> Path:
    """A copy of an encoder that reads texts of `positions` tokens at most."""
    shutil.copytree(encoder, folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    write_manifest(folder, "dense", Source("made"))
    return folder


def test_windows_are_at_most_as_long_as_both_encoders_read(encoder: Path, tmp_path: Path) -> None:
    short = limited(encoder, tmp_path / "short", 40)
    text = write_text(tmp_path / "text.txt", 3800)
    for one, other in ((short, encoder), (encoder, short)):
        arguments = ["eval", one, "--against", other, "--text", text]
        assert json.loads(ok(*arguments, "--json"))["windows"] == 3800 // (40 - 2)
        assert refused(*arguments, "--window", 41) == (
            f"{short}: found --window 41, expected at most 40 tokens (max_position_embeddings of "
            "config.json); try --window 40"
        )
        ok(*arguments, "--window", 40)


def test_an_encoder_whose_texts_hold_no_token_is_refused(encoder: Path, tmp_path: Path) -> None:
    short = limited(encoder, tmp_path / "short", 2)
    text = write_text(tmp_path / "text.txt", 200)
    assert refused("eval", short, "--against", short, "--text", text) == (
        f"{short}: found texts of 2 tokens, expected a model that reads more than the 2 that begin "
        "and end a text"
    )


@pytest.mark.parametrize("missing", ["--text", "--against"])
def test_an_encoder_needs_a_text_and_another(encoder: Path, tmp_path: Path, missing: str) -> None:
    given = {"--text": write_text(tmp_path / "text.txt", 200), "--against": encoder}
    del given[missing]
    if missing == "--text":
        given["--prompts"] = tmp_path / "text.txt"
    message = refused("eval", encoder, *(part for pair in given.items() for part in pair))
    assert message.startswith(f"{encoder}: is an encoder, whose embeddings are compared with those")


def test_an_encoder_is_not_compared_with_a_decoder(
    encoder: Path, tmp_path: Path, tiny_dense: Path
) -> None:
    text = write_text(tmp_path / "text.txt", 200)
    message = refused("eval", encoder, "--against", tiny_dense, "--text", text)
    assert message == f"{tiny_dense}: is no encoder, expected one as {encoder} is"
    message = refused("eval", tiny_dense, "--against", encoder, "--text", text)
    assert "has no output logits, expected a decoder" in message

"""Where answers end: the union of what a bundle's files say, and names, as in llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit import chain
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.ends import ends_by_name
from tamiz.runtime.text.stream import generate_text
from tamiz.runtime.text.tokenizer import Tokenizer

TEXT, OTHER = "hi.<|im_end|>!?", "<|im_start|>"


@pytest.fixture
def talker(tmp_path: Path, plugins: Plugins) -> Path:
    """A bundle that answers `h` with the rest of TEXT."""
    return chain.bundle(tmp_path, chain.ids(TEXT), plugins)


def answer(folder: Path, **sampling: Any) -> str:
    model = Model.load(folder, threads=1)
    pieces = generate_text(
        model, model.tokenizer, chain.ids("h"), Sampling(**sampling), max_new_tokens=5
    )
    return "".join(pieces)


def renamed(folder: Path, **names: str) -> dict[str, Any]:
    """The bundle's tokenizer with other names of its control tokens."""
    text = (folder / "tokenizer.json").read_text("utf-8")
    for old, new in names.items():
        text = text.replace(f"<|{old}|>", new)
    (folder / "tokenizer.json").write_text(text, "utf-8")
    return {"eos_token": None}


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer"),
    [
        ({"eos_token_id": 2}, {}, {}),
        ({"do_sample": True}, {"eos_token_id": 2}, {}),
        ({"do_sample": True}, {"eos_token_id": [0, 2]}, {}),
        ({}, {}, {"eos_token": "[odd]"}),
        ({}, {}, {"eos_token": {"content": "[odd]"}}),
        ({"eos_token_id": 0}, {}, {"eos_token": "[odd]"}),
        ({"eos_token_id": 0}, {"eos_token_id": 2}, {"eos_token": "<|im_start|>"}),
    ],
)
def test_an_end_that_any_file_names_ends_an_answer(
    talker: Path, generation: dict[str, Any], config: dict[str, Any], tokenizer: dict[str, Any]
) -> None:
    renamed(talker, im_end="[odd]")
    config = {**chain.read(talker, "config"), "eos_token_id": None, **config}
    settings = {**chain.read(talker, "tokenizer_config"), "eos_token": None, **tokenizer}
    chain.change(talker, generation_config=generation, config=config, tokenizer_config=settings)
    assert answer(talker) == "i."


def test_without_an_end_the_answer_goes_on(talker: Path) -> None:
    renamed(talker, im_end="[odd]")
    config = {**chain.read(talker, "config"), "eos_token_id": None}
    settings = {**chain.read(talker, "tokenizer_config"), "eos_token": None}
    chain.change(talker, generation_config={}, config=config, tokenizer_config=settings)
    assert answer(talker) == "i.!?"


def test_a_token_that_ends_a_turn_by_its_name_ends_an_answer(
    tmp_path: Path, plugins: Plugins
) -> None:
    """A ChatML model with the end of a document as its only end, as in llama.cpp."""
    metadata = {"tokenizer__ggml__eos_token_id": 0}
    folder = chain.bundle(tmp_path, chain.ids(TEXT), plugins, **metadata)
    chain.change(folder, generation_config={"eos_token_id": 0})
    assert Model.load(folder, threads=1).stop_ids >= {0, 2}
    assert answer(folder) == "i."


def test_what_ends_a_part_of_an_answer_ends_no_answer(talker: Path) -> None:
    """gpt-oss: <|end|> ends a channel where there are <|return|> and <|call|>, as in llama.cpp."""
    renamed(talker, im_end="<|end|>")
    settings = {**chain.read(talker, "tokenizer_config"), "eos_token": None}
    chain.change(talker, tokenizer_config=settings)
    assert ends_by_name(Tokenizer(Bundle.open(talker))) == {0, 2}
    renamed(talker, im_start="<|return|>", endoftext="<|call|>")
    chain.change(talker)
    assert ends_by_name(Tokenizer(Bundle.open(talker))) == {0, 1}


def test_an_answer_that_ignores_ends_has_none(talker: Path) -> None:
    """The end is never drawn, as in llama.cpp: the next likeliest token comes instead."""
    model = Model.load(talker, threads=1)
    tokens = list(model.generate(chain.ids("h"), Sampling(ignore_eos=True), 20))
    assert len(tokens) == 20
    assert model.stop_ids.isdisjoint(tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_without_text_is_never_drawn(talker: Path, temperature: float) -> None:
    """The head has more rows than the tokenizer has tokens: `?` has none."""
    description = chain.read(talker, "tokenizer")
    missing = description["model"]["vocab"].pop("?")
    chain.change(talker, tokenizer=description)
    model = Model.load(talker, threads=1)
    sampling = Sampling(temperature=temperature, seed=1, ignore_eos=True)
    drawn = list(model.generate(chain.ids("!"), sampling, 200))
    assert len(drawn) == 200
    assert missing not in drawn
    assert not model.tokenizer.lacks(drawn)


def test_ends_of_the_wrong_type_are_refused(talker: Path) -> None:
    chain.change(talker, config={**chain.read(talker, "config"), "eos_token_id": "end"})
    with pytest.raises(TamizError, match=r"config.json: eos_token_id is 'end', expected an int"):
        Model.load(talker)


@pytest.mark.parametrize("stop", ["<|im_start|>", ".<|im_start|>", "<|im_start|>!", "!?", ".!"])
def test_a_stop_string_may_name_a_control_token(
    tmp_path: Path, plugins: Plugins, stop: str
) -> None:
    folder = chain.bundle(tmp_path, chain.ids("hi.<|im_start|>!?<|im_end|>"), plugins)
    model = Model.load(folder, threads=1)
    pieces = generate_text(
        model, model.tokenizer, chain.ids("h"), Sampling(), max_new_tokens=9, stop=[stop]
    )
    assert "".join(pieces) == ("i" if stop.startswith(".") else "i.")


def test_a_stop_string_of_the_model_ends_an_answer(talker: Path) -> None:
    """`stop_strings` of generation_config.json, as in transformers."""
    chain.change(talker, generation_config={"stop_strings": ["."]})
    assert answer(talker) == "i"
    assert answer(talker, ignore_eos=True).startswith("i.")
    chain.change(talker, generation_config={"stop_strings": [""]})
    with pytest.raises(TamizError, match=r"stop_strings is .*, expected texts that are not empty"):
        Model.load(talker, threads=1)

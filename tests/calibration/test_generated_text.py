import json
from itertools import pairwise
from pathlib import Path

import pytest

from tamiz.calibration import generated_text
from tamiz.calibration.generated_text import CHAT, OPENED, OPENINGS, PROSE, generate_windows
from tamiz.evaluation.windows import Window
from tamiz.files.bundle import Source, write_manifest
from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer


def texts() -> list[str]:
    return [opening["text"] for opening in json.loads(OPENINGS.read_text("utf-8"))]


def opened(windows: list[Window]) -> list[Window]:
    return [window for window in windows if window.origin == OPENED]


def starts(model: Model) -> list[list[int]]:
    """What stands in a window of each opening."""
    tokenizer = Tokenizer(model.bundle)
    return [tokenizer.encode("\n\n" + text, bos=False)[:60] for text in texts()]


def places(window: Window, starts: list[list[int]]) -> dict[int, list[int]]:
    """Where each opening begins in a window."""
    tokens = list(window.tokens)
    found: dict[int, list[int]] = {}
    for number, start in enumerate(starts):
        at = [i for i in range(len(tokens)) if tokens[i : i + len(start)] == start]
        found |= {number: at} if at else {}
    return found


def test_openings_are_of_many_kinds() -> None:
    stored = json.loads(OPENINGS.read_text("utf-8"))
    assert len(set(texts())) == len(stored) == 40
    assert len({opening["kind"] for opening in stored}) == 40
    assert all(20 < len(opening["text"]) < 300 for opening in stored)


def test_kinds_of_windows_by_turns(tiny_dense: Path) -> None:
    windows = generate_windows(Model.load(tiny_dense, 1), 6, 8)
    assert [window.origin for window in windows] == [OPENED, CHAT, OPENED, PROSE, OPENED, CHAT]
    assert {len(window.tokens) for window in windows} == {8}


def test_windows_have_no_opening_in_common(tiny_dense: Path) -> None:
    model = Model.load(tiny_dense, 1)
    windows = generate_windows(model, 16, 600)
    found = [places(window, starts(model)) for window in opened(windows)]
    numbers = [number for of_window in found for number in of_window]
    assert len(numbers) == len(set(numbers)) >= 3 * 8
    for of_window in found:
        at = sorted(place for found in of_window.values() for place in found)
        assert max(b - a for a, b in pairwise(at)) <= 100
    chosen = [number for of_window in found[:2] for number in of_window]
    assert not {0, 1} - set(chosen)


def test_more_windows_than_openings(tiny_dense: Path) -> None:
    model = Model.load(tiny_dense, 1)
    windows = opened(generate_windows(model, 82, 70))
    first = [min(places(window, starts(model))) for window in windows]
    assert first == [*range(40), 0]


def test_without_openings_windows_are_prose(
    tiny_dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "openings.json"
    empty.write_text("[]")
    monkeypatch.setattr(generated_text, "OPENINGS", empty)
    windows = generate_windows(Model.load(tiny_dense, 1), 4, 8)
    assert [window.origin for window in windows] == [PROSE, CHAT, PROSE, PROSE]


def test_without_a_chat_template_chats_continue_openings(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated_text, "find_turns", lambda model: None)
    windows = generate_windows(Model.load(tiny_dense, 1), 4, 8)
    assert [window.origin for window in windows] == [OPENED, OPENED, OPENED, PROSE]


def with_template(folder: Path, template: str) -> Model:
    """The bundle with another chat template, loaded."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    write_manifest(folder, "dense", Source("made"))
    return Model.load(folder, 1)


def test_windows_do_not_depend_on_the_date(tiny_dense: Path) -> None:
    template = (
        "{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}\n{% for m in messages %}<|im_start|>"
        "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    model = with_template(tiny_dense, template)
    windows = generate_windows(model, 2, 60)
    assert generate_windows(model, 2, 60) == windows
    (chat,) = (window for window in windows if window.origin == CHAT)
    start = Tokenizer(model.bundle).decode(chat.tokens, special=True)
    assert start.startswith("01 Jan 2025 00:00:00.000000\n<|im_start|>user\n")


def test_where_no_message_has_a_mark_chats_continue_openings(tiny_dense: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    windows = generate_windows(with_template(tiny_dense, template), 4, 8)
    assert [window.origin for window in windows] == [OPENED, OPENED, OPENED, PROSE]


def test_a_written_chat_follows_the_template(tiny_dense: Path) -> None:
    model = Model.load(tiny_dense, 1)
    tokenizer = Tokenizer(model.bundle)
    # Which tokens are drawn differs between machines; of 60 chats, many have several turns.
    windows = generate_windows(model, 240, 400)
    roles = ["user", "assistant"]
    chats = [window for window in windows if window.origin == CHAT]
    talks = [tokenizer.decode(window.tokens, special=True) for window in chats]
    assert len(talks) == 60
    for talk in talks:
        first, *others = talk.split("<|im_end|>")
        assert first.startswith("<|im_start|>user\n")
        for number, turn in enumerate(others[:-1], 1):
            assert turn.startswith(f"\n<|im_start|>{roles[number % 2]}\n")
    assert max(talk.count("<|im_end|>") for talk in talks) > 2

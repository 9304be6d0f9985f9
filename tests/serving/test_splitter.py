import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.serving.splitter import Splitter

TEXTS = st.lists(st.sampled_from(["<a>", "</a>", "<", "a", ">", "</", "x", "\n"]), max_size=12)


def split(pieces: list[str]) -> list[tuple[bool, str]]:
    """The parts of a text that comes in pieces, neighbours of one kind joined."""
    splitter = Splitter("<a>", "</a>")
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.end()
    joined: list[tuple[bool, str]] = []
    for inside, text in parts:
        if joined and joined[-1][0] == inside:
            joined[-1] = inside, joined[-1][1] + text
        else:
            joined.append((inside, text))
    return joined


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x", [(False, "x")]),
        ("x<a>y</a>z", [(False, "x"), (True, "y"), (False, "z")]),
        ("<a>y", [(True, "y")]),
        ("x<", [(False, "x<")]),
        ("</a>x", [(False, "</a>x")]),
        ("<a><a></a>", [(True, "<a>")]),
    ],
)
def test_tags_divide_a_text(text: str, parts: list[tuple[bool, str]]) -> None:
    assert split([text]) == parts


@given(TEXTS)
def test_pieces_do_not_change_the_parts(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert split(pieces) == split([text]) == split(list(text))


def test_only_a_possible_tag_is_held_back() -> None:
    splitter = Splitter("<a>", "</a>")
    assert splitter.push("xy<") == [(False, "xy")]
    assert splitter.push("b") == [(False, "<b")]


def test_a_text_may_begin_inside() -> None:
    splitter = Splitter("<a>", "</a>", inside=True)
    assert splitter.push("x</a>y") == [(True, "x"), (False, "y")]

import pytest

from tamiz.files.errors import TamizError
from tamiz.interface.states import PAGE
from tamiz.runtime.batching.pages import Pages, pages_of
from tamiz_ops import attention_reference


def test_pages_are_as_large_as_the_op_has_them() -> None:
    assert PAGE == attention_reference.PAGE


def test_tokens_are_rounded_up_to_pages() -> None:
    assert [pages_of(n) for n in (0, 1, 64, 65)] == [0, 1, 1, 2]


def test_a_page_is_free_when_its_last_owner_gave_it_back() -> None:
    pages = Pages(4)
    first, second = pages.take(2), pages.take(1)
    assert sorted([*first, *second]) == [0, 1, 2]
    pages.share(first[:1])
    pages.give_back(first)
    assert pages.free == 2
    assert [pages.shared(page) for page in (*first, *second)] == [False] * 3
    pages.give_back(first[:1])
    assert pages.free == 3
    assert sorted(pages.take(2)) == sorted(first)


def test_what_does_not_fit_takes_nothing() -> None:
    pages = Pages(2)
    with pytest.raises(TamizError, match=r"3 pages of 64 .*, but 2 of the batch's 2"):
        pages.take(3)
    assert pages.free == 2

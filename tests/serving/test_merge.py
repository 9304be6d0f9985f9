import asyncio
from collections.abc import AsyncIterator

import pytest

from tamiz.serving.merge import merge


async def count(to: int, closed: list[int]) -> AsyncIterator[int]:
    try:
        for number in range(to):
            await asyncio.sleep(0)
            yield number
    finally:
        closed.append(to)


async def fail() -> AsyncIterator[int]:
    yield 1
    raise ValueError("broken")


def test_items_keep_the_order_of_their_stream() -> None:
    async def run() -> list[tuple[int, int]]:
        return [item async for item in merge([count(3, []), count(2, [])])]

    items = asyncio.run(run())
    assert [n for stream, n in items if stream == 0] == [0, 1, 2]
    assert [n for stream, n in items if stream == 1] == [0, 1]


def test_an_error_of_one_ends_all() -> None:
    closed: list[int] = []

    async def run() -> None:
        async for _ in merge([count(1000, closed), fail()]):
            pass

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run())
    assert closed == [1000]


def test_leaving_closes_all_streams() -> None:
    closed: list[int] = []

    async def run() -> None:
        stream = merge([count(1000, closed), count(2000, closed)])
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())
    assert sorted(closed) == [1000, 2000]

"""Several streams as one, in the order in which their items come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def merge(streams: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """Yields the number of a stream and its next item; an error of one ends all.

    Leaving the loop closes all streams.
    """
    items: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()

    async def pump(number: int, stream: AsyncIterator[T]) -> None:
        try:
            async for item in stream:
                items.put_nowait((number, item))
            items.put_nowait(None)
        except Exception as error:
            items.put_nowait(error)

    tasks = [asyncio.create_task(pump(n, stream)) for n, stream in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            item = await items.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

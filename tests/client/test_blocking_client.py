"""The tool that writes the blocking client from the awaiting one."""

from __future__ import annotations

import pytest
from tools.blocking_client import AWAITING, BLOCKING, blocking

SOURCE = '''
import asyncio
from collections.abc import AsyncIterator


class AsyncThing:
    """Use it in an ``async with`` block."""

    async def __aenter__(self) -> AsyncThing:
        return self

    async def pages(self) -> AsyncIterator[bytes]:
        # A comment stays.
        async with self.open() as arriving:
            async for page in arriving:
                yield page
        await asyncio.sleep((await self.pause()).seconds)
'''

WITHOUT = '''# Written by tools/blocking_client.py: change aio.py and run it.

import time
from collections.abc import Iterator


class Thing:
    """Use it in a ``with`` block."""

    def __enter__(self) -> Thing:
        return self

    def pages(self) -> Iterator[bytes]:
        # A comment stays.
        with self.open() as arriving:
            yield from arriving
        time.sleep(self.pause().seconds)
'''


def test_what_awaits_is_written_as_what_blocks() -> None:
    assert blocking(SOURCE) == WITHOUT


def test_the_blocking_client_is_current() -> None:
    assert BLOCKING.read_text() == blocking(AWAITING.read_text())


def test_an_asynchronous_comprehension_is_refused() -> None:
    with pytest.raises(ValueError, match="comprehension"):
        blocking("async def f(pages):\n    return [page async for page in pages]\n")

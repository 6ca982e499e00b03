"""The tool that writes the blocking clients from the awaiting ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.blocking_client import CLIENT, MODULES, blocking

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
        await asyncio.to_thread(self.stop)
        await asyncio.to_thread(Stopped, self.name)
'''

WITHOUT = '''# Written by tools/blocking_client.py: change aio/pages.py and run it.

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
        self.stop()
        Stopped(self.name)
'''


def test_what_awaits_is_written_as_what_blocks() -> None:
    assert blocking(SOURCE, CLIENT / "pages.py") == WITHOUT


@pytest.mark.parametrize(("awaiting", "path"), MODULES.items(), ids=lambda path: path.name)
def test_the_blocking_clients_are_current(awaiting: Path, path: Path) -> None:
    assert path.read_text() == blocking(awaiting.read_text(), path)


def test_an_asynchronous_comprehension_is_refused() -> None:
    with pytest.raises(ValueError, match="comprehension"):
        blocking("async def f(pages):\n    return [page async for page in pages]\n", CLIENT / "pages.py")

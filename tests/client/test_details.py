from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace import AsyncClient, Client

if TYPE_CHECKING:
    from tests.conftest import ServerProcess


def test_both_clients_tell_everything_about_a_stream(server: ServerProcess) -> None:
    with Client(server.url) as client:
        stream = client.stream("details/one")
        stream.create()
        stream.append([1, 2, 3])
        found = stream.details()
    assert found["stream"]["name"] == "details/one"
    assert found["stream"]["next_offset"] == "3"

    async def same() -> object:
        async with AsyncClient(server.url) as client:
            return await client.stream("details/one").details()

    assert asyncio.run(same()) == found

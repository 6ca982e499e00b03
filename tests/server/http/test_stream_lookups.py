"""Streams that are not in memory are looked up together, and nobody notices."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import httpx2

from headrace.server.http.dispatch import StreamLookups, WaitingRequest
from headrace.server.http.request import RequestHead
from headrace.types import JSON

if TYPE_CHECKING:
    from tests.conftest import StartServer

STREAMS = 300
#: A few of them stay in memory.
SETTINGS = {"limits__cached_streams": "1"}


class Catalog:
    """Writes down what it is asked for."""

    def __init__(self) -> None:
        self.fetched: list[Collection[str]] = []

    def fetch(self, names: Collection[str]) -> None:
        self.fetched.append(names)


def _request(body: bytes) -> WaitingRequest:
    exchange: Any = None
    return RequestHead("POST", b"/v1/stream/s", [], {}), body, exchange, 0.0, True


def test_what_one_turn_asks_for_is_looked_up_once_and_goes_on_in_order() -> None:
    catalog: Any = Catalog()
    gone_on: list[bytes] = []

    async def two_turns() -> None:
        lookups = StreamLookups(catalog, lambda _head, body, *_: gone_on.append(body))
        for number, name in enumerate("abca"):
            lookups.add(name, _request(b"%d" % number))
        assert not catalog.fetched and not gone_on
        await asyncio.sleep(0)
        assert gone_on == [b"0", b"1", b"2", b"3"]
        lookups.add("d", _request(b"4"))
        await asyncio.sleep(0)

    asyncio.run(two_turns())
    assert catalog.fetched == [{"a", "b", "c"}, {"d"}]
    assert gone_on == [b"0", b"1", b"2", b"3", b"4"]


def test_everyone_goes_on_where_something_is_wrong_with_one() -> None:
    gone_on: list[bytes] = []
    failures: list[dict[str, Any]] = []

    class Broken:
        def fetch(self, names: Collection[str]) -> None:
            raise ValueError(names)

    async def turn() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, told: failures.append(told))
        catalog: Any = Broken()
        lookups = StreamLookups(catalog, lambda _head, body, *_: gone_on.append(body))
        lookups.add("a", _request(b"1"))
        lookups.add("b", _request(b"2"))
        await asyncio.sleep(0)

    asyncio.run(turn())
    assert gone_on == [b"1", b"2"] and len(failures) == 1


async def _use(url: str) -> None:
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64)
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False, limits=limits) as http:

        async def ask(method: str, number: int, **more: Any) -> httpx2.Response:
            return await http.request(method, f"/v1/stream/s{number}", headers={"content-type": JSON}, **more)

        async def everyone(method: str, **more: Any) -> list[httpx2.Response]:
            return list(await asyncio.gather(*(ask(method, number, **more) for number in range(STREAMS))))

        assert {one.status_code for one in await everyone("POST", content=b"1")} == {404}
        assert {one.status_code for one in await everyone("PUT")} == {201}
        for turn in range(3):
            answers = await asyncio.gather(*(everyone("POST", content=b"%d" % turn), everyone("HEAD")))
            assert {one.status_code // 100 for some in answers for one in some} == {2}
        read = await everyone("GET", params={"offset": "-1"})
        assert [one.json() for one in read] == [[0, 1, 2]] * STREAMS
        await asyncio.gather(*(ask("DELETE", number) for number in range(0, STREAMS, 2)))
        codes = [one.status_code for one in await everyone("POST", content=b"3")]
        assert {code // 100 for code in codes[1::2]} == {2} and set(codes[::2]) <= {404, 410}


def test_many_streams_that_are_not_in_memory_are_used_at_once(start_server: StartServer) -> None:
    asyncio.run(_use(start_server(**SETTINGS).url))

"""SIGKILL at a random moment under concurrent appends, again and again on the same directory."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace.format import offset as offsets

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

SEEDS, ROUNDS = 3, 17
JSON, OCTETS = "application/json", "application/octet-stream"


class Write:
    """One append request: its entries, and the offset it was acknowledged with, if it was."""

    def __init__(self, entries: list[str]) -> None:
        self.entries = entries
        self.offset: str | None = None
        self.known_absent = False


class Ledger:
    """What was asked of one stream, and what came back."""

    def __init__(self, name: str, content_type: str) -> None:
        self.name, self.content_type = name, content_type
        self.inherits = 0
        self.writes: list[Write] = []
        self.seen: list[str] = []
        self.seen_to = "-1"
        self.created = self.closed = self.maybe_closed = self.deleted = self.maybe_deleted = False

    def check(self, entries: list[str], source: list[str]) -> None:
        """Everything acknowledged once, at its offset; the rest whole or not at all, and at most once."""
        assert entries[: self.inherits] == source[: self.inherits]
        assert entries[: len(self.seen)] == self.seen, "a reader was shown what is not there now"
        assert len(set(entries)) == len(entries), "an entry is there twice"
        places = {entry: place for place, entry in enumerate(entries)}
        known = set(source[: self.inherits])
        for write in self.writes:
            known.update(write.entries)
            self._check_write(write, places)
        assert not places.keys() - known, "nobody ever wrote this"

    @staticmethod
    def _check_write(write: Write, places: dict[str, int]) -> None:
        found = [places.get(entry) for entry in write.entries]
        if write.offset is None:
            if found[0] is None or write.known_absent:
                assert not any(found) and found[0] is None, "half a request, or one that came back"
                write.known_absent = True
                return
            first = found[0]
        else:
            first = offsets.decode(write.offset).position - len(write.entries)
        assert found == list(range(first, first + len(write.entries)))


class Load:
    """Clients that write to one server until it dies, and remember what they were told."""

    def __init__(self, server: Any, seed: int) -> None:
        self.server = server
        self.chance = random.Random(seed)
        self.ledgers: dict[str, Ledger] = {}
        self.numbers = count()
        self.producers = [Producer(self, f"producer/{n}") for n in range(3)]
        self.acknowledged = self.unknown = self.repeated = 0

    async def round(self) -> None:
        """Write from all sides, and kill the server at some moment."""
        self.http = httpx2.AsyncClient(base_url=self.server.url, timeout=20)
        async with self.http:
            clients = [self.write_plain, self.write_plain, self.write_arrays, self.write_arrays, self.write_arrays]
            clients += [self.open_and_close, self.fork, self.create_and_delete, self.follow]
            clients += [producer.write for producer in self.producers]
            tasks = [asyncio.create_task(self._until_it_dies(client)) for client in clients]
            await asyncio.sleep(self.chance.uniform(0.02, 0.5))
            await asyncio.to_thread(self.server.kill)
            await asyncio.gather(*tasks)

    async def _until_it_dies(self, client: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                await client()
        except httpx2.TransportError:
            pass

    async def ask(self, method: str, name: str, expect: tuple[int, ...], body: str = "", **headers: str) -> Any:
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        answer = await self.http.request(method, f"/v1/stream/{name}", content=body, headers=given)
        assert answer.status_code in expect, (method, name, answer.status_code, answer.text)
        return answer

    async def make(self, name: str, content_type: str) -> Ledger:
        """The ledger of a stream that exists."""
        ledger = self.ledgers.setdefault(name, Ledger(name, content_type))
        if not ledger.created:
            await self.ask("PUT", name, (200, 201), content_type=content_type)
            ledger.created = True
        return ledger

    def entries(self, most: int) -> list[str]:
        size = self.chance.choice((5,) * 6 + (50,) * 3 + (2000,))
        return [f"{next(self.numbers)}.".ljust(size, "x") for _ in range(self.chance.randint(1, most))]

    async def append(self, ledger: Ledger, entries: list[str], **headers: str) -> Write:
        write = Write(entries)
        ledger.writes.append(write)
        body = json.dumps(entries) if ledger.content_type == JSON else f"{entries[0]};"
        self.unknown += 1
        answer = await self.ask("POST", ledger.name, (200, 204), body, content_type=ledger.content_type, **headers)
        self.unknown -= 1
        self.acknowledged += 1
        write.offset = answer.headers["stream-next-offset"]
        return write

    async def write_plain(self) -> None:
        await self.append(await self.make("plain", OCTETS), self.entries(1))

    async def write_arrays(self) -> None:
        await self.append(await self.make("arrays", JSON), self.entries(5))

    async def open_and_close(self) -> None:
        """A stream of its own, closed together with its last entries, or after them."""
        ledger = await self.make(f"closing/{next(self.numbers)}", JSON)
        await self.append(ledger, self.entries(3))
        ledger.maybe_closed = True
        if self.chance.random() < 0.5:
            await self.append(ledger, self.entries(3), stream_closed="true")
        else:
            await self.ask("POST", ledger.name, (204,), stream_closed="true")
        ledger.closed = True

    async def fork(self) -> None:
        """A fork of the shared arrays at an acknowledged offset, with an entry of its own."""
        source = await self.make("arrays", JSON)
        acknowledged = [write.offset for write in source.writes if write.offset is not None]
        if not acknowledged:
            await self.append(source, self.entries(2))
            return
        at = self.chance.choice(acknowledged)
        fork = Ledger(f"fork/{next(self.numbers)}", JSON)
        self.ledgers[fork.name] = fork
        fork.inherits = offsets.decode(at).position
        await self.ask("PUT", fork.name, (201,), stream_forked_from="/v1/stream/arrays", stream_fork_offset=at)
        fork.created = True
        await self.append(fork, self.entries(2))

    async def create_and_delete(self) -> None:
        ledger = await self.make(f"deleted/{next(self.numbers)}", OCTETS)
        await self.append(ledger, self.entries(1))
        ledger.maybe_deleted = True
        await self.ask("DELETE", ledger.name, (204,))
        ledger.deleted = True

    async def follow(self) -> None:
        """Read at the tail: what was ever shown must stay."""
        ledger = await self.make("arrays", JSON)
        answer = await self.ask("GET", f"arrays?offset={ledger.seen_to}", (200,))
        ledger.seen += answer.json()
        ledger.seen_to = answer.headers["stream-next-offset"]

    async def check(self) -> None:
        """After a restart: compare every ledger with its stream."""
        self.http = httpx2.AsyncClient(base_url=self.server.url, timeout=20)
        async with self.http:
            there = [ledger for ledger in list(self.ledgers.values()) if await self._is_there(ledger)]
            arrays = [await self.read(ledger) for ledger in there if ledger.name == "arrays"]
            for ledger in there:
                ledger.check(await self.read(ledger), arrays[0] if arrays else [])
            for producer in self.producers:
                await producer.retry()

    async def _is_there(self, ledger: Ledger) -> bool:
        answer = await self.ask("HEAD", ledger.name, (200, 404))
        if answer.status_code == 404:
            assert ledger.maybe_deleted or not ledger.created
            if ledger.maybe_deleted or not ledger.writes:
                del self.ledgers[ledger.name]
            return False
        assert not ledger.deleted
        ledger.created, ledger.maybe_deleted = True, False
        closed = answer.headers.get("stream-closed") == "true"
        assert closed or not ledger.closed
        assert ledger.maybe_closed or not closed
        ledger.closed = ledger.maybe_closed = closed
        return True

    async def read(self, ledger: Ledger) -> list[str]:
        found, offset = b"", "-1"
        entries: list[str] = []
        while True:
            answer = await self.ask("GET", f"{ledger.name}?offset={offset}", (200,))
            offset = answer.headers["stream-next-offset"]
            entries += answer.json() if ledger.content_type == JSON else []
            found += answer.content
            if "stream-up-to-date" in answer.headers:
                return entries if ledger.content_type == JSON else found.decode().split(";")[:-1]


class Producer:
    """One idempotent producer; what was not answered is sent again after the restart."""

    def __init__(self, load: Load, name: str) -> None:
        self.load, self.name = load, name
        self.seq = 0
        self.pending: Write | None = None

    def headers(self) -> dict[str, str]:
        return {"producer_id": "p", "producer_epoch": "0", "producer_seq": str(self.seq)}

    async def write(self) -> None:
        ledger = await self.load.make(self.name, JSON)
        self.pending = Write(self.load.entries(3))
        ledger.writes.append(self.pending)
        await self._send((200,))

    async def _send(self, expect: tuple[int, ...]) -> None:
        assert self.pending is not None
        body = json.dumps(self.pending.entries)
        answer = await self.load.ask("POST", self.name, expect, body, content_type=JSON, **self.headers())
        assert answer.headers["producer-seq"] == str(self.seq)
        self.pending.offset = answer.headers["stream-next-offset"]
        self.pending.known_absent = False
        self.pending, self.seq = None, self.seq + 1
        self.load.acknowledged += 1

    async def retry(self) -> None:
        """Send again what was in flight; a duplicate is answered as one."""
        pending = self.pending
        ledger = self.load.ledgers.get(self.name)
        if ledger is None or not ledger.created:
            self.pending = None
            return
        before = await self.load.read(ledger)
        if pending is not None:
            was_there = pending.entries[0] in before
            self.load.repeated += was_there
            await self._send((204,) if was_there else (200,))
        ledger.check(await self.load.read(ledger), [])


def _tear(data_dir: Path, chance: random.Random) -> None:
    """Leave half a page behind the last one, as if the power had failed while it was written."""
    with (data_dir / "headrace.db-wal").open("ab") as file:
        file.write(chance.randbytes(chance.randint(1, 4000)))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_acknowledged_survives_kills_once_and_in_order(start_server: Callable[..., Any], seed: int) -> None:
    server = start_server()
    load = Load(server, seed)
    for number in range(ROUNDS):
        asyncio.run(load.round())
        if number % 3 == 0:
            _tear(server.data_dir, load.chance)
        server.start()
        asyncio.run(load.check())
    assert load.acknowledged > 20 * ROUNDS
    assert load.unknown > 0, "no request was ever cut off: the kills came at the wrong moments"
    print(f"{load.acknowledged} acknowledged, {load.unknown} cut off, {load.repeated} repeated by producers")

"""An engine that plain test code can drive: every verb returns when its operation is settled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.config import Config, FeaturesConfig, LimitsConfig, PipelineConfig, ServerConfig, StorageConfig
from headrace.engine.assembly import Engine
from headrace.engine.log.append import Append, Terms
from headrace.engine.log.batch import Batch, Operation
from headrace.engine.log.forks import Fork
from headrace.engine.log.lifecycle import Create, StreamChange
from headrace.engine.log.stream import Stream
from headrace.engine.log.tiers import NeedsFetch
from headrace.schema.entries import entries_of, split_json
from headrace.storage.streams import StreamRow
from headrace.types import JSON, OCTETS

T = TypeVar("T")
START_US = 1_000_000_000_000_000


class ManualClock:
    """A clock that a test moves."""

    def __init__(self, now_us: int = START_US) -> None:
        self.us = now_us

    def now_us(self) -> int:
        return self.us


class Hold(StreamChange):
    """Keeps the writer's thread busy until it is let go."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.entered, self.go_on = threading.Event(), threading.Event()

    def perform(self, batch: Batch) -> None:
        self.entered.set()
        assert self.go_on.wait(30)


def _of_one_thread() -> Callable[..., bool]:
    """A trace of statements that fails where another thread executes one: connections are not shared."""
    owner = threading.get_ident()

    def check(_cursor: Any, sql: str, _bindings: Any) -> bool:
        assert threading.get_ident() == owner, f"another thread uses the connection of the event loop: {sql}"
        return True

    return check


class Rig:
    """One engine on an event loop of its own."""

    def __init__(
        self,
        data_dir: Path,
        *,
        vfs: str | None = None,
        storage: dict[str, Any] | None = None,
        limits: dict[str, int] | None = None,
        pipeline: dict[str, Any] | None = None,
        features: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
    ) -> None:
        place = StorageConfig(data_dir=str(data_dir), cache_bytes=1 << 20, **(storage or {}))
        self.config = Config(
            server=ServerConfig(**(server or {})),
            storage=place,
            limits=LimitsConfig(**(limits or {})),
            pipeline=PipelineConfig(**(pipeline or {})),
            features=FeaturesConfig(**(features or {})),
        )
        self.clock = ManualClock()
        self._vfs = vfs
        self._runner = asyncio.Runner()
        try:
            self.engine = self.run(self._open())
        except BaseException:
            self._runner.close()
            raise

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._runner.get_loop()

    def close(self) -> None:
        try:
            self.run(self.engine.close())
        finally:
            self._runner.close()

    def reopen(self) -> None:
        """Close the engine, gracefully, and open the same directory again."""
        self.run(self.engine.close())
        self.engine = self.run(self._open())

    async def _open(self) -> Engine:
        """An engine that publishes only when it is told to."""
        engine = await Engine.open(self.config, self.clock, vfs=self._vfs)
        watch = engine.sealer.watch
        for loop in (engine.sealer._loop, watch._count_loop, watch._check_loop):
            assert loop._task is not None
            loop._task.cancel()
        engine._reader.exec_trace = _of_one_thread()
        return engine

    def publish(self, name: str) -> None:
        """Put everything of a stream into the object store."""
        stream = self.engine.log.catalog.find(name)
        assert stream is not None
        self.run(self.engine.sealer.publish(stream.id))

    def clear(self) -> None:
        """Remove objects that nothing refers to."""
        self.run(self.engine.sealer.clear())

    def sweep(self) -> None:
        self.run(self.engine.sweep())

    def find(self, name: str) -> Stream:
        return self.engine.log.find(name)

    def create(
        self,
        name: str,
        content_type: str = OCTETS,
        body: bytes = b"",
        *,
        fork: Fork | None = None,
        **facts: Any,
    ) -> Stream:
        """A new stream; facts are fields of its row."""
        now = self.clock.now_us()
        if facts.get("ttl_s") is not None:
            facts["deadline_us"] = now + facts["ttl_s"] * 1_000_000
        row = StreamRow(name=name, content_type=content_type, created_us=now, epochs="[]", **facts)
        joined, count = _entries(content_type, body)
        create: Create = self.settle(
            lambda done: self.engine.log.create(row, done, body=joined, count=count, fork=fork)
        )
        assert not create.exists
        return self.find(name)

    def fork(self, source: str, name: str, position: int, sub: int = 0, **facts: Any) -> Stream:
        """A fork of a stream after so many entries, and so many messages or bytes of the next append."""
        stream = self.find(source)
        fork = self.ask(lambda: self.engine.log.fork(stream, position, sub))
        return self.create(name, stream.content_type, fork=fork, **facts)

    @staticmethod
    def ask(question: Callable[[], T]) -> T:
        """The answer, once what is not at hand was fetched."""
        while True:
            try:
                return question()
            except NeedsFetch as cold:
                cold.work()

    def submit(self, name: str, body: bytes, done: Callable[[Append], None], **facts: Any) -> None:
        """Queue an append and go on; ``done`` is called when it is settled."""
        self.append_to(self.find(name), body, done, **facts)

    def append_to(self, stream: Stream, body: bytes, done: Callable[[Append], None], **facts: Any) -> None:
        """The same for a stream that was found earlier."""
        joined, count = _entries(stream.content_type, body)

        def answered(append: Append) -> None:
            if append.settled:
                self.engine.log.settled(append)
                done(append)

        self.engine.log.append(Append(stream, joined, count, answered, Terms(**facts)))

    def append(self, name: str, body: bytes = b"", **facts: Any) -> Append:
        settled: Append = self.settle(lambda done: self.submit(name, body, done, **facts))
        return settled

    def delete(self, name: str) -> None:
        self.settle(lambda done: self.engine.log.delete(self.find(name), done))

    def retain(self, name: str, *, age_us: int | None = None, size: int | None = None) -> None:
        """Set a retention rule and let a sweep apply it."""
        stream = self.find(name)
        self.settle(lambda done: self.engine.log.set_retention(stream, done, age_us=age_us, size=size))
        self.sweep()

    def settle(self, begin: Callable[[Callable[[Any], None]], None]) -> Any:
        """Begin an operation, wait until it is settled, and raise what refused it."""

        async def settled() -> Operation:
            outcome: asyncio.Future[Operation] = asyncio.get_running_loop().create_future()
            begin(lambda operation: outcome.set_result(operation) if operation.settled else None)
            return await outcome

        operation = self.run(settled())
        if operation.error is not None:
            raise operation.error
        return operation

    def read(self, name: str, position: int = 0, *, budget: int = 1 << 20, key: str | None = None) -> list[bytes]:
        """Every entry from a position on, page by page."""
        stream, found = self.find(name), []
        head = stream.head
        while position < head.next_seq:
            parts, following = self.ask(partial(self.engine.log.read, stream, head, position, budget=budget, key=key))
            assert following > position, "a page must lead on"
            found += [entry for part in parts for entry in one_by_one(stream, part)]
            position = following
        return found


def one_by_one(stream: Stream, part: bytes) -> list[bytes]:
    """The entries of one part of a slice."""
    return [bytes(memoryview(entry)) for entry in entries_of(part)] if stream.is_json else [part]


def _entries(content_type: str, body: bytes) -> tuple[bytes, int]:
    if not body:
        return b"", 0
    return split_json(body) if content_type == JSON else (body, 1)


def array(*values: object) -> bytes:
    """Values as the body of a JSON append."""
    return msgspec.json.encode(values)

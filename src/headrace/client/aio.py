"""The client that awaits: a thin shell over requests, answers and tail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, Unpack

from headrace.client import answers, requests, schemas, search, touches
from headrace.client.answers import Answer, AppendResult, Batch, CreateResult, StreamInfo
from headrace.client.producer import AsyncProducer
from headrace.client.requests import (
    NOW,
    START,
    AppendOptions,
    CreateOptions,
    Handle,
    Live,
    Moment,
    ProducerOptions,
    Request,
)
from headrace.client.retry import Patience, is_deleted_already, worth_repeating
from headrace.client.schemas import UNSET, Plan, Profile, Registry, Revision, Setting, Verification, Verified
from headrace.client.search import AggregateOptions, AggregateResult, Paging, SearchOptions, SearchResult
from headrace.client.tail import Reading, Tail
from headrace.client.transport import AsyncTransport, settings_for
from headrace.errors import HeadraceError


class AsyncClient:
    """A connection to one server; close it, or use it in an ``async with`` block."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:4437",
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 10.0,
        ca_file: str | None = None,
    ) -> None:
        """Times are in seconds; ``retry_for`` is how long a request that may be repeated is repeated."""
        self.settings = settings_for(url, key, timeout, retry_for, ca_file)
        self.transport = AsyncTransport(self.settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the connections."""
        await self.transport.close()

    def stream(self, name: str, *, content_type: str | None = None) -> AsyncStream:
        """A handle on a stream, which need not exist yet; asks nothing of the server."""
        return AsyncStream(self, name, content_type)

    async def streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Descriptors of all streams after the name ``after``, in name order; ``limit`` is per page."""
        next_name: str | None = after
        while next_name is not None:
            page = answers.page(await self.send(requests.list_streams(prefix=prefix, after=next_name, limit=limit)))
            for descriptor in page.streams:
                yield descriptor
            next_name = page.next_after

    async def send(self, request: Request) -> Answer:
        """The successful answer to a request, which is repeated where that can do no harm."""
        patience = Patience(self.settings.retry_for_s)
        while True:
            try:
                return (await self.transport.send(request)).checked()
            except HeadraceError as error:
                if is_deleted_already(request, error, patience):
                    return Answer(204, {})
                await asyncio.sleep(patience.pause_s(worth_repeating(request, error)))


class AsyncStream(Handle):
    """One stream of a server."""

    def __init__(self, client: AsyncClient, name: str, content_type: str | None = None) -> None:
        super().__init__(name, content_type)
        self._client = client

    async def create(self, **options: Unpack[CreateOptions]) -> CreateResult:
        """Create the stream if it is not there; it is a JSON stream unless told otherwise."""
        return self._learn(answers.created(await self._client.send(requests.create(self.name, **options))))

    async def append(self, value: Any, **options: Unpack[AppendOptions]) -> AppendResult:
        """Append one value, the elements of a list, or bytes as they are; on disk when this returns."""
        if self._must_ask(value):
            await self.info()
        return answers.appended(await self._client.send(self._appending(value, **options)))

    async def read(
        self,
        offset: str = START,
        *,
        since: Moment | None = None,
        key: str | None = None,
        schema_version: int | None = None,
        filter: str | None = None,
    ) -> AsyncIterator[Batch]:
        """Everything after ``offset`` (or from ``since`` on) up to the tail, batch by batch."""
        reading = Reading(self.name, offset, since=since, key=key, schema_version=schema_version, filter=filter)
        while not reading.ended:
            yield reading.accept(await self._client.send(reading.request()))

    async def tail(
        self,
        offset: str = NOW,
        *,
        live: Live | None = None,
        key: str | None = None,
        schema_version: int | None = None,
        filter: str | None = None,
    ) -> AsyncGenerator[Batch, None]:
        """What follows ``offset``, for as long as the stream is open; lost connections are taken up again.

        Without ``live`` it waits by SSE, and by long-poll where that would not do: for filters, and for text.
        """
        content_type = self.content_type or (await self.info()).content_type
        patience = Patience(self._client.settings.retry_for_s)
        tail = Tail(
            self.name,
            offset,
            live,
            content_type=content_type,
            key=key,
            patience=patience,
            schema_version=schema_version,
            filter=filter,
        )
        while not tail.ended:
            try:
                async with self._client.transport.open(tail.request()) as arriving:
                    tail.begin(arriving.status, arriving.headers)
                    async for chunk in arriving.chunks:
                        for batch in tail.feed(chunk):
                            yield batch
                for batch in tail.finish():
                    yield batch
            except HeadraceError as error:
                await asyncio.sleep(tail.pause_s(error))

    async def info(self) -> StreamInfo:
        """What is known of the stream without reading it."""
        return self._learn(answers.described(self.name, await self._client.send(requests.info(self.name))))

    @property
    def touch(self) -> AsyncTouches:
        """Waits for changes of rows, on a stream of the state protocol."""
        return AsyncTouches(self.name, self._client.send)

    async def details(self) -> dict[str, Any]:
        """Everything about the stream: what it holds and where, its registry, and how far its indexes are."""
        return answers.decoded((await self._client.send(requests.details(self.name))).body, dict[str, Any])

    async def schema(self) -> Registry:
        """The registry: every schema version, from where on each holds, and the lenses between them."""
        return schemas.registry(await self._client.send(schemas.show(self.name)))

    async def evolve(
        self,
        schema: Any = UNSET,
        lens: Mapping[str, Any] | None = None,
        *,
        routing_key: Setting = UNSET,
        search: Setting = UNSET,
        dry_run: bool = False,
    ) -> Plan:
        """Change what is given, and say what that changed; with ``dry_run`` only say what it would change."""
        request = schemas.evolve(self.name, schema, lens, routing_key=routing_key, search=search, dry_run=dry_run)
        return schemas.plan(await self._client.send(request))

    async def verify(
        self,
        schema: Any = UNSET,
        lens: Mapping[str, Any] | None = None,
        *,
        routing_key: Setting = UNSET,
        search: Setting = UNSET,
        tell: Callable[[Verification], None] | None = None,
    ) -> Verified:
        """Hold a change against every stored event, and say what was found; ``tell`` hears of the progress."""
        wanted = schemas.evolve(
            self.name, schema, lens, routing_key=routing_key, search=search, dry_run=True, on_data=True
        )
        begun = schemas.verified(await self._client.send(wanted))
        verification = begun.verification
        for pause in schemas.pauses():
            if verification is None or verification.ended:
                break
            await asyncio.sleep(pause)
            verification = schemas.progress(await self._client.send(schemas.verification(self.name, verification.id)))
            if tell is not None:
                tell(verification)
        return Verified(begun.plan, verification)

    async def schema_history(self) -> list[Revision]:
        """Every revision of the registry, the oldest first."""
        return schemas.revisions(await self._client.send(schemas.history(self.name)))

    async def profile(self) -> Profile:
        """What the stream means: the ``kind`` of its profile, and the settings beside it."""
        return schemas.profile(await self._client.send(schemas.show_profile(self.name)))

    async def set_profile(self, kind: str, settings: Mapping[str, Any] | None = None) -> Profile:
        """Change what the stream means; a stream without events and schema gets those of the profile."""
        return schemas.profile(await self._client.send(schemas.change_profile(self.name, kind, settings)))

    async def plan_profile(self, kind: str, settings: Mapping[str, Any] | None = None) -> Plan:
        """What :meth:`set_profile` would change, and every reason why it would be refused."""
        return schemas.plan(await self._client.send(schemas.change_profile(self.name, kind, settings, dry_run=True)))

    async def search(self, q: str, **options: Unpack[SearchOptions]) -> SearchResult:
        """One page of the events that match, the newest included; a page whose time was over says so."""
        return search.found(await self._client.send(search.search(self.name, q, **options)))

    async def search_pages(self, q: str, **options: Unpack[SearchOptions]) -> AsyncIterator[SearchResult]:
        """Every page up to the last hit; a page whose time was over is the last."""
        paging = Paging(self.name, q, options)
        while not paging.ended:
            yield paging.accept(await self._client.send(paging.request()))

    async def aggregate(
        self, rollup: str, start: Moment, end: Moment, interval: str, **options: Unpack[AggregateOptions]
    ) -> AggregateResult:
        """The buckets of a rollup from ``start`` up to ``end``, the newest events included."""
        request = search.aggregate(self.name, rollup, start, end, interval, **options)
        return search.aggregated(await self._client.send(request))

    async def routing_keys(self, *, after: str = "", limit: int | None = None) -> AsyncIterator[str]:
        """All routing keys after ``after``, in order; ``limit`` is per page."""
        next_key: str | None = after
        while next_key is not None:
            page, next_key = search.keys(await self._client.send(search.routing_keys(self.name, next_key, limit)))
            for key in page:
                yield key

    async def fork(self, name: str, **options: Unpack[CreateOptions]) -> AsyncStream:
        """Create the stream ``name`` with this one's content up to ``fork_offset``, or up to its tail."""
        fork = AsyncStream(self._client, name)
        await fork.create(**self._forking(options))
        return fork

    async def close(self) -> AppendResult:
        """Close the stream for good: nothing more can be appended."""
        return answers.appended(await self._client.send(requests.close(self.name)))

    async def delete(self) -> None:
        """Delete the stream and what it holds."""
        await self._client.send(requests.delete(self.name))

    def producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """A producer that batches in the background and never appends twice."""
        return AsyncProducer(self._client.settings, self.name, **self._producing(options))


class AsyncTouches:
    """The touches of one stream, for callers that await."""

    def __init__(self, name: str, send: Callable[[Request], Awaitable[Answer]]) -> None:
        self._name = name
        self._send = send

    async def meta(self, *, settle: bool = False, timeout: float = touches.WAIT_S) -> dict[str, Any]:
        """How things stand, with the ``cursor``; settled: once everything that was appended is told."""
        return answers.decoded(
            (await self._send(touches.meta(self._name, settle, timeout))).checked().body, dict[str, Any]
        )

    async def activate(self, *templates: touches.Template, inactivity: float | None = None) -> touches.Activation:
        """Tell rows apart by these templates from now on, until nobody uses them for so many seconds."""
        return answers.decoded(
            (await self._send(touches.activate(self._name, templates, inactivity))).checked().body, touches.Activation
        )

    async def wait(
        self,
        *wanted: str,
        cursor: str = NOW,
        timeout: float = touches.WAIT_S,
        templates: Sequence[touches.Template] = (),
        exact: bool = False,
        coarse: bool = False,
    ) -> touches.Touch:
        """Wait until one of some keys is touched, up to two minutes; their templates are activated if need be."""
        request = touches.wait(self._name, wanted, cursor, timeout, templates, exact=exact, coarse=coarse)
        return answers.decoded((await self._send(request)).checked().body, touches.Touch)

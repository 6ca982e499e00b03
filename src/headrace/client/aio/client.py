"""The client that awaits: a thin shell over requests, answers and tail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack

from headrace.client import answers, requests, schemas, search, touches
from headrace.client.answers import Answer, AppendResult, Batch, CreateResult, SealResult, StreamInfo
from headrace.client.errors import explain
from headrace.client.frame_rows import FrameAppend, FrameOptions, FrameResult
from headrace.client.frames import AsyncBatches
from headrace.client.producer import AsyncProducer
from headrace.client.requests import (
    NOW,
    START,
    AppendOptions,
    CreateOptions,
    Live,
    Moment,
    ProducerOptions,
    Request,
    StreamHandle,
)
from headrace.client.retry import Backoff, check_repeatable, is_repeated_delete
from headrace.client.schemas import UNSET, Plan, Profile, Registry, Revision, Setting, Verification, Verified
from headrace.client.search import AggregateOptions, AggregateResult, Paging, SearchOptions, SearchResult
from headrace.client.tail import Reading, Tail
from headrace.client.transport import AsyncTransport, make_settings
from headrace.errors import BadRequest, HeadraceError, TooLarge

T = TypeVar("T")


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
        self.settings = make_settings(url, key, timeout, retry_for, ca_file)
        self.transport = AsyncTransport(self.settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    def stream(self, name: str, *, content_type: str | None = None) -> AsyncStream:
        """A handle on a stream, which need not exist yet; sends no request."""
        return AsyncStream(self, name, content_type)

    async def streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Descriptors of all streams after the name ``after``, in name order; ``limit`` is per page."""
        next_name: str | None = after
        while next_name is not None:
            page = answers.read_stream_page(
                await self.send(requests.list_streams(prefix=prefix, after=next_name, limit=limit))
            )
            for descriptor in page.streams:
                yield descriptor
            next_name = page.next_after

    async def send(self, request: Request) -> Answer:
        """The successful answer to a request, which is retried where a repeat is safe."""
        backoff = Backoff(self.settings.retry_for_s)
        while True:
            try:
                return (await self.transport.send(request)).checked()
            except HeadraceError as error:
                explain(error, request.target)
                if is_repeated_delete(request, error, backoff):
                    return Answer(204, {})
                await asyncio.sleep(backoff.pause_s(check_repeatable(request, error)))

    async def fetch(self, request: Request, kind: type[T]) -> T:
        """The body of the successful answer to a request, as this type."""
        return (await self.send(request)).decode(kind)


class AsyncStream(StreamHandle):
    """One stream of a server."""

    def __init__(self, client: AsyncClient, name: str, content_type: str | None = None) -> None:
        super().__init__(name, content_type)
        self._client = client

    async def create(self, **options: Unpack[CreateOptions]) -> CreateResult:
        """Create the stream if it is not there; a JSON stream unless ``content_type`` says otherwise."""
        return self._remember_type(
            answers.read_create_result(await self._client.send(requests.create(self.name, **options)))
        )

    async def append(self, value: Any, **options: Unpack[AppendOptions]) -> AppendResult:
        """Append one value, the elements of a list, or bytes as they are; on disk when this returns."""
        if self._needs_content_type(value):
            await self.info()
        return answers.read_append_result(await self._client.send(self._append_request(value, **options)))

    async def append_frame(self, frame: Any, **options: Unpack[FrameOptions]) -> FrameResult:
        """Append the rows of a frame of pandas, polars or Arrow as events, each exactly once.

        Raises ``RowsRefused`` at the end if some rows were refused; the others are appended then.
        """
        append = await asyncio.to_thread(FrameAppend, self.name, frame, **options)
        while (request := await asyncio.to_thread(append.next_request)) is not None:
            try:
                append.accept(await self._client.send(request))
            except (BadRequest, TooLarge) as refusal:
                append.refuse(refusal)
        return append.result()

    def read(
        self,
        offset: str = START,
        *,
        since: Moment | None = None,
        last: int | None = None,
        before: str | None = None,
        key: str | None = None,
        schema_version: int | None = None,
        filter: str | None = None,
    ) -> AsyncBatches:
        """Everything after ``offset`` (or from ``since`` on) up to the tail: batch by batch, or as one table.

        With ``last`` the newest so many entries instead; ``before`` ends a read at an offset.
        """
        narrowing: dict[str, Any] = {"key": key, "schema_version": schema_version, "filter": filter}
        return AsyncBatches(self._read(Reading(self.name, offset, since=since, last=last, before=before, **narrowing)))

    async def _read(self, reading: Reading) -> AsyncIterator[Batch]:
        while not reading.ended:
            yield reading.accept(await self._client.send(reading.request()))

    async def tail(
        self,
        offset: str = NOW,
        *,
        last: int | None = None,
        live: Live | None = None,
        key: str | None = None,
        schema_version: int | None = None,
        filter: str | None = None,
    ) -> AsyncGenerator[Batch, None]:
        """What follows ``offset``, for as long as the stream is open; it reconnects after lost connections.

        With ``last`` it begins with the newest so many entries.
        Without ``live`` it waits by SSE, and by long-poll for filters and for text.
        """
        content_type = self.content_type or (await self.info()).content_type
        backoff = Backoff(self._client.settings.retry_for_s)
        tail = Tail(
            self.name,
            offset,
            live,
            content_type=content_type,
            key=key,
            backoff=backoff,
            last=last,
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
        """The metadata of the stream, from its headers."""
        return self._remember_type(
            answers.read_stream_info(self.name, await self._client.send(requests.info(self.name)))
        )

    @property
    def touch(self) -> AsyncTouches:
        """Waits for changes of rows, on a stream of the state protocol."""
        return AsyncTouches(self.name, self._client)

    async def details(self) -> dict[str, Any]:
        """All details of the stream: its contents, its registry, and the state of its indexes."""
        return await self._client.fetch(requests.details(self.name), dict[str, Any])

    async def schema(self) -> Registry:
        """The registry: every schema version, the offset from which each applies, and the lenses between them."""
        return await self._client.fetch(schemas.show(self.name), Registry)

    async def evolve(
        self,
        schema: Any = UNSET,
        lens: Mapping[str, Any] | None = None,
        *,
        routing_key: Setting = UNSET,
        search: Setting = UNSET,
        dry_run: bool = False,
        first_on_data: bool = False,
        on_progress: Callable[[Verification], None] | None = None,
    ) -> Plan:
        """Apply the changes that are passed, and return the plan; with ``dry_run`` only return the plan.

        A first schema needs an empty stream. With ``first_on_data`` it is installed if every stored event fits, which
        may take a while: ``on_progress`` is called with the progress. EventsDoNotFit names events that do not.
        """
        request = schemas.evolve(
            self.name,
            schema,
            lens,
            routing_key=routing_key,
            search=search,
            dry_run=dry_run,
            first_on_data=first_on_data,
        )
        while (answer := await self._client.send(request)).status == 202:
            await self._follow(schemas.read_verified(answer).verification, on_progress)
        return schemas.read_plan(answer)

    async def verify(
        self,
        schema: Any = UNSET,
        lens: Mapping[str, Any] | None = None,
        *,
        routing_key: Setting = UNSET,
        search: Setting = UNSET,
        first_on_data: bool = False,
        tell: Callable[[Verification], None] | None = None,
    ) -> Verified:
        """Check a change against every stored event; ``tell`` is called with the progress."""
        wanted = schemas.evolve(
            self.name,
            schema,
            lens,
            routing_key=routing_key,
            search=search,
            dry_run=True,
            on_data=True,
            first_on_data=first_on_data,
        )
        begun = schemas.read_verified(await self._client.send(wanted))
        return Verified(begun.plan, await self._follow(begun.verification, tell))

    async def _follow(
        self, verification: Verification | None, on_progress: Callable[[Verification], None] | None
    ) -> Verification | None:
        """A verification once it has ended."""
        for pause in schemas.poll_pauses():
            if verification is None or verification.ended:
                break
            await asyncio.sleep(pause)
            verification = await self._client.fetch(schemas.verification(self.name, verification.id), Verification)
            if on_progress is not None:
                on_progress(verification)
        return verification

    async def schema_history(self) -> list[Revision]:
        """Every revision of the registry, the oldest first."""
        return schemas.read_revisions(await self._client.send(schemas.history(self.name)))

    async def profile(self) -> Profile:
        """The profile of the stream: its ``kind``, and its settings."""
        return schemas.read_profile(await self._client.send(schemas.show_profile(self.name)))

    async def set_profile(self, kind: str, settings: Mapping[str, Any] | None = None) -> Profile:
        """Change the profile of the stream; a stream without events and schema gets the schema of the profile."""
        return schemas.read_profile(await self._client.send(schemas.change_profile(self.name, kind, settings)))

    async def plan_profile(self, kind: str, settings: Mapping[str, Any] | None = None) -> Plan:
        """What :meth:`set_profile` would change, and every reason why it would be refused."""
        return schemas.read_plan(
            await self._client.send(schemas.change_profile(self.name, kind, settings, dry_run=True))
        )

    async def search(self, q: str, **options: Unpack[SearchOptions]) -> SearchResult:
        """One page of the events that match, the newest included; a page whose time was over says so."""
        return await self._client.fetch(search.search(self.name, q, **options), SearchResult)

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
        return await self._client.fetch(request, AggregateResult)

    async def routing_keys(self, *, after: str = "", limit: int | None = None) -> AsyncIterator[str]:
        """All routing keys after ``after``, in order; ``limit`` is per page."""
        next_key: str | None = after
        while next_key is not None:
            page, next_key = search.read_routing_keys(
                await self._client.send(search.routing_keys(self.name, next_key, limit))
            )
            for key in page:
                yield key

    async def fork(self, name: str, **options: Unpack[CreateOptions]) -> AsyncStream:
        """Create the stream ``name`` with this one's content up to ``fork_offset``, or up to its tail."""
        fork = AsyncStream(self._client, name)
        await fork.create(**self._fork_options(options))
        return fork

    async def close(self) -> AppendResult:
        """Close the stream for good: nothing more can be appended."""
        return answers.read_append_result(await self._client.send(requests.close(self.name)))

    async def seal(self, *, wait: bool = True) -> SealResult:
        """Publish what is in the log now, and wait until it is in the object store; else wait for some seconds."""
        result = (await self._client.send(requests.seal(self.name))).decode(SealResult)
        while wait and result.state == "sealing":
            later = (await self._client.send(requests.seal(self.name))).decode(SealResult)
            result = later.after(result)
        return result

    async def delete(self) -> None:
        """Delete the stream and what it holds."""
        await self._client.send(requests.delete(self.name))

    def producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """A producer that batches in the background and never appends twice."""
        return AsyncProducer(self._client.settings, self.name, **self._producer_options(options))


class AsyncTouches:
    """The touches of one stream, for callers that await."""

    def __init__(self, name: str, client: AsyncClient) -> None:
        self._name = name
        self._client = client

    async def meta(self, *, settle: bool = False, timeout: float = touches.WAIT_S) -> dict[str, Any]:
        """The state of the journal, with its ``cursor``; with ``settle`` once all appended changes are in it."""
        return await self._client.fetch(touches.meta(self._name, settle, timeout), dict[str, Any])

    async def activate(self, *templates: touches.Template, inactivity: float | None = None) -> touches.Activation:
        """Activate templates, until they are unused for ``inactivity`` seconds."""
        return await self._client.fetch(touches.activate(self._name, templates, inactivity), touches.Activation)

    async def wait(
        self,
        *wanted: str,
        cursor: str = NOW,
        timeout: float = touches.WAIT_S,
        templates: Sequence[touches.Template] = (),
        exact: bool = False,
        coarse: bool = False,
    ) -> touches.Touch:
        """Wait until one of the keys is touched, up to two minutes; inactive templates are activated first."""
        request = touches.wait(self._name, wanted, cursor, timeout, templates, exact=exact, coarse=coarse)
        return await self._client.fetch(request, touches.Touch)

"""Features and entities from Python: register what is to be computed, push events, get rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from headrace.client import features
from headrace.client.aio.client import AsyncClient
from headrace.client.aio.entities import AsyncEntities
from headrace.client.aio.history import AsyncHistoryRows, AsyncTrainingSet, AsyncTypes
from headrace.client.declared import Descriptor, EventSource, Table, collect_descriptors, declared_name
from headrace.client.diffs import Diff
from headrace.client.embedded_server import EmbeddedServer
from headrace.client.errors import PushRefused, RegistrationRefused
from headrace.client.features import (
    MAX_PUSHED_EVENTS,
    GetOptions,
    Key,
    KeyMoment,
    KeyRows,
    Pushed,
    Registered,
    RegisterOptions,
    RegistryVersion,
    Row,
)
from headrace.client.frame_rows import frame_table
from headrace.client.history_question import HistoryQuestion
from headrace.client.requests import Moment, check_options, split_into_batches
from headrace.errors import HeadraceError

Fields = Mapping[str, Any]
#: A table, a key, and the features to get, or all.
Lookup = tuple[str | Table, Key] | tuple[str | Table, Key, Sequence[str]]


class AsyncApp:
    """The features and ``entities`` of one server; close it, or use it in an ``async with`` block.

    ``client`` has the server's streams.
    """

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
        self.client = AsyncClient(url, key, timeout=timeout, retry_for=retry_for, ca_file=ca_file)
        self.entities = AsyncEntities(self.client)
        self._types = AsyncTypes(self.client)
        self._server: EmbeddedServer | None = None

    @classmethod
    async def embedded(cls, path: str | Path, **settings: str) -> Self:
        """The features of an embedded server, a child process with its data below ``path``."""
        server = await asyncio.to_thread(EmbeddedServer, Path(path), settings)
        app = cls(server.url)
        app._server = server
        return app

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, and stop the embedded server."""
        await self.client.close()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)

    async def register(
        self, *descriptors: Descriptor | type | Mapping[str, Any], **options: Unpack[RegisterOptions]
    ) -> Diff:
        """Register these descriptors and their sources as all that the app computes; returns what changed.

        Raises ``RegistrationInvalid`` where they are wrong, and ``RegistrationConflict`` where state would be lost.
        """
        check_options(RegisterOptions, options)
        collected = collect_descriptors(descriptors)
        try:
            return await self.client.fetch(features.register({"descriptors": collected, **options}), Diff)
        except RegistrationRefused as refused:
            refused.facts["names"] = [descriptor.get("name", "") for descriptor in collected]
            raise

    async def registry(self, app: str | None = None) -> Registered:
        """All that is registered, by one app or by all."""
        return await self.client.fetch(features.registry(app), Registered)

    async def registry_history(self, after: int = 0) -> AsyncIterator[RegistryVersion]:
        """Every change of the registry after a version, the oldest first."""
        while page := features.read_versions(await self.client.send(features.history(after))):
            for version in page:
                yield version
            after = page[-1].registry_version

    async def rollback(self, version: int, **options: Unpack[RegisterOptions]) -> Diff:
        """Register what was registered at an earlier version: by one app, or by all."""
        return await self.client.fetch(features.rollback(version, options), Diff)

    async def push(self, event: str | EventSource | type, fields: Fields) -> Pushed:
        """Store one event; on disk, and in every feature, when this returns."""
        return await self.client.fetch(features.push(declared_name(event), fields), Pushed)

    async def push_many(self, event: str | EventSource | type, rows: Iterable[Fields]) -> list[Pushed]:
        """Store many events; raises ``PushRefused`` at the end if some were refused; the others are stored then.

        Any other error on the way has the ``results`` of the events before it among its facts.
        """
        if isinstance(rows, Mapping):
            raise TypeError("rows is one event and not several: use push, or put it into a list")
        name, results = declared_name(event), list[dict[str, Any]]()
        for batch in split_into_batches(rows, MAX_PUSHED_EVENTS):
            try:
                request = features.push(name, batch, first_row=len(results))
                results += features.read_push_results(await self.client.send(request))
            except PushRefused as refused:
                results += refused.facts["results"]
            except HeadraceError as error:
                error.facts["results"] = results
                raise
        return features.check_all_pushed(name, results)

    async def get(self, table: str | Table, key: Key = (), **options: Unpack[GetOptions]) -> Row:
        """The features of a key by now; a key of several fields is a list or a tuple, a global table has none."""
        name = declared_name(table)
        answer = await self.client.send(features.get(name, key, **options))
        types = await self._types.of(answer)
        return features.read_row(answer, types.get(name), explained=options.get("explain", False))

    async def batch_get(self, lookups: Sequence[Lookup]) -> KeyRows:
        """The features of several keys as of one moment: ``(table, key)`` or ``(table, key, features)`` each."""
        named = [(declared_name(table), *rest) for table, *rest in lookups]
        answer = await self.client.send(features.batch_get(named))
        return features.read_rows(answer, named, await self._types.of(answer))

    def history(
        self,
        table: str | Table,
        rows: Iterable[KeyMoment] | Any,
        features: Sequence[str] | None = None,
        *,
        at: str | None = None,
        as_known_at: Moment | None = None,
    ) -> AsyncHistoryRows:
        """The rows of keys, each as it was at its moment: ``(key, moment)`` each, in this order.

        ``rows`` may be a frame of pandas, polars or Arrow with a column for each field of the key, and one of moments:
        the one that ``at`` names, else ``at``, else the only column of moments.

        With ``as_known_at`` only events count that were appended until then, as for ``(key, moment, as_known_at)``, or
        a frame with a column of that name, in which each row has its own.
        """
        question = HistoryQuestion(declared_name(table), rows, features, at=at, as_known_at=as_known_at)
        return AsyncHistoryRows(self.client, self._types, question)

    def training_set(
        self,
        frame: Any,
        tables: Sequence[str | Table] | Mapping[Any, Sequence[str]],
        *,
        at: str | None = None,
        as_known_at: Moment | None = None,
    ) -> AsyncTrainingSet:
        """The rows of a frame with the features of tables, as they were at the moment of each row.

        ``tables`` may say which features of each table. The frame has columns as in :meth:`history`.
        """
        if not tables or isinstance(tables, str):
            raise TypeError("tables are a list of tables, or a dictionary of tables and features")
        rows = frame_table(frame)
        features = tables if isinstance(tables, Mapping) else dict.fromkeys(tables)
        return AsyncTrainingSet(
            [self.history(table, rows, names, at=at, as_known_at=as_known_at) for table, names in features.items()]
        )

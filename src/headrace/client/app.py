# Written by tools/blocking_client.py: change aio/app.py and run it.
"""Features and entities from Python: register what is to be computed, push events, get rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from headrace.client import features
from headrace.client.client import Client
from headrace.client.declared import Descriptor, EventSource, Table, collect_descriptors, declared_name
from headrace.client.diffs import Diff
from headrace.client.embedded_server import EmbeddedServer
from headrace.client.entities import Entities
from headrace.client.errors import PushRefused, RegistrationRefused
from headrace.client.features import (
    MAX_HISTORY_ROWS,
    MAX_PUSHED_EVENTS,
    GetOptions,
    History,
    Key,
    Pushed,
    Registered,
    RegisterOptions,
    RegistryVersion,
    Row,
    poll_history,
    read_history,
    read_history_rows,
    request_history,
)
from headrace.client.requests import Moment, check_options, split_into_batches
from headrace.client.schemas import poll_pauses
from headrace.errors import HeadraceError

Fields = Mapping[str, Any]
#: A table, a key, and the features to get, or all.
Lookup = tuple[str | Table, Key] | tuple[str | Table, Key, Sequence[str]]


class App:
    """The features and ``entities`` of one server; close it, or use it in a ``with`` block.

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
        self.client = Client(url, key, timeout=timeout, retry_for=retry_for, ca_file=ca_file)
        self.entities = Entities(self.client)
        self._server: EmbeddedServer | None = None

    @classmethod
    def embedded(cls, path: str | Path, **settings: str) -> Self:
        """The features of an embedded server, a child process with its data below ``path``."""
        server = EmbeddedServer(Path(path), settings)
        app = cls(server.url)
        app._server = server
        return app

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and stop the embedded server."""
        self.client.close()
        if self._server is not None:
            self._server.stop()

    def register(self, *descriptors: Descriptor | type | Mapping[str, Any], **options: Unpack[RegisterOptions]) -> Diff:
        """Register these descriptors and their sources as all that the app computes; returns what changed.

        Raises ``RegistrationInvalid`` where they are wrong, and ``RegistrationConflict`` where state would be lost.
        """
        check_options(RegisterOptions, options)
        collected = collect_descriptors(descriptors)
        try:
            return self.client.fetch(features.register({"descriptors": collected, **options}), Diff)
        except RegistrationRefused as refused:
            refused.facts["names"] = [descriptor.get("name", "") for descriptor in collected]
            raise

    def registry(self, app: str | None = None) -> Registered:
        """All that is registered, by one app or by all."""
        return self.client.fetch(features.registry(app), Registered)

    def registry_history(self, after: int = 0) -> Iterator[RegistryVersion]:
        """Every change of the registry after a version, the oldest first."""
        while page := features.read_versions(self.client.send(features.history(after))):
            yield from page
            after = page[-1].registry_version

    def rollback(self, version: int, **options: Unpack[RegisterOptions]) -> Diff:
        """Register what was registered at an earlier version: by one app, or by all."""
        return self.client.fetch(features.rollback(version, options), Diff)

    def push(self, event: str | EventSource | type, fields: Fields) -> Pushed:
        """Store one event; on disk, and in every feature, when this returns."""
        return self.client.fetch(features.push(declared_name(event), fields), Pushed)

    def push_many(self, event: str | EventSource | type, rows: Iterable[Fields]) -> list[Pushed]:
        """Store many events; raises ``PushRefused`` at the end if some were refused; the others are stored then.

        Any other error on the way has the ``results`` of the events before it among its facts.
        """
        if isinstance(rows, Mapping):
            raise TypeError("rows is one event and not several: use push, or put it into a list")
        name, results = declared_name(event), list[dict[str, Any]]()
        for batch in split_into_batches(rows, MAX_PUSHED_EVENTS):
            try:
                request = features.push(name, batch, first_row=len(results))
                results += features.read_push_results(self.client.send(request))
            except PushRefused as refused:
                results += refused.facts["results"]
            except HeadraceError as error:
                error.facts["results"] = results
                raise
        return features.check_all_pushed(name, results)

    def get(self, table: str | Table, key: Key = (), **options: Unpack[GetOptions]) -> Row:
        """The features of a key by now; a key of several fields is a list or a tuple, a global table has none."""
        answer = self.client.send(features.get(declared_name(table), key, **options))
        return features.read_row(answer, explained=options.get("explain", False))

    def batch_get(self, lookups: Sequence[Lookup]) -> list[Row]:
        """The features of several keys as of one moment: ``(table, key)`` or ``(table, key, features)`` each."""
        named = [(declared_name(table), *rest) for table, *rest in lookups]
        return features.read_rows(self.client.send(features.batch_get(named)))

    def history(
        self, table: str | Table, rows: Iterable[tuple[Key, Moment]], features: Sequence[str] | None = None
    ) -> Iterator[Row]:
        """The rows of keys, each as it was at its moment: ``(key, moment)`` each, in this order."""
        name = declared_name(table)
        for batch in split_into_batches(rows, MAX_HISTORY_ROWS):
            history = read_history(self.client.send(request_history(name, batch, features)))
            yield from read_history_rows(self._wait_for_history(name, history))

    def _wait_for_history(self, table: str, history: History) -> History:
        """A history query once it has ended."""
        for pause in poll_pauses():
            if history.state != "running":
                break
            time.sleep(pause)
            history = self.client.fetch(poll_history(table, history.id), History)
        return history

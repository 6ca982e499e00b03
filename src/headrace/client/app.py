"""Features and entities from Python: register what is to be computed, push events, get rows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from headrace.client import features
from headrace.client.client import Client
from headrace.client.declared import Descriptor, EventSource, Table, collect_descriptors
from headrace.client.diffs import Diff
from headrace.client.entities import Entities
from headrace.client.errors import PushRefused, Unreachable
from headrace.client.features import (
    MAX_HISTORY_ROWS,
    MAX_PUSHED_EVENTS,
    GetOptions,
    History,
    Key,
    Lookup,
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
from headrace.client.requests import Moment, check_options
from headrace.client.schemas import poll_pauses
from headrace.errors import HeadraceError

Fields = Mapping[str, Any]
Item = TypeVar("Item")


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
        request = features.register({"descriptors": collect_descriptors(descriptors), **options})
        return self.client.fetch(request, Diff)

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
        return self.client.fetch(features.push(_event_or_table_name(event), fields), Pushed)

    def push_many(self, event: str | EventSource | type, rows: Iterable[Fields]) -> list[Pushed]:
        """Store many events; raises ``PushRefused`` at the end if some were refused; the others are stored then.

        Any other error on the way has the ``results`` of the events before it among its facts.
        """
        name, results = _event_or_table_name(event), list[dict[str, Any]]()
        for batch in _batches(rows, MAX_PUSHED_EVENTS):
            try:
                results += features.read_push_results(
                    self.client.send(features.push(name, batch, first_row=len(results)))
                )
            except PushRefused as refused:
                results += refused.facts["results"]
            except HeadraceError as error:
                error.facts["results"] = results
                raise
        return features.check_all_pushed(results)

    def get(self, table: str | Table, key: Key = (), **options: Unpack[GetOptions]) -> Row:
        """The features of a key by now; a key of several fields is a list or a tuple, a global table has none."""
        answer = self.client.send(features.get(_event_or_table_name(table), key, **options))
        return features.read_row(answer, explained=options.get("explain", False))

    def batch_get(self, asked: Sequence[Lookup | tuple[Table, Key]]) -> list[Row]:
        """The features of several keys as of one moment: ``(table, key)`` or ``(table, key, features)`` each."""
        named = [(_event_or_table_name(table), *rest) for table, *rest in asked]
        return features.read_rows(self.client.send(features.batch_get(named)))

    def history(
        self, table: str | Table, rows: Iterable[tuple[Key, Moment]], features: Sequence[str] | None = None
    ) -> Iterator[Row]:
        """The rows of keys, each as it was at its moment: ``(key, moment)`` each, in this order."""
        name = _event_or_table_name(table)
        for batch in _batches(rows, MAX_HISTORY_ROWS):
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


def _event_or_table_name(of: Any) -> str:
    if isinstance(of, str):
        return of
    if isinstance(of, EventSource | Table):
        return of.name
    raise TypeError(f"{of!r} has no name: give a name, or what @hr.event or @hr.table made")


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


_STOP_S = 30.0
_LOG = "embedded.log"


class EmbeddedServer:
    """A server on a data directory; it listens on loopback, at ``url``."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        """Start it and wait until it listens; settings are by the names of the environment, such as ``limits__…``."""
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._process = _start_server(data_dir.resolve(), settings)
        self._stop = weakref.finalize(self, _end_server, self._process)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.stop()
            reason = (data_dir / _LOG).read_text().strip().rpartition("\n")[2]
            raise Unreachable(f"the embedded server did not start: {reason}", sent=False)

    def stop(self) -> None:
        """Ask it to finish, and wait."""
        self._stop()


def _start_server(data_dir: Path, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        "HEADRACE_SERVER__PORT": "0",
        "HEADRACE_STORAGE__DATA_DIR": str(data_dir),
        **{f"HEADRACE_{name.upper()}": value for name, value in settings.items()},
    }
    with open(data_dir / _LOG, "a", opener=_open_private) as log:
        command = [sys.executable, "-m", "headrace.server"]
        # In its own directory no headrace.toml of somebody else's is found.
        return subprocess.Popen(command, env=environ, cwd=data_dir, stdout=subprocess.PIPE, stderr=log, text=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _end_server(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()

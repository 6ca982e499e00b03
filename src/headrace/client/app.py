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
from headrace.client.declared import Descriptor, EventSource, Table, gathered
from headrace.client.diffs import Diff
from headrace.client.entities import Entities
from headrace.client.errors import PushRefused, Unreachable
from headrace.client.features import (
    HISTORY_ROWS,
    PUSH_EVENTS,
    Asked,
    GetOptions,
    History,
    Key,
    Pushed,
    Registered,
    RegisterOptions,
    RegistryVersion,
    Row,
    history_rows,
    history_status,
    poll_history,
    request_history,
    started_history,
)
from headrace.client.requests import Moment, known
from headrace.client.schemas import pauses
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
        """The features of a server of one's own, in a child process, with its data below ``path``."""
        server = EmbeddedServer(Path(path), settings)
        app = cls(server.url)
        app._server = server
        return app

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections, and end the embedded server."""
        self.client.close()
        if self._server is not None:
            self._server.stop()

    def register(self, *descriptors: Descriptor | type | Mapping[str, Any], **options: Unpack[RegisterOptions]) -> Diff:
        """Make these, and what they are made of, all that is computed; answers what that changed.

        Raises ``RegistrationInvalid`` where they are wrong, and ``RegistrationConflict`` where state would be lost.
        """
        known(RegisterOptions, options)
        request = features.register({"descriptors": gathered(descriptors), **options})
        return features.diff(self.client.send(request))

    def registry(self, app: str | None = None) -> Registered:
        """All that is registered, by one app or by all."""
        return features.registered(self.client.send(features.registry(app)))

    def registry_history(self, after: int = 0) -> Iterator[RegistryVersion]:
        """Every change of the registry after a version, the oldest first."""
        while page := features.versions(self.client.send(features.history(after))):
            yield from page
            after = page[-1].registry_version

    def rollback(self, version: int, **options: Unpack[RegisterOptions]) -> Diff:
        """Register what was registered at an earlier version: by one app, or by all."""
        return features.diff(self.client.send(features.rollback(version, options)))

    def push(self, event: str | EventSource | type, fields: Fields) -> Pushed:
        """Store one event; on disk, and in every feature, when this returns."""
        return features.pushed(self.client.send(features.push(_name(event), fields)))

    def push_many(self, event: str | EventSource | type, rows: Iterable[Fields]) -> list[Pushed]:
        """Store many events; raises ``PushRefused`` at the end where some were refused, and the others are stored.

        Whatever else is raised on the way has the ``results`` of the events before among its facts.
        """
        name, results = _name(event), []
        for some in _batches(rows, PUSH_EVENTS):
            try:
                results += features.results(self.client.send(features.push(name, some)))
            except PushRefused as refused:
                results += refused.facts["results"]
            except HeadraceError as error:
                error.facts["results"] = results
                raise
        return features.all_pushed(results)

    def get(self, table: str | Table, key: Key = (), **options: Unpack[GetOptions]) -> Row:
        """The features of a key by now; a key of several fields is a list or a tuple, a global table has none."""
        answer = self.client.send(features.get(_name(table), key, **options))
        return features.row(answer, explained=options.get("explain", False))

    def batch_get(self, asked: Sequence[Asked | tuple[Table, Key]]) -> list[Row]:
        """The features of several keys as of one moment: ``(table, key)`` or ``(table, key, features)`` each."""
        named = [(_name(table), *rest) for table, *rest in asked]
        return features.rows(self.client.send(features.batch_get(named)))

    def history(
        self, table: str | Table, rows: Iterable[tuple[Key, Moment]], features: Sequence[str] | None = None
    ) -> Iterator[Row]:
        """The rows of keys, each as it was at its moment: ``(key, moment)`` each, in this order."""
        name = _name(table)
        for some in _batches(rows, HISTORY_ROWS):
            history = started_history(self.client.send(request_history(name, some, features)))
            yield from history_rows(self._finished(name, history))

    def _finished(self, table: str, history: History) -> History:
        """A question once it is answered."""
        for pause in pauses():
            if history.state != "running":
                break
            time.sleep(pause)
            history = history_status(self.client.send(poll_history(table, history.id)))
        return history


def _name(of: Any) -> str:
    if isinstance(of, str):
        return of
    if isinstance(of, EventSource | Table):
        return of.name
    raise TypeError(f"{of!r} has no name: give a name, or what @hr.event or @hr.table made")


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some


_STOP_S = 30.0
_LOG = "embedded.log"


class EmbeddedServer:
    """A server on a data directory; it listens on loopback, at ``url``."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        """Start it and wait until it listens; settings are by the names of the environment, such as ``limits__…``."""
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._process = _start(data_dir.resolve(), settings)
        self._stop = weakref.finalize(self, _end, self._process)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.stop()
            reason = (data_dir / _LOG).read_text().strip().rpartition("\n")[2]
            raise Unreachable(f"the embedded server did not start: {reason}", sent=False)

    def stop(self) -> None:
        """Ask it to finish, and wait."""
        self._stop()


def _start(data_dir: Path, settings: Mapping[str, str]) -> subprocess.Popen[str]:
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


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()

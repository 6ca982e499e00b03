"""A load of everything at once on one server, for a bounded time, while its memory and its open files are watched.

``python -m bench.mixed --seconds 180 --auto-tune 1024`` runs ``headrace up`` under it, and prints what the server held.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.answers import _UPDATE, ARRAY, _aggregate, _array, _now
from bench.features.pipelines import FIFTEEN, user_name
from bench.observing import id_of, version
from bench.requests import numbered, stream_path
from bench.search import with_pipeline
from bench.searching.asking import Caller
from bench.serving import Running, fresh_directory, serving
from bench.targets import TARGETS, Target

MIXED, LARGE = "answers", "large"
USERS, PEOPLE, STREAMS, READERS = 50_000, 20_000, 500, 40
LARGE_BYTES = 4_000_000
_PAUSE_S = 0.02
_EVERY_S = 0.25
_SEAL = {"HEADRACE_STORAGE__SEAL_BYTES": str(1 << 20), "HEADRACE_STORAGE__SEAL_AGE_S": "2"}
_WORK = {"HEADRACE_PIPELINE__MIN_ROWS": "1000", "HEADRACE_PIPELINE__MASTER": "local[1]"}


@dataclass
class Held:
    """What a server held at one moment: its memory in bytes, and how many files, of these deleted ones."""

    resident: int
    anonymous: int
    files: int
    deleted: int

    @classmethod
    def of(cls, server: Running) -> Held:
        """What it holds now."""
        process = Path(f"/proc/{server.process.pid}")
        status = process.joinpath("status").read_text()
        resident, anonymous = (int(status.split(f"{name}:")[1].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
        targets = [_target(path) for path in process.joinpath("fd").iterdir()]
        return cls(resident, anonymous, len(targets), sum(target.endswith("(deleted)") for target in targets))


@dataclass
class Watched:
    """The most that a server held, by what was counted."""

    most: Held
    samples: list[tuple[float, Held]] = field(default_factory=list)

    def note(self, held: Held, seconds: float) -> None:
        """Take a sample."""
        self.samples.append((seconds, held))
        self.most = Held(*(max(getattr(one, name) for one in (self.most, held)) for name in vars(held)))


class Mixed:
    """Clients of every kind, each a thread in a closed loop."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._stop = threading.Event()
        self.done, self.statuses = Counter[str](), Counter[str]()

    def prepare(self) -> None:
        """Declare everything that the clients use."""
        for stream in (MIXED, LARGE, *(numbered("many", number) for number in range(STREAMS))):
            self._server.create(stream)
        self._ask("POST", f"{stream_path(MIXED)}/_schema", _UPDATE)
        self._ask("POST", "/v1/register", {"nodes": FIFTEEN.nodes()})
        self._ask("POST", "/v1/entity-types", version("1.0.0", {"tags": "merge_array"}))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let all clients run while the block does."""
        kinds = [self._arrays, self._singles, self._large, self._reads, self._live, self._searches, self._searches]
        kinds += [self._aggregates, self._filters, self._features, self._entities]
        threads = [threading.Thread(target=self._run, args=(kind,), daemon=True) for kind in kinds]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)

    def _run(self, kind: Callable[[Caller], Iterator[None]]) -> None:
        caller, name = Caller(self._server.port), kind.__name__.removeprefix("_")
        while not self._stop.is_set():
            try:
                for _ in kind(caller):
                    self.done[name] += 1
                    if self._stop.wait(_PAUSE_S):
                        break
            except (OSError, ValueError) as reason:
                self.statuses[f"{name} {type(reason).__name__}"] += 1
                caller.hang_up()
                self._stop.wait(0.5)
        caller.hang_up()

    def _ask(self, method: str, path: str, body: Any) -> None:
        answer = Caller(self._server.port).ask(method, path, body)
        if answer.status >= 300:
            raise OSError(f"{method} {path}: {answer.status} {answer.body[:500]!r}")

    def _send(self, caller: Caller, kind: str, method: str, path: str, body: Any = None) -> bytes:
        answer = caller.ask(method, path, body)
        self.statuses[f"{kind} {answer.status}"] += 1
        if answer.status in (429, 503):
            self._stop.wait(0.2)
        return answer.body

    def _arrays(self, caller: Caller) -> Iterator[None]:
        bodies = [json.loads(_array(number)) for number in range(4)]
        for number in range(1 << 30):
            at = _now().decode()
            events = [
                {**event, "at": at, "user": f"u-{number * ARRAY + n}"} for n, event in enumerate(bodies[number % 4])
            ]
            self._send(caller, "arrays", "POST", stream_path(MIXED), events)
            yield

    def _singles(self, caller: Caller) -> Iterator[None]:
        choose = random.Random(1)
        for number in range(1 << 30):
            name = numbered("many", choose.randrange(STREAMS))
            for _ in range(20):
                self._send(caller, "singles", "POST", stream_path(name), {"number": number, "text": "x" * 60})
            if number % 10 == 0:
                passing = stream_path(numbered("passing", number))
                self._send(caller, "create", "PUT", passing)
                self._send(caller, "delete", "DELETE", passing)
            yield

    def _large(self, caller: Caller) -> Iterator[None]:
        bodies = [
            [{"number": n, "text": chr(97 + shift + n % 20) * 400} for n in range(LARGE_BYTES // 420)]
            for shift in (0, 5)
        ]
        for number in range(1 << 30):
            self._send(caller, "large", "POST", stream_path(LARGE), bodies[number % 2])
            yield
            self._stop.wait(1.0)

    def _reads(self, caller: Caller) -> Iterator[None]:
        while True:
            for stream in (MIXED, LARGE):
                offset = "-1"
                for _ in range(40):
                    path = f"{stream_path(stream)}?offset={offset}"
                    caller._connection.request("GET", path)
                    response = caller._connection.getresponse()
                    response.read()
                    self.statuses[f"reads {response.status}"] += 1
                    yield
                    if response.getheader("Stream-Up-To-Date") or response.status != 200:
                        break
                    offset = str(response.getheader("Stream-Next-Offset"))

    def _live(self, _: Caller) -> Iterator[None]:
        with ExitStack() as stack:
            readers = []
            for number in range(READERS):
                stream = MIXED if number % 4 else LARGE
                reader = stack.enter_context(socket.create_connection(("127.0.0.1", self._server.port), timeout=5))
                reader.sendall(f"GET {stream_path(stream)}?offset=now&live=sse HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                readers.append(reader)
            for number in range(1500):
                # A few take nothing, and what they are sent piles up.
                for reader in readers[READERS // 8 :: 2] if number % 2 else readers[READERS // 8 + 1 :: 2]:
                    reader.setblocking(False)
                    try:
                        if not reader.recv(1 << 18):
                            return
                    except BlockingIOError:
                        pass
                yield

    def _searches(self, caller: Caller) -> Iterator[None]:
        questions = (
            {"q": "message:needle", "size": 50, "track_total_hits": True},
            {"q": "service:svc-03", "size": 100, "sort": ["ms:desc"]},
            {"q": "message:upstream message:retry", "size": 20},
            {"q": "ms:>120", "size": 500},
        )
        while True:
            for question in questions:
                self._send(caller, "search", "POST", f"{stream_path(MIXED)}/_search", question)
                yield

    def _aggregates(self, caller: Caller) -> Iterator[None]:
        while True:
            self.statuses[f"aggregate {_aggregate(caller).status}"] += 1
            yield

    def _filters(self, caller: Caller) -> Iterator[None]:
        while True:
            self._send(caller, "filter", "GET", f"{stream_path(MIXED)}?offset=-1&filter=service:svc-07")
            yield
            self._stop.wait(0.2)

    def _features(self, caller: Caller) -> Iterator[None]:
        choose = random.Random(2)
        for number in range(1 << 30):
            events = [json.loads(FIFTEEN.make(number * 200 + n, choose.randrange(USERS))) for n in range(200)]
            self._send(caller, "push", "POST", f"/v1/push/{FIFTEEN.event}", events)
            asked = [{"table": FIFTEEN.table, "key": user_name(choose.randrange(USERS))} for _ in range(200)]
            self._send(caller, "get", "POST", "/v1/get", asked[0])
            self._send(caller, "batch_get", "POST", "/v1/batch_get", {"requests": asked})
            yield

    def _entities(self, caller: Caller) -> Iterator[None]:
        choose = random.Random(3)
        for number in range(1 << 30):
            entities = [
                {
                    "entity_type": "person",
                    "email": f"u-{choose.randrange(PEOPLE):06d}@example.com",
                    "name": f"Person {number}",
                    "score": n,
                    "tags": [f"t{n % 7}"],
                }
                for n in range(200)
            ]
            self._send(caller, "observe", "POST", "/v1/observations", {"entities": entities})
            self._send(caller, "entity", "GET", f"/v1/entities/{id_of(choose.randrange(PEOPLE))}")
            yield


def sizes(target: Target, limit_mb: int) -> Target:
    """The server with a memory limit, or with its default where that is 0, which publishes and indexes often."""
    chosen = with_pipeline(target).with_settings(**_SEAL, **_WORK)
    if not limit_mb:
        return chosen
    command = chosen.command
    return replace(chosen, command=lambda port, home: [*command(port, home), f"--auto-tune={limit_mb}"])


def watch(server: Running, seconds: float, rest_seconds: float) -> tuple[Watched, Held, Mixed]:
    """What the server held under the load, and what it holds after a rest."""
    mixed = Mixed(server)
    mixed.prepare()
    watched, began = Watched(Held.of(server)), time.monotonic()
    with mixed.running():
        while time.monotonic() - began < seconds:
            watched.note(Held.of(server), time.monotonic() - began)
            time.sleep(_EVERY_S)
    ends = time.monotonic() + rest_seconds
    while time.monotonic() < ends:
        watched.note(Held.of(server), time.monotonic() - began)
        time.sleep(_EVERY_S)
    return watched, Held.of(server), mixed


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _line(title: str, held: Held) -> str:
    megabytes = f"{held.resident / 1e6:,.0f} MB resident, {held.anonymous / 1e6:,.0f} MB of it anonymous"
    return f"{title}: {megabytes}, {held.files} open files, {held.deleted} of them deleted"


def main() -> None:
    """Run one server under the load, and print what it held."""
    parser = argparse.ArgumentParser(prog="python -m bench.mixed", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rest", type=float, default=60.0, help="seconds without load at the end")
    parser.add_argument("--auto-tune", type=int, default=0, help="memory limit in MB; 0: the server's default")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE in the environment of the server")
    options = parser.parse_args()
    target = sizes(TARGETS[0], options.auto_tune).with_settings(**dict(pair.split("=", 1) for pair in options.set))
    space = Path(tempfile.mkdtemp(prefix="mixed-"))
    try:
        with fresh_directory(target, space) as directory, serving(target, directory) as server:
            watched, rest, mixed = watch(server, options.seconds, options.rest)
            account = json.loads(server.ask("GET", "/v1/server/_mem"))
    finally:
        shutil.rmtree(space, ignore_errors=True)
    for seconds, held in watched.samples[:: max(1, len(watched.samples) // 24)]:
        print(_line(f"after {seconds:5.0f} s", held))
    print(_line("most", watched.most))
    print(_line("after the rest", rest))
    print(json.dumps({name: account[name] for name in ("runtime_bytes", "process_breakdown")}, indent=1))
    print(dict(sorted(mixed.done.items())), dict(sorted(mixed.statuses.items())), sep="\n")


if __name__ == "__main__":
    main()

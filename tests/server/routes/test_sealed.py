"""Streams whose history is in segments answer as those do whose history is in rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.format.object_names import name_hash
from server.registries import WHOLE, append, evolve, installed, name_of, post, rename, shape
from support.s3 import S3

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

JSON = {"content-type": "application/json"}
OCTETS = {"content-type": "application/octet-stream"}
Code = Callable[[Any], str]
Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]
Settle = Callable[..., None]
ApiOf = Callable[..., "Api"]


@pytest.fixture(scope="module")
def sealing(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that publishes everything as soon as it can, in small segments."""
    eager = {"storage__seal_age_s": "0", "storage__seal_rows": "8", "limits__read_bytes": "400"}
    started = type(server)(tmp_path_factory.mktemp("sealing") / "data", eager).start()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def api(api: Api, sealing: ServerProcess) -> Iterator[Api]:
    """Requests to that server."""
    eager = type(api)(sealing.url)
    yield eager
    eager.client.close()


@pytest.fixture(scope="module")
def settle(eventually: Eventually) -> Settle:
    """Waits until streams are published, to their last entries."""

    def wait(api: Api, *paths: str) -> None:
        for path in paths:
            eventually(lambda path=path: api.get(f"{path}/_details").json()["stream"]["wal_rows"] == "0")

    return wait


def _objects(server: ServerProcess, path: str) -> list[Path]:
    """The objects of a stream."""
    root = server.data_dir / "objects"
    place = name_hash(name_of(path))
    return [file for kind in ("manifests", "segments") for file in (root / kind / place).rglob("*.*")]


def _follow(api: Api, path: str, offset: str = "-1", **query: Any) -> list[Any]:
    """Everything from an offset on, page by page."""
    found: list[Any] = []
    while True:
        answer = api.get(path, offset=offset, **query)
        assert answer.status_code == 200, answer.text
        found += answer.json()
        if "stream-up-to-date" in answer.headers:
            return found
        assert answer.headers["stream-next-offset"] > offset
        offset = answer.headers["stream-next-offset"]


# -- reading


def test_every_page_and_every_offset_stay_the_same(api: Api, settle: Settle) -> None:
    path = api.stream()
    places = [api.post(path, [f"{n:050}", n]).headers["stream-next-offset"] for n in range(30)]
    expected = [entry for n in range(30) for entry in (f"{n:050}", n)]
    settle(api, path)
    assert _follow(api, path) == expected
    for place, offset in enumerate(places[:-1]):
        answer = api.get(path, offset=offset)
        found = answer.json()
        assert found == expected[2 * place + 2 :][: len(found)]
        assert answer.headers["stream-end-offset"] == places[-1]
    assert len(api.get(path).content) <= 420
    assert api.get(path, offset=places[-1]).json() == []


def test_bytes_are_read_end_to_end(api: Api, settle: Settle) -> None:
    path = api.octets(*(b"%03d;" % n for n in range(20)))
    settle(api, path)
    found, offset = b"", "-1"
    while len(found) < 80:
        answer = api.get(path, offset=offset)
        found, offset = found + answer.content, answer.headers["stream-next-offset"]
    assert found == b"".join(b"%03d;" % n for n in range(20))
    assert answer.headers["stream-up-to-date"] == "true"


def test_old_and_new_entries_follow_each_other(api: Api, settle: Settle) -> None:
    path = api.stream(1, 2)
    settle(api, path)
    api.post(path, [3])
    assert _follow(api, path) == [1, 2, 3]
    assert _follow(api, path, offset=api.offset(path)) == []


def test_keys_are_found_in_segments_and_rows(api: Api, settle: Settle) -> None:
    path = api.stream()
    for n in range(40):
        api.post(path, [n], {"stream-key": f"k{n % 4}"})
    settle(api, path)
    api.post(path, ["new"], {"stream-key": "k3"})
    assert _follow(api, path, key="k3") == [*range(3, 40, 4), "new"]
    assert _follow(api, path, key="none") == []
    assert _follow(api, f"{path}/pk/k1") == [*range(1, 40, 4)]


def test_entries_with_keys_of_their_own_are_told_apart(api: Api, settle: Settle) -> None:
    path = api.stream()
    assert post(api, path, routingKey={"jsonPointer": "/user", "required": False}).status_code == 200
    events = [{"user": f"u{n % 3}", "n": n} for n in range(20)]
    for start in range(0, 20, 4):
        append(api, path, *events[start : start + 4])
    settle(api, path)
    assert [event["n"] for event in _follow(api, path, key="u1")] == [*range(1, 20, 3)]


def test_a_moment_is_found_in_segments_and_rows(api: Api, settle: Settle) -> None:
    path = api.stream()
    for n in range(20):
        api.post(path, [n], {"stream-timestamp": f"2020-01-01T00:00:{n:02}Z"})
    settle(api, path)
    api.post(path, ["new"])
    for since, first in (("2020-01-01T00:00:07Z", 7), ("2020-01-01T00:00:18.5Z", 19), ("2000-01-01T00:00:00Z", 0)):
        for live in ("false", "long-poll"):
            answer = api.get(path, since=since, live=live)
            rest = _follow(api, path, answer.headers["stream-next-offset"])
            assert answer.json() + rest == [*range(first, 20), "new"]
    assert api.get(path, since="2021-01-01T00:00:00Z").json() == ["new"]


def test_a_tag_is_still_good_after_a_restart(start_server: StartServer, api_of: ApiOf, settle: Settle) -> None:
    server = start_server(storage__seal_age_s="0")
    api = api_of(server)
    path = api.stream(1, 2, 3)
    unsealed = api.get(path, offset="-1").headers["etag"]
    settle(api, path)
    sealed = api.get(path, offset="-1")
    assert sealed.headers["etag"] == unsealed
    assert sealed.json() == [1, 2, 3]
    server.kill()
    api = api_of(server.start())
    again = api.get(path, {"if-none-match": unsealed}, offset="-1")
    assert again.status_code == 304
    assert again.content == b""
    assert api.get(path).json() == [1, 2, 3]


# -- waiting


def test_a_long_poll_is_answered_from_a_segment_and_at_the_tail(
    sealing: ServerProcess, api: Api, connect: Connect, settle: Settle, eventually: Eventually
) -> None:
    path = api.stream(1, 2)
    settle(api, path)
    assert api.get(path, live="long-poll", offset="-1").json() == [1, 2]
    wire = connect(sealing).request("GET", f"{path}?live=long-poll&offset={api.offset(path)}&timeout=8s")
    eventually(lambda: api.metric("headrace_watchers") == 1)
    api.post(path, [3])
    assert wire.answer().body == b"[3]"
    assert api.metric("headrace_watchers") == 0


def test_a_long_poll_for_a_key_reads_all_of_history_before_it_waits(
    sealing: ServerProcess, api: Api, connect: Connect, settle: Settle, eventually: Eventually
) -> None:
    path = api.stream(*range(30))
    settle(api, path)
    wire = connect(sealing).request("GET", f"{path}?live=long-poll&offset=-1&key=k&timeout=8s")
    eventually(lambda: api.metric("headrace_watchers") == 1)
    api.post(path, ["mine"], {"stream-key": "k"})
    answer = wire.answer()
    assert answer.body == b'["mine"]'
    assert answer.headers["stream-up-to-date"] == "true"


def test_a_long_poll_at_the_end_of_time_says_nothing_new(api: Api, settle: Settle) -> None:
    path = api.stream(1)
    settle(api, path)
    answer = api.get(path, live="long-poll", offset="-1", key="k", timeout="100ms")
    assert answer.status_code == 204
    assert answer.headers["stream-next-offset"] == api.offset(path)


def test_sse_goes_through_segments_to_the_tail(
    sealing: ServerProcess, api: Api, connect: Connect, settle: Settle, eventually: Eventually
) -> None:
    path = api.stream(*(f"{n:060}" for n in range(30)))
    settle(api, path)
    wire = connect(sealing).request("GET", f"{path}?live=sse&offset=-1")
    assert wire.head()[0] == 200
    seen: list[Any] = []
    while len(seen) < 30:
        event = wire.event()
        assert event is not None
        seen += event.json if event.kind == "data" else []
    assert seen == [f"{n:060}" for n in range(30)]
    api.post(path, ["new"])
    while (event := wire.event()) is not None and event.kind != "data":
        pass
    assert event is not None and event.json == ["new"]
    wire.close()
    eventually(lambda: api.metric("headrace_watchers") == 0)


# -- shapes


def test_sealed_entries_come_out_in_the_newest_version(api: Api, settle: Settle) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, *({"a": n} for n in range(10)))
    settle(api, path)
    evolve(api, path, shape(b=WHOLE), rename("a", "b"))
    append(api, path, {"b": 10})
    for _ in range(2):  # with the second version in a row, then in a segment
        assert _follow(api, path) == [{"b": n} for n in range(11)]
        assert _follow(api, path, schema_version=1) == [{"a": n} for n in range(11)]
        settle(api, path)
    assert api.get(path, live="long-poll", offset="-1").json() == [{"b": n} for n in range(11)]


def test_a_sealed_entry_without_a_form_is_named_after_what_comes_before_it(
    api: Api, settle: Settle, code_of: Code
) -> None:
    path = installed(api, shape("k", a={"type": "integer", "maximum": 9}, k={"type": "string"}))
    post(api, path, routingKey={"jsonPointer": "/k", "required": False})
    evolve(api, path, shape("k", a=WHOLE, k={"type": "string"}))
    places = [append(api, path, {"a": a, "k": k}) for a, k in ((1, "x"), (2, "y"), (10, "x"), (3, "x"), (11, "y"))]
    settle(api, path)
    first = api.get(path, schema_version=1)
    assert [event["a"] for event in first.json()] == [1, 2]
    assert first.headers["stream-next-offset"] == places[1]
    refused = api.get(path, schema_version=1, offset=places[1])
    assert refused.status_code == 409
    assert code_of(refused) == "not_representable"
    assert refused.json()["error"]["offset"] == places[2]
    rest = api.get(path, schema_version=1, offset=places[2])
    assert [event["a"] for event in rest.json()] == [3]
    assert rest.headers["stream-next-offset"] == places[3]
    keyed = api.get(path, schema_version=1, key="x")
    assert [event["a"] for event in keyed.json()] == [1]
    refused = api.get(path, schema_version=1, key="x", offset=keyed.headers["stream-next-offset"])
    assert refused.status_code == 409
    assert code_of(refused) == "not_representable"
    after = api.get(path, schema_version=1, key="x", offset=refused.json()["error"]["offset"])
    assert [event["a"] for event in after.json()] == [3]


def test_many_entries_before_one_without_a_form_are_turned_once(
    start_server: StartServer, api_of: ApiOf, settle: Settle
) -> None:
    server = start_server(storage__seal_age_s="0")
    api = api_of(server)
    path = installed(api, shape(a={"type": "integer", "maximum": 9}))
    evolve(api, path, shape(a=WHOLE))
    append(api, path, *({"a": n % 10} for n in range(5_000)), {"a": 10})
    settle(api, path)
    began = time.monotonic()
    found = api.get(path, schema_version=1)
    assert time.monotonic() - began < 2
    assert found.status_code == 200
    assert len(found.json()) == 5_000


# -- forks


def _fork(api: Api, source: str, **headers: str) -> str:
    path = api.name()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    created = api.put(path, headers={"stream-forked-from": source, **named})
    assert created.status_code == 201, created.text
    return path


def test_sealed_history_is_forked_anywhere(api: Api, settle: Settle) -> None:
    source = api.stream()
    places = [api.post(source, [n, f"{n}"]).headers["stream-next-offset"] for n in range(10)]
    settle(api, source)
    everything = [entry for n in range(10) for entry in (n, f"{n}")]
    forks = [_fork(api, source, stream_fork_offset=places[n]) for n in (0, 4, 9)]
    cut = _fork(api, source, stream_fork_offset=places[4], stream_fork_sub_offset="1")
    for path, inherited in zip([*forks, cut], (2, 10, 20, 11), strict=True):
        assert _follow(api, path) == everything[:inherited]
        api.post(path, ["own"])
    settle(api, *forks, cut)
    leaf = _fork(api, cut)
    assert api.delete(source).status_code == 204
    assert _follow(api, leaf) == [*everything[:11], "own"]
    assert _follow(api, leaf, offset=places[3]) == [*everything[8:11], "own"]


@pytest.mark.parametrize(("sub", "inherited"), [("2", b"he"), ("5", b"hello")])
def test_sealed_bytes_are_forked_within_an_entry_and_after_it(
    api: Api, settle: Settle, sub: str, inherited: bytes
) -> None:
    source = api.octets(b"hello", b"world")
    settle(api, source)
    path = _fork(api, source, stream_fork_offset="0" * 26, stream_fork_sub_offset=sub)
    assert api.get(path).content == inherited


def test_a_deleted_stream_takes_its_objects_along_and_its_successor_sees_none(
    sealing: ServerProcess, api: Api, settle: Settle, eventually: Eventually
) -> None:
    path = api.stream("old")
    settle(api, path)
    assert _objects(sealing, path)
    assert api.delete(path).status_code == 204
    assert api.put(path, ["new"]).status_code == 201
    assert api.get(path).json() == ["new"]
    settle(api, path)
    eventually(lambda: len({file.parent.name for file in _objects(sealing, path)}) == 1)
    assert api.get(path).json() == ["new"]


# -- what goes wrong


def test_a_missing_segment_is_named_and_nobody_is_left_waiting(
    sealing: ServerProcess, api: Api, connect: Connect, settle: Settle, eventually: Eventually, code_of: Code
) -> None:
    path, other = api.stream(1), api.stream(2)
    settle(api, path, other)
    for file in _objects(sealing, path):
        if file.suffix == ".parquet":
            file.unlink()
    refused = api.get(path)
    assert refused.status_code == 500
    assert code_of(refused) == "object_missing"
    assert refused.json()["error"]["object"].startswith(f"segments/{name_hash(name_of(path))}")
    polled = api.get(path, live="long-poll", offset="-1", timeout="300ms")
    assert polled.status_code == 500
    assert code_of(polled) == "object_missing"
    eventually(lambda: api.metric("headrace_watchers") == 0)
    answer = connect(sealing).request("GET", f"{path}?live=sse&offset=-1").answer()
    assert answer.status == 500
    assert answer.code() == "object_missing"
    eventually(lambda: api.metric("headrace_watchers") == 0)
    assert api.get(other).json() == [2]
    assert api.post(path, [3]).status_code == 204


def test_appends_and_readers_go_on_while_streams_are_sealed(api: Api, eventually: Eventually) -> None:
    path, stop = api.stream(), threading.Event()
    written: list[str] = []
    wrong: list[Any] = []

    def write() -> None:
        for n in range(400):
            entries = [f"{n}.{m}" for m in range(3)]
            answer = api.post(path, entries)
            if answer.status_code != 204:
                wrong.append(answer.text)
            written.extend(entries)
        stop.set()

    def read() -> None:
        while not stop.is_set():
            least = len(written)
            found = _follow(api, path)
            known = min(len(found), len(written))
            if found[:known] != written[:known] or len(found) < least:
                wrong.append((least, found[-5:]))

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert _follow(api, path) == written
    eventually(lambda: api.get(f"{path}/_details").json()["stream"]["wal_rows"] == "0")
    assert _follow(api, path) == written


def test_a_second_server_on_the_same_store_fences_the_first(
    tmp_path: Path, start_server: StartServer, api_of: ApiOf, settle: Settle, eventually: Eventually, code_of: Code
) -> None:
    store = str(tmp_path / "store")
    old = api_of(start_server(data="old", storage__object_store=store, storage__seal_age_s="0"))
    path = old.stream(1, 2)
    settle(old, path)
    new = api_of(start_server(data="new", storage__object_store=store, storage__seal_age_s="0"))
    assert new.get(path).json() == [1, 2]
    old.post(path, ["lost"])
    eventually(lambda: old.post(path, ["refused"]).status_code == 503)
    refused = old.post(path, ["refused"])
    assert code_of(refused) == "node_fenced"
    assert old.get(path).json()[:2] == [1, 2]
    new.post(path, [3])
    settle(new, path)
    assert new.get(path).json() == [1, 2, 3]


# -- a store that does not answer


def test_a_full_backlog_is_429_until_the_store_is_back(
    bucket: S3, start_server: StartServer, api_of: ApiOf, settle: Settle, eventually: Eventually, code_of: Code
) -> None:
    server = start_server(
        storage__object_store=bucket.url,
        storage__store_timeout_s="1",
        storage__seal_age_s="0",
        storage__backlog_bytes="20000",
    )
    api = api_of(server)
    path, written = api.stream(), []
    bucket.outage.set()
    refused = None
    until = time.monotonic() + 20
    while refused is None and time.monotonic() < until:
        answer = api.post(path, ["x" * 1_000])
        if answer.status_code == 429:
            refused = answer
        else:
            assert answer.status_code == 204, answer.text
            written.append("x" * 1_000)
        time.sleep(0.01)
    assert refused is not None and code_of(refused) == "overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    assert _follow(api, path) == written
    assert api.put(api.name(), headers=JSON).status_code == 201
    bucket.outage.clear()
    eventually(lambda: api.post(path, ["more"]).status_code == 204, within_s=30)
    settle(api, path)
    assert _follow(api, path) == [*written, "more"]
    assert server.stop() == 0


def test_what_a_service_holds_is_read_after_a_restart_and_refused_while_it_is_away(
    bucket: S3, start_server: StartServer, api_of: ApiOf, settle: Settle, code_of: Code
) -> None:
    settings = {"storage__object_store": bucket.url, "storage__store_timeout_s": "1", "storage__seal_age_s": "0"}
    server = start_server(**settings)
    api = api_of(server)
    path = api.stream(1, 2)
    settle(api, path)
    server.stop()
    for file in (server.data_dir / "cache").iterdir():
        file.unlink()
    bucket.outage.set()
    api = api_of(server.start())
    assert api.post(path, [3]).status_code == 204
    refused = api.get(path)
    assert refused.status_code == 503
    assert code_of(refused) == "store_unavailable"
    bucket.outage.clear()
    assert _follow(api, path) == [1, 2, 3]


def test_a_read_that_waits_for_the_store_is_timed_out_and_is_quick_once_it_has_answered(
    bucket: S3, start_server: StartServer, api_of: ApiOf, settle: Settle, eventually: Eventually, code_of: Code
) -> None:
    server = start_server(storage__object_store=bucket.url, storage__seal_age_s="0", server__resolver_timeout_s="0.3")
    api = api_of(server)
    path = api.stream(1, 2)
    settle(api, path)
    server.stop()
    for file in (server.data_dir / "cache").iterdir():
        file.unlink()
    api = api_of(server.start())
    bucket.answers = "hang"
    bucket.outage.set()
    begun = time.monotonic()
    refused = api.get(path)
    assert refused.status_code == 408
    assert code_of(refused) == "request_timeout"
    assert 0.25 < time.monotonic() - begun < 3
    assert api.head(path).status_code == 200  # the connection is as good as new
    bucket.outage.clear()
    bucket.released.set()
    eventually(lambda: api.get(path).status_code == 200)
    assert api.get(path).json() == [1, 2]

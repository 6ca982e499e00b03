from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.engine.log.lifecycle import Create
from headrace.engine.log.tiers import NeedsFetch
from headrace.errors import HeadraceError
from headrace.server.http.auth import LOCAL
from headrace.server.http.request import Request, RequestHead, ResolvedRoute
from headrace.server.http.target import Target
from headrace.server.routes.streams import StreamRoutes
from headrace.storage.streams import StreamRow
from server.callers import Caller
from support.engine_rig import Rig

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api

JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]


def fork(api: Api, source: str, **headers: str) -> str:
    path = api.name()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    created = api.put(path, headers={"stream-forked-from": source, **named})
    assert created.status_code == 201, created.text
    return path


def offsets(api: Api, path: str, *entries: Any) -> list[str]:
    return [api.post(path, [entry]).headers["stream-next-offset"] for entry in entries]


def test_the_sources_offsets_work_on_the_fork(api: Api, code_of: Code) -> None:
    source = api.stream()
    places = offsets(api, source, "a", "b", "c", "d")
    branch = fork(api, source, stream_fork_offset=places[1])
    assert api.offset(branch) == places[1]
    assert api.get(branch).json() == ["a", "b"]
    assert api.get(branch, offset=places[0]).json() == ["b"]
    assert api.get(branch, offset=places[1]).json() == []
    for beyond in places[2:]:
        fenced = api.get(branch, offset=beyond)
        assert fenced.status_code == 410
        assert code_of(fenced) == "offset_fenced"
    own = offsets(api, branch, "e", "f")
    assert sorted([*places[:2], *own]) == [*places[:2], *own]
    assert api.get(branch, offset=places[0]).json() == ["b", "e", "f"]
    assert api.get(branch, offset=own[0]).json() == ["f"]
    assert code_of(api.get(source, offset=own[0])) == "offset_fenced"
    assert api.get(source).json() == ["a", "b", "c", "d"]


def test_a_fork_of_a_fork_reads_through_both(api: Api) -> None:
    root = api.stream()
    first = offsets(api, root, 1, 2, 3)
    middle = fork(api, root, stream_fork_offset=first[1])
    second = offsets(api, middle, 4, 5)
    leaf = fork(api, middle, stream_fork_offset=second[0])
    offsets(api, leaf, 6)
    offsets(api, root, 7)
    offsets(api, middle, 8)
    assert api.get(leaf).json() == [1, 2, 4, 6]
    assert api.get(leaf, offset=first[0]).json() == [2, 4, 6]
    assert api.get(leaf, offset=second[0]).json() == [6]
    early = fork(api, middle, stream_fork_offset=first[0])
    assert api.get(early).json() == [1]


def test_a_fork_keeps_what_its_deleted_source_held(api: Api, code_of: Code, eventually: Callable[..., None]) -> None:
    source = api.stream(1, 2)
    branch = fork(api, source)
    assert api.delete(source).status_code == 204
    for response in (
        api.get(source),
        api.post(source, [3]),
        api.delete(source),
        api.get(source, live="sse", offset="-1"),
    ):
        assert response.status_code == 410
        assert code_of(response) == "gone"
    for headers in (JSON, {"stream-forked-from": branch, **JSON}):
        assert api.put(source, headers=headers).status_code == 409
    assert api.get(branch).json() == [1, 2]
    assert api.put(api.name(), headers={"stream-forked-from": source}).status_code == 409
    assert api.delete(branch).status_code == 204
    eventually(lambda: api.head(source).status_code == 404)
    assert api.put(source, ["anew"]).status_code == 201
    assert api.get(source).json() == ["anew"]


def test_keys_times_and_tags_reach_through_the_fork(api: Api) -> None:
    source = api.stream()
    for year in (2001, 2002, 2003):
        headers = {"stream-key": str(year % 2), "stream-timestamp": f"{year}-01-01T00:00:00Z"}
        assert api.post(source, [year], headers).status_code == 204
    branch = fork(api, source)
    api.post(branch, [2004], {"stream-key": "0", "stream-timestamp": "2004-01-01T00:00:00Z"})
    assert api.get(branch, key="0").json() == [2002, 2004]
    assert api.get(branch, since="2002-06-01T00:00:00Z").json() == [2003, 2004]
    assert api.get(branch).headers["etag"] != api.get(source).headers["etag"]
    stale = api.post(branch, ["late"], {"stream-timestamp": "1999-01-01T00:00:00Z"})
    assert stale.status_code == 204
    assert api.get(branch, since="2004-01-01T00:00:00Z").json() == [2004, "late"]


def test_writers_of_the_source_are_unknown_to_the_fork(api: Api) -> None:
    source = api.stream()
    triple = {"producer-id": "p", "producer-epoch": "3", "producer-seq": "0", "stream-seq": "b"}
    assert api.post(source, [1], triple).status_code == 200
    branch = fork(api, source)
    assert api.post(branch, [2], {**triple, "producer-epoch": "0", "stream-seq": "a"}).status_code == 200
    assert api.get(branch).json() == [1, 2]


def test_compare_and_append_works_at_the_fork_point(api: Api) -> None:
    source = api.stream(1)
    branch, tail = fork(api, source), api.offset(source)
    assert api.post(branch, [2], {"if-match": tail}).status_code == 204
    refused = api.post(branch, [3], {"if-match": tail})
    assert refused.status_code == 412
    assert refused.headers["stream-next-offset"] == api.offset(branch)
    assert api.post(source, [4], {"if-match": tail}).status_code == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"stream-fork-offset": "0" * 26}, 400),
        ({"stream-fork-sub-offset": "0"}, 400),
        ({"stream-forked-from": "/v1/stream/none"}, 404),
        ({"stream-forked-from": "nonsense"}, 400),
        ({"stream-forked-from": ""}, 400),
        ({"stream-forked-from": "/v1/stream/"}, 404),
        ({"stream-forked-from": "SOURCE", "stream-fork-offset": "now"}, 400),
        ({"stream-forked-from": "SOURCE", "stream-fork-offset": ""}, 400),
        ({"stream-forked-from": "SOURCE", "stream-fork-offset": "9999999999999999_9999999999999999"}, 400),
        ({"stream-forked-from": "SOURCE", "stream-fork-sub-offset": "1"}, 400),
        ({"stream-forked-from": "SOURCE", "stream-fork-offset": "-1", "stream-fork-sub-offset": "-1"}, 400),
        ({"stream-forked-from": "SOURCE", "stream-fork-offset": "-1", "stream-fork-sub-offset": "99"}, 400),
        ({"stream-forked-from": "SOURCE", "content-type": "text/plain"}, 409),
    ],
)
def test_a_fork_that_cannot_be_is_refused_and_leaves_nothing(
    api: Api, code_of: Code, headers: dict[str, str], status: int
) -> None:
    source, path = api.stream(1, 2), api.name()
    refused = api.put(path, headers={name: value.replace("SOURCE", source) for name, value in headers.items()})
    assert refused.status_code == status
    assert code_of(refused)
    assert api.head(path).status_code == 404
    assert api.delete(source).status_code == 204
    assert api.head(source).status_code == 404  # nothing holds on to it


@pytest.mark.parametrize("rest", ["pk/a", "_schema", "_schema/verifications/1", "touch/meta"])
def test_only_a_stream_itself_can_be_forked(api: Api, code_of: Code, rest: str) -> None:
    source, path = api.stream(1), api.name()
    refused = api.put(path, headers={"stream-forked-from": f"{source}/{rest}"})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert refused.json()["error"]["field"] == "Stream-Forked-From"
    assert api.head(path).status_code == 404


def test_an_offset_of_another_life_is_no_fork_point(api: Api, code_of: Code) -> None:
    source, other = api.stream(1, 2), api.stream(1, 2)
    refused = api.put(api.name(), headers={"stream-forked-from": source, "stream-fork-offset": api.offset(other)})
    assert refused.status_code == 410
    assert code_of(refused) == "offset_fenced"


def test_a_sub_offset_cuts_within_one_append(api: Api) -> None:
    source = api.stream()
    api.post(source, [1, 2, 3])
    api.post(source, [4])
    start = "0" * 26
    for sub, inherited in (("0", []), ("1", [1]), ("3", [1, 2, 3])):
        branch = fork(api, source, stream_fork_offset=start, stream_fork_sub_offset=sub)
        assert api.get(branch).json() == inherited
        offsets(api, branch, "own")
        assert api.get(branch).json() == [*inherited, "own"]
    octets = api.octets(b"hello", b"world")
    branch = fork(api, octets, stream_fork_offset=start, stream_fork_sub_offset="2")
    assert api.get(branch).content == b"he"


def test_the_same_fork_again_is_confirmed_and_another_conflicts(api: Api) -> None:
    source = api.stream()
    places = offsets(api, source, 1, 2)
    path = api.name()
    wish = {"stream-forked-from": source, "stream-fork-offset": places[0]}
    assert api.put(path, headers=wish).status_code == 201
    assert api.put(path, headers=wish).status_code == 200
    assert api.put(path, headers={**wish, "stream-fork-offset": places[1]}).status_code == 409
    assert api.put(path, headers=JSON).status_code == 409
    assert api.put(path, headers={**wish, "stream-forked-from": api.stream(1)}).status_code in (409, 410)


def test_a_fork_of_the_tail_is_the_fork_of_where_that_was(api: Api) -> None:
    source = api.stream()
    places = offsets(api, source, 1, 2)
    branch = fork(api, source)
    offsets(api, source, 3)
    wish = {"stream-forked-from": source}
    assert api.put(branch, headers=wish).status_code == 200
    for place, status in ((places[1], 200), (places[0], 409), (api.offset(source), 409), ("-1", 409)):
        assert api.put(branch, headers={**wish, "stream-fork-offset": place}).status_code == status


def test_a_fork_that_was_stored_without_its_position_is_confirmed_too(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        source = rig.create("s", body=b"one")
        places = [source.offset_at(rig.append("s", entry).position) for entry in (b"two", b"three")]
        rig.fork("s", "f", 2, fork_origin=json.dumps([source.incarnation, None, 0]))
        assert put_again(rig, "f") == 200
        assert put_again(rig, "f", places[0]) == 200
        assert put_again(rig, "f", places[1]) == 409
        rig.retain("s", size=0)
        assert put_again(rig, "f", places[0]) == 200
        assert put_again(rig, "f", places[1]) == 409


@pytest.mark.parametrize("kept", [8, 5, 0])
def test_a_fork_of_the_start_is_the_fork_of_where_that_was(tmp_path: Path, kept: int) -> None:
    with Rig(tmp_path) as rig:
        source = rig.create("s")
        places = [source.offset_at(rig.append("s", entry).position) for entry in (b"one", b"two", b"three")]
        rig.retain("s", size=8)
        assert source.head.first_seq == 1
        for name, position in (("start", 1), ("later", 2)):
            rig.fork("s", name, position, fork_origin=json.dumps([source.incarnation, position, 0]))
        rig.retain("s", size=kept)
        assert put_again(rig, "start", "-1") == put_again(rig, "start", places[0]) == 200
        assert put_again(rig, "later", "-1") == 409


def test_a_fork_whose_name_was_taken_for_a_moment_is_made_from_what_is_not_at_hand(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.create("s", body=b"one")
        rig.publish("s")
        fields = {b"stream-forked-from": b"/v1/stream/s", b"stream-fork-offset": b"-1", b"stream-fork-sub-offset": b"2"}
        head, streams = RequestHead("PUT", b"", [], fields), StreamRoutes(rig.engine)

        async def put() -> int:
            caller = Caller()
            request = Request(head, ResolvedRoute(streams.put, Target("f", "", None), {}, LOCAL, 0), b"", caller)
            with pytest.raises(NeedsFetch):
                streams.put(request)
            taken = Create(StreamRow("f", "", 0, "[]"), partial(streams._created, request))
            taken.settled = taken.exists = True
            taken.answer()
            return (await asyncio.wait_for(caller.answered, 30)).status

        assert rig.run(put()) == 201
        assert rig.read("f") == [b"on"]


def put_again(rig: Rig, name: str, offset: str | None = None) -> int:
    """The status of a PUT of a fork of the stream ``s``, which exists already."""
    fields = {b"stream-forked-from": b"/v1/stream/s"} | ({b"stream-fork-offset": offset.encode()} if offset else {})
    head, streams = RequestHead("PUT", b"", [], fields), StreamRoutes(rig.engine)

    async def put() -> int:
        caller = Caller()
        try:
            streams.put(Request(head, ResolvedRoute(streams.put, Target(name, "", None), {}, LOCAL, 0), b"", caller))
        except HeadraceError as refusal:
            return refusal.status
        return (await caller.answered).status

    return rig.run(put())


def test_forks_survive_a_restart(start_server: Callable[..., ServerProcess], api_of: Any) -> None:
    server = start_server()
    api = api_of(server)
    source = api.stream()
    places = offsets(api, source, 1, 2, 3)
    branch = fork(api, source, stream_fork_offset=places[1])
    own = offsets(api, branch, "own")
    api.delete(source)
    server.kill()
    api = api_of(server.start())
    assert api.get(branch).json() == [1, 2, "own"]
    assert api.get(branch, offset=places[0]).json() == [2, "own"]
    assert api.offset(branch) == own[0]
    assert api.head(source).status_code == 410

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from headrace.format import offset as offsets

if TYPE_CHECKING:
    from tests.conftest import ServerProcess, StartServer
    from tests.server.conftest import Api, Wire

START = "0" * 26
Code = Callable[[Any], str]


def moment(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat().replace("+00:00", "Z")


# -- places


def test_a_read_begins_at_the_start_unless_told(api: Api) -> None:
    path = api.stream(1, 2)
    for query in ({}, {"offset": "-1"}, {"offset": START}, {"live": ""}, {"live": "false"}, {"live": "0"}):
        found = api.get(path, **query)
        assert found.status_code == 200
        assert found.json() == [1, 2]
        assert found.headers["stream-next-offset"] == found.headers["stream-end-offset"] == api.offset(path)
        assert found.headers["stream-up-to-date"] == "true"
        assert "stream-closed" not in found.headers


def test_now_is_the_tail_and_nothing_more(api: Api) -> None:
    for path, empty in ((api.stream(1), b"[]"), (api.octets(b"x"), b"")):
        found = api.get(path, offset="now")
        assert found.status_code == 200
        assert found.content == empty
        assert found.headers["stream-next-offset"] == api.offset(path)
        assert found.headers["stream-up-to-date"] == "true"
        assert found.headers["cache-control"] == "no-store"
        assert "etag" not in found.headers
    assert api.get(api.name(), offset="now").status_code == 404


def test_the_end_of_a_closed_stream_is_told_only_where_it_is_reached(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="10"))
    path = api.octets(b"0123456789", b"abcdefghij")
    api.post(path, headers={"stream-closed": "true"})
    first = api.get(path)
    assert first.content == b"0123456789"
    assert "stream-closed" not in first.headers and "stream-up-to-date" not in first.headers
    last = api.get(path, offset=first.headers["stream-next-offset"])
    assert last.content == b"abcdefghij"
    assert last.headers["stream-closed"] == "true"
    assert api.get(path, offset="now").headers["stream-closed"] == "true"


def test_letters_of_an_offset_may_be_small_or_look_alike(api: Api) -> None:
    path = api.stream(*range(9))
    offset = api.offset(path)
    assert offset == offset.upper()
    for spelled in (offset, offset.lower(), offset.replace("0", "O"), offset.replace("0", "o")):
        found = api.get(path, offset=spelled)
        assert found.status_code == 200
        assert found.json() == []
        assert found.headers["stream-next-offset"] == offset


@pytest.mark.parametrize(
    "given",
    ["", " ", "0", "1", "-2", "-01", "NOW", "null", "0" * 25, "0" * 27, "U" * 26, "Z" * 26, "8" + "0" * 25,
     "00000000000000000004000001", "0000000000000000_0000000000000000", "٠" * 26, "../../etc/passwd", "-1,-1", "\x00",
     "00000000000000000004\n00000", "1e5", "0" * 10_000 + "1", "00000400000000000000000000"],
)  # fmt: skip
def test_an_offset_that_was_never_minted_is_refused(api: Api, code_of: Code, given: str) -> None:
    path = api.stream(1)
    for query in ({}, {"live": "long-poll"}, {"live": "sse"}):
        refused = api.get(path, offset=given, **query)
        if len(given) > 8192:
            assert refused.status_code == 414
            assert code_of(refused) == "uri_too_long"
        else:
            assert refused.status_code == 400
            assert code_of(refused) == "bad_request"
            assert refused.json()["error"]["field"] == "offset"


def test_an_offset_given_twice_is_refused(api: Api, code_of: Code) -> None:
    path = api.stream(1)
    refused = api.get(f"{path}?offset=-1&offset=-1")
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


def test_beyond_the_end_is_empty_and_answers_the_tail(api: Api) -> None:
    path = api.stream(1, 2)
    tail = api.offset(path)
    epoch = offsets.decode(tail).epoch
    for position in (3, 1000, 2**63, 2**64 - 1):
        found = api.get(path, offset=offsets.encode(epoch, position))
        assert found.status_code == 200
        assert found.json() == []
        assert found.headers["stream-next-offset"] == tail
        assert found.headers["stream-up-to-date"] == "true"
        assert "immutable" not in found.headers["cache-control"]
    waited = api.get(path, offset=offsets.encode(epoch, 50), live="long-poll", timeout="1ms")
    assert waited.status_code == 204
    assert waited.headers["stream-next-offset"] == tail


def test_offsets_do_not_survive_deletion(api: Api, code_of: Code) -> None:
    path = api.stream("old", "older")
    old = api.offset(path)
    api.delete(path)
    assert api.put(path, ["new", "newer", "newest"]).status_code == 201
    for query in ({}, {"live": "long-poll"}, {"live": "sse"}):
        fenced = api.get(path, offset=old, **query)
        assert fenced.status_code == 410
        assert code_of(fenced) == "offset_fenced"
    assert api.get(path, offset=START).json() == ["new", "newer", "newest"]
    assert api.offset(path) > old


def test_an_offset_of_another_stream_is_fenced(api: Api, code_of: Code) -> None:
    path, other = api.stream(1), api.stream(1)
    fenced = api.get(path, offset=api.offset(other))
    assert fenced.status_code == 410
    assert code_of(fenced) == "offset_fenced"
    assert "belongs to another stream, to an earlier one of this name" in fenced.json()["error"]["message"]
    unborn = offsets.encode(2**32 - 1, 1)
    assert code_of(api.get(path, offset=unborn)) == "offset_fenced"


def test_pages_join_to_the_whole(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="64"))
    path = api.stream()
    entries: list[Any] = []
    for size in (1, 7, 30, 2, 1, 100):
        batch = [{"n": len(entries) + i, "pad": "x" * (i % 40)} for i in range(size)]
        entries += batch
        assert api.post(path, batch).status_code == 204
    read: list[Any] = []
    offset, pages = "-1", 0
    while True:
        page = api.get(path, offset=offset)
        got = page.json()
        assert got or page.headers.get("stream-up-to-date")
        assert len(page.content) < 64 + 100
        read += got
        offset, pages = page.headers["stream-next-offset"], pages + 1
        assert page.headers["stream-end-offset"] == api.offset(path)
        if page.headers.get("stream-up-to-date"):
            break
    assert read == entries
    assert pages > 50


def test_an_entry_larger_than_a_page_is_read_whole(api: Api) -> None:
    large = b"x" * (3 * 1024 * 1024)
    path = api.octets(b"a", large, b"b")
    first = api.get(path)
    assert first.content == b"a"
    second = api.get(path, offset=first.headers["stream-next-offset"])
    assert second.content == large
    assert api.get(path, offset=second.headers["stream-next-offset"]).content == b"b"


# -- time


def test_since_begins_before_the_first_entry_of_that_time(api: Api) -> None:
    path = api.stream()
    base = 1_600_000_000_000_000
    for number in range(5):
        stamp = {"stream-timestamp": moment(base + number * 1_000_000)}
        assert api.post(path, [number, f"{number}b"], stamp).status_code == 204
    whole = [entry for number in range(5) for entry in (number, f"{number}b")]
    for since, first in ((base - 1, 0), (base, 0), (base + 1, 2), (base + 2_000_000, 4), (base + 4_000_001, 10)):
        found = api.get(path, since=moment(since))
        assert found.json() == whole[first:]
        assert found.headers["stream-next-offset"] == api.offset(path)
    assert api.get(path, since=str(base * 1000 + 3_000_000_000)).json() == whole[6:]
    assert api.get(path, since=moment(base), offset=api.offset(path)).json() == []
    assert api.get(path, since="2020-09-13T14:26:41+02:00").json() == whole[2:]


def test_microseconds_are_kept_and_nanoseconds_cut(api: Api) -> None:
    path = api.stream()
    for text in ("2020-01-01T00:00:00.000001999Z", "2020-01-01T00:00:00.000002Z", "1577836800000003000"):
        assert api.post(path, [text], {"stream-timestamp": text}).status_code == 204
    assert len(api.get(path, since="2020-01-01T00:00:00.000001Z").json()) == 3
    assert len(api.get(path, since="2020-01-01T00:00:00.000002Z").json()) == 2
    assert len(api.get(path, since="2020-01-01T00:00:00.000003Z").json()) == 1
    assert len(api.get(path, since="2020-01-01T00:00:00.000004Z").json()) == 0


def test_time_never_goes_back_within_a_stream(api: Api) -> None:
    path = api.stream()
    for year in (2020, 2010, 2021):
        assert api.post(path, [year], {"stream-timestamp": f"{year}-01-01T00:00:00Z"}).status_code == 204
    assert api.get(path, since="2020-01-01T00:00:00Z").json() == [2020, 2010, 2021]
    assert api.get(path, since="2020-01-01T00:00:01Z").json() == [2021]


def test_imported_history_keeps_its_own_times_from_the_first_entry_on(api: Api) -> None:
    path = api.name()
    assert api.put(path, [1990], {"stream-timestamp": "1990-01-01T00:00:00Z"}).status_code == 201
    assert api.post(path, [1995], {"stream-timestamp": "1995-01-01T00:00:00Z"}).status_code == 204
    assert api.post(path, ["now"]).status_code == 204
    assert api.get(path, since="1992-01-01T00:00:00Z").json() == [1995, "now"]
    assert api.get(path, since="1996-01-01T00:00:00Z").json() == ["now"]


def test_history_from_before_the_epoch_keeps_its_times(api: Api) -> None:
    path = api.stream()
    for year in (1950, 1960, 1965):
        assert api.post(path, [year], {"stream-timestamp": f"{year}-01-01T00:00:00Z"}).status_code == 204
    assert api.get(path, since="1955-01-01T00:00:00Z").json() == [1960, 1965]
    assert api.get(path, since="1970-01-01T00:00:00Z").json() == []


def test_the_future_is_refused_beyond_a_minute(api: Api, code_of: Code) -> None:
    path = api.stream()
    now = time.time_ns() // 1000
    assert api.post(path, ["soon"], {"stream-timestamp": moment(now + 55_000_000)}).status_code == 204
    refused = api.post(path, ["late"], {"stream-timestamp": moment(now + 65_000_000)})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert refused.json()["error"]["field"] == "Stream-Timestamp"
    assert api.put(api.name(), [1], {"stream-timestamp": moment(now + 65_000_000)}).status_code == 400
    assert api.post(path, ["next"]).status_code == 204
    assert api.get(path, since=moment(now + 50_000_000)).json() == ["soon", "next"]


@pytest.mark.parametrize("given", ["yesterday", "", "2020-01-01", "2020-02-30T00:00:00Z", "1.5", "-1", "9" * 21])
def test_a_moment_that_is_none_is_refused(api: Api, code_of: Code, given: str) -> None:
    path = api.stream(1)
    read = api.get(path, since=given)
    appended = api.post(path, [1], {"stream-timestamp": given})
    for refused in (read, appended):
        assert refused.status_code == 400
        assert code_of(refused) == "bad_request"


# -- keys


def test_reads_of_a_key_skip_the_rest_and_still_move_on(api: Api) -> None:
    path = api.stream()
    for number in range(12):
        assert api.post(path, [number], {"stream-key": "abc"[number % 3]}).status_code == 204
    tail = api.offset(path)
    for response in (api.get(path, key="b"), api.get(path + "/pk/b"), api.get(path + "/pk/b", key="c")):
        assert response.json() == [1, 4, 7, 10]
        assert response.headers["stream-next-offset"] == tail
        assert response.headers["stream-up-to-date"] == "true"
    none = api.get(path, key="nobody")
    assert none.json() == []
    assert none.headers["stream-next-offset"] == tail
    assert api.get(path + "/pk/b", offset=tail).json() == []


def test_a_key_in_the_path_may_hold_anything_escaped(
    server: ServerProcess, api: Api, connect: Callable[..., Wire]
) -> None:
    path = api.stream()
    for number, key in enumerate(("a/b", "pk", "é", "_schema", "a b")):
        api.call("POST", path, [number], {"stream-key": key.encode()})  # type: ignore[dict-item]
    wire = connect(server)
    for number, escaped in enumerate(("a%2Fb", "pk", "%C3%A9", "_schema", "a%20b")):
        assert wire.request("GET", f"{path}/pk/{escaped}").answer().body == b"[%d]" % number


def test_pages_of_a_key_join_to_all_of_it(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="40"))
    path = api.stream()
    for number in range(60):
        api.post(path, [f"entry {number}"], {"stream-key": str(number % 4)})
    read, offset = [], "-1"
    for _ in range(60):
        page = api.get(path, key="3", offset=offset)
        read += page.json()
        offset = page.headers["stream-next-offset"]
        if page.headers.get("stream-up-to-date"):
            break
    assert read == [f"entry {number}" for number in range(3, 60, 4)]


# -- formats and parameters


def test_raw_joins_entries_and_json_needs_a_json_stream(api: Api, code_of: Code) -> None:
    path = api.stream({"a": 1}, [2], "x")
    assert api.get(path, format="raw").content == b'{"a": 1}[2]"x"'
    assert api.get(path, format="json").json() == [{"a": 1}, [2], "x"]
    refused = api.get(api.octets(b"1"), format="json")
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.get(path, format="xml").status_code == 400


@pytest.mark.parametrize("query", ["live=maybe", "filter=a:1", "live=sse&offset=-1&filter=a:1", "key=a&key=b", "a=%ff"])
def test_a_parameter_that_cannot_be_honoured_is_refused(api: Api, code_of: Code, query: str) -> None:
    refused = api.get(f"{api.stream(1)}?{query}")
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


def test_unknown_parameters_are_ignored(api: Api) -> None:
    assert api.get(f"{api.stream(1)}?colour=red&x=&y").json() == [1]


def test_every_stream_is_told_when_it_ends(api: Api) -> None:
    path = api.stream(1, headers={"stream-expires-at": "2999-01-01T00:00:00Z"})
    assert api.get(path).headers["stream-expires-at"] == "2999-01-01T00:00:00Z"

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import ServerProcess
    from tests.server.conftest import Api

Code = Callable[[Any], str]
SWEEP_S = 12.0
START = "0" * 26
OCTETS = {"content-type": "application/octet-stream"}


class Kept:
    """Streams under retention rules, with the offset after each of their ten entries and their first tag."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.offsets: dict[str, list[str]] = {}
        self.tags: dict[str, str] = {}
        self.bytes = self._stream({"stream-retention-bytes": "35"})
        self.nothing = self._stream({"stream-retention-bytes": "0"})
        self.aged = self._stream({"stream-retention-age": "1s"})
        self.both = self._stream({"stream-retention-age": "1h", "stream-retention-bytes": "20"})
        self.later = self._stream({})
        self.source = self._stream({"stream-retention-bytes": "10"})
        self.fork, self.early = api.name(), api.name()

    def _stream(self, headers: dict[str, str]) -> str:
        path, api = self._api.name(), self._api
        assert api.put(path, headers={**OCTETS, **headers}).status_code == 201
        appended = [api.post(path, b"%d123456789" % number, OCTETS) for number in range(10)]
        self.offsets[path] = [answer.headers["stream-next-offset"] for answer in appended]
        self.tags[path] = api.get(path).headers["etag"]
        return path


@pytest.fixture(scope="module")
def kept(api: Api) -> Kept:
    """Every stream of this module, after the sweep that applied their rules."""
    kept = Kept(api)
    at = {"stream-forked-from": kept.source, "stream-fork-offset": kept.offsets[kept.source][4]}
    assert api.put(kept.fork, headers=at).status_code == 201
    at["stream-fork-offset"] = "-1"
    assert api.put(kept.early, headers=at).status_code == 201
    assert api.post(kept.later + "/_retention", {"age": None, "bytes": 50}).status_code == 204
    assert api.put(api.name(), headers={"stream-expires-at": "2001-01-01T00:00:00Z"}).status_code == 201
    until = time.monotonic() + SWEEP_S
    while api.get(kept.aged).content or api.get(kept.later).content[:1] != b"5":
        assert time.monotonic() < until, "no sweep came"
        time.sleep(0.1)
    return kept


def test_the_start_is_the_first_retained_entry(api: Api, kept: Kept) -> None:
    for path, first in ((kept.bytes, 7), (kept.both, 8), (kept.later, 5), (kept.source, 9)):
        whole = b"".join(b"%d123456789" % number for number in range(first, 10))
        for query in ({}, {"offset": "-1"}, {"offset": START}):
            found = api.get(path, **query)
            assert found.status_code == 200
            assert found.content == whole
            assert found.headers["stream-next-offset"] == kept.offsets[path][-1]


def test_an_older_real_offset_is_gone_and_the_earliest_is_told(api: Api, kept: Kept, code_of: Code) -> None:
    places = kept.offsets[kept.bytes]
    for place in places[:6]:
        for query in ({}, {"live": "long-poll"}, {"live": "sse"}):
            gone = api.get(kept.bytes, offset=place, **query)
            assert gone.status_code == 410
            assert code_of(gone) == "offset_gone"
            assert gone.headers["stream-earliest-offset"] == places[6]
    assert api.get(kept.bytes, offset=places[6]).content[:1] == b"7"
    assert api.get(kept.bytes, offset=places[7]).content[:1] == b"8"


def test_a_stream_that_keeps_nothing_goes_on_where_it_was(api: Api, kept: Kept) -> None:
    for path in (kept.nothing, kept.aged):
        tail = kept.offsets[path][-1]
        found = api.get(path)
        assert found.content == b""
        assert found.headers["stream-next-offset"] == tail
        assert api.offset(path) == tail
        assert api.get(path, offset=tail).status_code == 200
        assert api.get(path, offset=kept.offsets[path][-2]).status_code == 410
        grown = api.post(path, b"more", {"content-type": "application/octet-stream", "if-match": tail})
        assert grown.status_code == 204
        assert api.get(path, offset=tail).content == b"more"


def test_a_fork_keeps_what_its_source_lets_go(api: Api, kept: Kept) -> None:
    assert api.get(kept.fork).content == b"".join(b"%d123456789" % number for number in range(5))
    assert api.get(kept.fork, offset=kept.offsets[kept.source][1]).content[:1] == b"2"
    assert api.get(kept.source).content == b"9123456789"


def test_a_fork_cannot_begin_before_the_first_retained_entry(api: Api, kept: Kept, code_of: Code) -> None:
    at = {"stream-forked-from": kept.source, "stream-fork-offset": kept.offsets[kept.source][2]}
    refused = api.put(api.name(), headers=at)
    assert refused.status_code == 410
    assert code_of(refused) == "offset_gone"


def test_the_same_fork_again_is_confirmed_when_its_source_has_moved_on(api: Api, kept: Kept) -> None:
    source = {"stream-forked-from": kept.source}
    places = kept.offsets[kept.source]
    for path, same, others in (
        (kept.fork, [places[4], places[4].lower()], ["-1", places[3], places[-1]]),
        (kept.early, ["-1", START, "0000000000000000_0000000000000000"], [places[0], places[-1]]),
    ):
        assert api.put(path, headers=source).status_code == 200
        for place, status in [*((place, 200) for place in same), *((place, 409) for place in others)]:
            assert api.put(path, headers={**source, "stream-fork-offset": place}).status_code == status


def test_since_speaks_of_retained_entries_only(api: Api, kept: Kept) -> None:
    assert api.get(kept.bytes, since="2001-01-01T00:00:00Z").content[:1] == b"7"


def test_the_tag_of_the_start_changes_with_the_start(api: Api, kept: Kept) -> None:
    for path in (kept.bytes, kept.later, kept.nothing):
        again = api.get(path, {"if-none-match": kept.tags[path]})
        assert again.status_code == 200
        assert "immutable" not in again.headers["cache-control"]


def test_what_expired_is_swept_away(api: Api, kept: Kept) -> None:
    assert api.metric("headrace_streams_expired_total") >= 1


def test_head_tells_the_rule(api: Api) -> None:
    path = api.stream(headers={"stream-retention-age": "90m", "stream-retention-bytes": "1000"})
    found = api.head(path).headers
    assert found["stream-retention-age"] == "90m"
    assert found["stream-retention-bytes"] == "1000"
    assert api.post(path + "/_retention", {"age": "2h"}).status_code == 204
    found = api.head(path).headers
    assert found["stream-retention-age"] == "2h"
    assert found.get("stream-retention-bytes") is None
    assert api.post(path + "/_retention", {}).status_code == 204
    assert "stream-retention-age" not in api.head(path).headers


@pytest.mark.parametrize(
    "rule",
    [b"", b"[]", b"null", b"1", b"{", b'{"age":5}', b'{"age":"x"}', b'{"age":"0s"}', b'{"bytes":-1}', b'{"bytes":"5"}',
     b'{"bytes":1.5}', b'{"bytes":9223372036854775808}', b'{"years":1}', b'{"age":"1h"', b'\xff', b'{"age":"\xff"}',
     b"[" * 10000, b'{"age":null,"bytes":true}'],
)  # fmt: skip
def test_a_rule_that_is_none_is_refused(api: Api, code_of: Code, rule: bytes) -> None:
    path = api.stream(headers={"stream-retention-bytes": "77"})
    refused = api.post(path + "/_retention", rule, {"content-type": "application/json"})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.head(path).headers["stream-retention-bytes"] == "77"


@pytest.mark.parametrize(
    "headers",
    [{"stream-retention-age": "0s"}, {"stream-retention-age": "60"}, {"stream-retention-bytes": "-1"},
     {"stream-retention-bytes": "1e3"}, {"stream-retention-age": "200y"}, {"stream-retention-bytes": "9" * 30}],
)  # fmt: skip
def test_a_rule_that_is_none_creates_nothing(api: Api, code_of: Code, headers: dict[str, str]) -> None:
    path = api.name()
    refused = api.put(path, headers=headers)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert api.head(path).status_code == 404


def test_a_parameter_that_there_is_not_is_refused_rather_than_ignored(api: Api, code_of: Code) -> None:
    path = api.stream(headers={"stream-retention-bytes": "77"})
    refused = api.call("POST", path + "/_retention", {"bytes": 5}, dry_run="true")
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert refused.json()["error"]["field"] == "dry_run"
    assert api.head(path).headers["stream-retention-bytes"] == "77"


def test_the_rule_of_an_unknown_stream_is_404(api: Api, code_of: Code) -> None:
    refused = api.post(api.name() + "/_retention", {})
    assert refused.status_code == 404
    assert code_of(refused) == "not_found"


def test_retention_and_its_rule_survive_a_restart(
    server: ServerProcess, kept: Kept, start_server: Any, api_of: Any, tmp_path: Path
) -> None:
    """The files of the running server are copied, as a crash would leave them."""
    shutil.copytree(server.data_dir, tmp_path / "data")
    copied = api_of(start_server())
    places = kept.offsets[kept.bytes]
    assert copied.get(kept.bytes).content[:1] == b"7"
    assert copied.get(kept.bytes, offset=places[0]).headers["stream-earliest-offset"] == places[6]
    assert copied.head(kept.bytes).headers["stream-retention-bytes"] == "35"
    assert copied.offset(kept.nothing) >= kept.offsets[kept.nothing][-1]
    assert copied.get(kept.fork).content[:1] == b"0"

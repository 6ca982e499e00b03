"""``headrace stream`` against a real server process."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cli import output

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess, StartServer

pytestmark = pytest.mark.usefixtures("at")


def test_lines_piped_in_come_out_as_lines(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    lines = b'{"n": 1}\n\n[1, 2]\n"three"\n4'
    appended = headrace("stream", "append", name, stdin=lines)
    assert appended.code == 0
    assert appended.lines[0]["appended"] == 4
    read = headrace("stream", "read", name)
    assert read.out == b'{"n": 1}\n[1, 2]\n"three"\n4\n'
    assert headrace("stream", "info", name).lines[0]["next_offset"] == appended.lines[0]["next_offset"]


def test_many_lines_are_appended_in_order(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    lines = b"".join(b"%d\n" % number for number in range(5000))
    assert headrace("stream", "append", name, stdin=lines).lines[0]["appended"] == 5000
    assert headrace("stream", "read", name).out == lines
    assert headrace("stream", "read", name, "--limit", "3").out == b"0\n1\n2\n"


def test_a_limit_cuts_the_last_batch_of_json_too(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, "1", "2", "3")
    [whole] = headrace("stream", "read", name, "--limit", "3", "--json").lines
    [cut] = headrace("stream", "read", name, "--limit", "2", "--json").lines
    assert whole["items"] == [1, 2, 3] and whole["next_offset"]
    assert cut == {"items": [1, 2], "next_offset": None, "up_to_date": False, "closed": False}


def test_tail_keeps_the_line_ends_of_text(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name, "--content-type", "text/plain")
    headrace("stream", "append", name, "--raw", stdin=b"one\r\ntwo\r")
    assert headrace("stream", "tail", name, "--offset", "-1", "--limit", "1").out == b"one\r\ntwo\r"


def test_events_can_be_given_as_arguments(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    assert headrace("stream", "append", name, '{"a": 1}', "-2", "--routing-key", "k").code == 0
    headrace("stream", "append", name, "3")
    assert headrace("stream", "read", name, "--routing-key", "k").out == b'{"a": 1}\n-2\n'


def test_line_that_is_not_json_is_named_and_what_came_before_is_kept(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    done = headrace("stream", "append", name, stdin=b"1\n\n{oops\n4\n")
    assert done.code == 1
    assert "3 is not JSON" in done.err
    assert "appended: 1" in done.err
    assert headrace("stream", "read", name).out == b"1\n"


@pytest.mark.parametrize("data", [b"\x00\xffbytes\r\n", b"x" * 2_500_000])
def test_raw_bytes_go_in_and_out_unchanged(headrace: Headrace, name: str, data: bytes) -> None:
    headrace("stream", "create", name, "--content-type", "application/octet-stream")
    assert headrace("stream", "append", name, "--raw", stdin=data).code == 0
    assert headrace("stream", "read", name).out == data


def test_raw_body_of_a_json_stream_is_its_events(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, "--raw", stdin=b"[1,\n2]")
    assert headrace("stream", "read", name).out == b"1\n2\n"


def test_events_of_a_raw_body_are_counted(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    assert headrace("stream", "append", name, "--raw", stdin=b" [1, [2, 3],\n4]").lines[0]["appended"] == 3
    assert headrace("stream", "append", name, "--raw", stdin=b'{"a": [1, 2]}').lines[0]["appended"] == 1


def test_a_value_beside_raw_is_refused(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name, "--content-type", "text/plain")
    done = headrace("stream", "append", name, "hello", "--raw")
    assert done.code == 2
    assert done.out == b""
    assert "--raw" in done.err


@pytest.mark.parametrize("more", [(), ("--close",)])
def test_lines_for_a_stream_of_text_are_refused_with_the_way_out(
    headrace: Headrace, name: str, more: tuple[str, ...]
) -> None:
    headrace("stream", "create", name, "--content-type", "text/plain")
    done = headrace("stream", "append", name, *more, stdin=b"1\n")
    assert done.code == 2
    assert "text/plain" in done.err and "--raw" in done.err


def test_each_event_is_printed_on_one_line_however_it_is_spelled(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    spelled = b'[{\n  "a":\r\n  "x\\n y"\n}, 2]'
    headrace("stream", "append", name, "--raw", stdin=spelled)
    read = headrace("stream", "read", name)
    assert read.lines == [{"a": "x\n y"}, 2]
    assert headrace("stream", "tail", name, "--offset", "-1", "--limit", "2").lines == read.lines
    assert [batch["items"] for batch in headrace("stream", "read", name, "--json").lines] == [read.lines]
    assert headrace("stream", "append", name, stdin=read.out).lines[0]["appended"] == 2


@pytest.mark.parametrize("words", ["stream read x", "stream tail x", "stream ls", "entity ls", "entity history x"])
@pytest.mark.parametrize("limit", ["-1", "0", "1.5", "many"])
def test_a_limit_is_a_whole_number_from_1_on(headrace: Headrace, words: str, limit: str) -> None:
    done = headrace(*words.split(), "--limit", limit)
    assert done.code == 2
    assert done.out == b""
    assert f"{limit} is not a whole number" in done.err


def test_an_offset_of_another_stream_is_told_as_what_it_may_be(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "create", f"{name}/other")
    headrace("stream", "append", name, "1")
    foreign = headrace("stream", "append", f"{name}/other", "1").lines[0]["next_offset"]
    refused = headrace("stream", "read", name, "--offset", foreign)
    assert refused.code == output.FAILED
    assert "belongs to another stream, to an earlier one of this name" in refused.err
    assert "made anew" not in refused.err and "--offset -1" in refused.err


def test_batches_with_offsets_are_printed_as_json(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    first = headrace("stream", "append", name, "1").lines[0]["next_offset"]
    last = headrace("stream", "append", name, "2", "--close").lines[0]["next_offset"]
    (batch,) = headrace("stream", "read", name, "--offset", first, "--json").lines
    assert batch == {"items": [2], "next_offset": last, "up_to_date": True, "closed": True}
    assert len(headrace("stream", "read", name, "--offset", "-1").lines) == 2


@pytest.mark.parametrize(("data", "kind"), [(b"plain", "text"), (b"\xff\x00", "base64")])
def test_bytes_are_printed_as_text_or_base64_in_json(headrace: Headrace, name: str, data: bytes, kind: str) -> None:
    headrace("stream", "create", name, "--content-type", "text/x")
    headrace("stream", "append", name, "--raw", stdin=data)
    (batch,) = headrace("stream", "read", name, "--json").lines
    expected = data.decode() if kind == "text" else base64.b64encode(data).decode()
    assert batch[kind] == expected


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_tail_prints_until_the_stream_is_closed(headrace: Headrace, name: str, live: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, "1", "2", "3", "--close")
    assert headrace("stream", "tail", name, "--offset", "-1", "--live", live).out == b"1\n2\n3\n"
    assert headrace("stream", "tail", name, "--offset", "-1", "--limit", "2").out == b"1\n2\n"


def test_newest_events_are_printed_alone_backward_and_before_what_follows(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, "1", "2", "3", "4", "5", "--close")
    assert headrace("stream", "read", name, "--last", "2").out == b"4\n5\n"
    (newest,) = headrace("stream", "read", name, "-n", "2", "--json").lines
    assert newest["items"] == [4, 5]
    assert headrace("stream", "read", name, "-n", "2", "--before", newest["start_offset"]).out == b"2\n3\n"
    assert headrace("stream", "tail", name, "-n", "3").out == b"3\n4\n5\n"
    refused = headrace("stream", "read", name, "--last", "2", "--since", "2020-01-01")
    assert refused.code != 0 and "last cannot be combined with since" in refused.err


def test_stream_is_sealed_when_asked_for(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, "1", "2")
    done = headrace("stream", "seal", name, "--wait", "--json")
    assert done.code == 0
    assert (done.lines[0]["state"], done.lines[0]["sealed_entries"]) == ("sealed", 2)
    assert headrace("stream", "seal", name).lines[0]["state"] == "nothing_to_seal"
    missing = headrace("stream", "seal", f"{name}/missing")
    assert missing.code == 1 and "no such stream" in missing.err


def test_append_is_refused_when_the_tail_has_moved(headrace: Headrace, name: str) -> None:
    tail = headrace("stream", "create", name).lines[0]["next_offset"]
    assert headrace("stream", "append", name, "1", "--if-match", tail).code == 0
    done = headrace("stream", "append", name, "--if-match", tail, stdin=b"2\n3\n")
    assert done.code == 1
    assert "try again" in done.err
    assert headrace("stream", "read", name).out == b"1\n"


def test_append_carries_time_and_sequence(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    headrace("stream", "append", name, "1", "--timestamp", "2020-01-01T00:00:00Z", "--seq", "a")
    headrace("stream", "append", name, "2", "--timestamp", "2021-01-01T00:00:00Z", "--seq", "b")
    assert headrace("stream", "read", name, "--since", "2020-06-01T00:00:00Z").out == b"2\n"
    assert headrace("stream", "append", name, "3", "--seq", "b").code == 1


def test_a_date_will_do_where_a_moment_is_asked_for(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name, "--expires-at", "2090-01-01")
    assert headrace("stream", "info", name).lines[0]["expires_at"].startswith("2090-01-01T00:00:00")
    assert headrace("stream", "append", name, "1", "--timestamp", "2020-01-01").code == 0
    assert headrace("stream", "append", name, "2", "--timestamp", "2021-01-01").code == 0
    assert headrace("stream", "read", name, "--since", "2020-06-01").out == b"2\n"


def test_create_takes_every_option(headrace: Headrace, name: str) -> None:
    options = ["--ttl", "1h", "--retention-age", "30d", "--retention-bytes", "100000", "--closed"]
    (made,) = headrace("stream", "create", name, *options, "--json").lines
    assert made["created"] is True
    assert made["closed"] is True
    assert headrace("stream", "info", name).lines[0]["ttl_s"] == 3600
    assert headrace("stream", "create", f"{name}/e", "--expires-at", "2090-01-01T00:00:00Z").code == 0
    assert headrace("stream", "info", f"{name}/e").lines[0]["expires_at"].startswith("2090-01-01")


def test_fork_close_and_delete(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    middle = headrace("stream", "append", name, "1", "2").lines[0]["next_offset"]
    headrace("stream", "append", name, "3")
    assert headrace("stream", "fork", name, f"{name}/fork", "--offset", middle).code == 0
    assert headrace("stream", "close", f"{name}/fork").lines[0]["closed"]
    assert headrace("stream", "tail", f"{name}/fork", "--offset", "-1").out == b"1\n2\n"
    assert headrace("stream", "delete", f"{name}/fork", "--yes").lines == [{"name": f"{name}/fork", "deleted": True}]
    assert [found["name"] for found in headrace("stream", "ls", "--prefix", name).lines] == [name]


def test_list_can_be_cut_and_continued(headrace: Headrace, name: str) -> None:
    names = [f"{name}/{letter}" for letter in "abcde"]
    for each in names:
        headrace("stream", "create", each)
    first = headrace("stream", "ls", "--prefix", f"{name}/", "--limit", "2").lines
    rest = headrace("stream", "ls", "--prefix", f"{name}/", "--after", first[-1]["name"], "--json").lines
    assert [found["name"] for found in first + rest] == names


def test_delete_without_a_terminal_needs_yes(headrace: Headrace, name: str) -> None:
    headrace("stream", "create", name)
    done = headrace("stream", "delete", name, stdin=b"y\n")
    assert done.code == 2
    assert "--yes" in done.err
    assert headrace("stream", "info", name).code == 0


def test_url_on_the_command_line_wins(headrace: Headrace, at: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", "http://127.0.0.1:1")
    assert headrace("stream", "ls").code == 4
    assert headrace("stream", "ls", "--url", at.url).code == 0


def test_key_is_sent(
    headrace: Headrace, start_server: StartServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    headrace("key", "create", "--user", "ada", "--data-dir", str(tmp_path / "data"))
    url = start_server().url
    assert headrace("stream", "create", name, "--url", url, "--key", "hr_bad").code == 1
    monkeypatch.setenv("HEADRACE_KEY", "hr_bad")
    done = headrace("stream", "create", name, "--url", url)
    assert done.code == 1
    assert "HEADRACE_KEY" in done.err


def test_key_that_no_header_can_carry_is_refused(headrace: Headrace) -> None:
    done = headrace("stream", "ls", "--key", "é")
    assert done.code == 2
    assert "--key" in done.err and "é" not in done.err


def test_failure_says_what_to_do_next(headrace: Headrace, name: str) -> None:
    done = headrace("stream", "read", name)
    assert done.code == 1
    assert done.out == b""
    assert "headrace stream create" in done.err


def test_failure_is_json_on_stderr_when_asked(headrace: Headrace, name: str) -> None:
    done = headrace("stream", "info", name, "--json")
    assert done.code == 1
    assert '"code":"not_found"' in done.err
    assert '"hint":' in done.err

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import StartServer
    from tests.server.conftest import Api


def tag(api: Api, path: str, **query: Any) -> str:
    return str(api.get(path, **query).headers["etag"])


def test_a_slice_the_caller_has_is_not_sent_again(api: Api) -> None:
    path = api.stream(1)
    found = api.get(path)
    again = api.get(path, {"if-none-match": found.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    for name in ("etag", "stream-next-offset", "stream-end-offset", "stream-up-to-date", "cache-control"):
        assert again.headers[name] == found.headers[name]
    assert "content-type" not in again.headers and "content-length" not in again.headers


@pytest.mark.parametrize("spell", ["{}", "W/{}", '"other", {}', '"a",W/{} , "b"', "*", '"x" ,*'])
def test_one_of_a_list_of_tags_suffices(api: Api, spell: str) -> None:
    path = api.stream(1)
    strong = tag(api, path).removeprefix("W/")
    assert api.get(path, {"if-none-match": spell.format(strong)}).status_code == 304


@pytest.mark.parametrize("given", ['"other"', "slice", "", "W/", '"*"', ",,,"])
def test_other_tags_do_not_match(api: Api, given: str) -> None:
    assert api.get(api.stream(1), {"if-none-match": given}).json() == [1]


def test_the_tag_changes_with_data_and_with_closing(api: Api) -> None:
    path = api.stream(1)
    tags = [tag(api, path)]
    api.post(path, [2])
    tags.append(tag(api, path))
    api.post(path, headers={"stream-closed": "true"})
    tags.append(tag(api, path))
    assert len(set(tags)) == 3
    closed = api.get(path, {"if-none-match": tags[1]})
    assert closed.status_code == 200
    assert closed.headers["stream-closed"] == "true"


def test_an_empty_stream_that_closes_is_news(api: Api) -> None:
    path = api.stream()
    before = tag(api, path)
    api.post(path, headers={"stream-closed": "true"})
    assert api.get(path, {"if-none-match": before}).headers["stream-closed"] == "true"


def test_the_tag_does_not_outlive_its_stream(api: Api) -> None:
    path = api.stream("a")
    data = tag(api, path)
    api.delete(path)
    assert api.put(path, ["b"]).status_code == 201
    assert api.get(path, {"if-none-match": data}).json() == ["b"]
    api.delete(path)
    assert api.put(path, []).status_code == 201
    empty = tag(api, path)
    api.delete(path)
    assert api.put(path, [], {"content-type": "application/json"}).status_code == 201
    assert tag(api, path) != empty


def test_slices_of_different_questions_have_different_tags(api: Api) -> None:
    path = api.stream()
    api.post(path, [1], {"stream-key": "a"})
    api.post(path, [1], {"stream-key": "b"})
    questions: list[dict[str, str]] = [
        {}, {"key": "a"}, {"key": "b"}, {"key": "a,b"}, {"key": '"'}, {"format": "raw"}, {"offset": api.offset(path)}
    ]  # fmt: skip
    assert len({tag(api, path, **question) for question in questions}) == len(questions)


def test_the_same_slice_keeps_its_tag(api: Api) -> None:
    path = api.stream(1, 2)
    assert tag(api, path) == tag(api, path, offset="-1") == tag(api, path, offset="0" * 26)


def test_live_answers_have_no_tag_and_are_not_stored(api: Api) -> None:
    path = api.stream(1)
    ready = api.get(path, live="long-poll", offset="-1")
    waited = api.get(path, live="long-poll", offset="now", timeout="1ms")
    for answer in (ready, waited):
        assert answer.headers["cache-control"] == "no-store"
        assert "etag" not in answer.headers


def test_only_what_can_no_longer_change_is_immutable(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="4"))
    path = api.octets(b"aaaa", b"bbbb", b"cccc")
    forever = "immutable, max-age=31536000"

    def control(**query: str) -> str:
        return str(api.get(path, **query).headers["cache-control"])

    first = api.get(path)
    one = first.headers["stream-next-offset"]
    two = api.get(path, offset=one).headers["stream-next-offset"]
    tail = api.get(path, offset=two).headers["stream-next-offset"]
    assert first.headers["cache-control"] == "no-cache"  # retention may move the start
    assert control(offset=one) == forever
    assert control(offset=two) == control(offset=tail) == "no-cache"
    api.post(path, headers={"stream-closed": "true"})
    assert control(offset=two) == control(offset=tail) == forever
    assert control(offset="now") == "no-store"
    assert control() == "no-cache"


def test_an_immutable_slice_stays_what_it_was(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server(limits__read_bytes="16"))
    path = api.stream("first entry", "second entry")
    start = api.get(path).headers["stream-next-offset"]
    api.post(path, ["third entry"])
    api.post(path, ["fourth entry"])
    slices: dict[str, tuple[bytes, str]] = {}
    offset = start
    while True:
        found = api.get(path, offset=offset)
        if "immutable" not in found.headers["cache-control"]:
            break
        slices[offset] = (found.content, found.headers["etag"])
        offset = found.headers["stream-next-offset"]
    assert slices
    api.post(path, ["fifth entry"], {"stream-closed": "true"})
    for offset, (content, etag) in slices.items():
        again = api.get(path, offset=offset)
        assert again.content == content
        assert again.headers["etag"] == etag
        assert api.get(path, {"if-none-match": etag}, offset=offset).status_code == 304


def test_errors_are_not_stored(api: Api) -> None:
    assert api.get(api.name()).headers["cache-control"] == "no-store"

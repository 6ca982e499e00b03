from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import StartServer
    from tests.server.conftest import Api

Code = Callable[[Any], str]


def following(response: Any) -> str | None:
    found = re.fullmatch(r'<([^>]+)>; rel="next"', response.headers.get("link", ""))
    return found[1] if found else None


def walk(api: Api, url: str) -> list[list[str]]:
    pages: list[list[str]] = []
    step: str | None = url
    while step is not None:
        page = api.get(step)
        assert page.status_code == 200
        pages.append([stream["name"] for stream in page.json()])
        step = following(page)
    return pages


@pytest.fixture(scope="module")
def names(api: Api) -> list[str]:
    """A few hundred streams whose names are awkward to sort and to escape."""
    names = [f"list/{number:03}" for number in range(300)]
    names += ["list/é", "list/z z", "list/a&b=c", "list/100%", "list/ä/1", "list/A", "lisu", "lis", "list/😀", "list/+"]
    for name in names:
        escaped = "".join(f"%{byte:02X}" for byte in name.encode())
        assert api.put(f"/v1/stream/{escaped}").status_code == 201
    return sorted(name for name in names if name.startswith("list/"))


def test_pages_follow_one_another_through_all_names_once(api: Api, names: list[str]) -> None:
    for limit in (1000, 100, 37):
        pages = walk(api, f"/v1/streams?prefix=list/&limit={limit}")
        assert [name for page in pages for name in page] == names
        assert all(len(page) == limit for page in pages[:-1])


def test_a_page_has_a_hundred_unless_told(api: Api, names: list[str]) -> None:
    page = api.get("/v1/streams?prefix=list/")
    assert [stream["name"] for stream in page.json()] == names[:100]
    assert following(page) is not None


def test_after_is_exclusive_and_need_not_exist(api: Api, names: list[str]) -> None:
    def listed(after: str) -> list[str]:
        page = api.get("/v1/streams", prefix="list/", after=after, limit=3)
        return [stream["name"] for stream in page.json()]

    assert listed("list/010") == ["list/011", "list/012", "list/013"]
    assert listed("list/010x") == ["list/011", "list/012", "list/013"]
    assert listed("") == names[:3]
    assert listed("zzz") == []


def test_a_prefix_is_taken_literally(api: Api, names: list[str]) -> None:
    def listed(prefix: str) -> list[str]:
        return [stream["name"] for stream in api.get("/v1/streams", prefix=prefix, limit=1000).json()]

    assert listed("list/10") == [name for name in names if name.startswith("list/10")]
    assert listed("list/100%") == ["list/100%"]
    assert listed("list/_") == listed("list/%") == []
    assert listed("lis")[0] == "lis"
    assert listed("list/😀") == ["list/😀"]


def test_a_descriptor_tells_what_there_is_to_know(api: Api) -> None:
    path = api.stream(1, 2, headers={"stream-expires-at": "2999-01-01T00:00:00Z"})
    api.post(path, headers={"stream-closed": "true"})
    [found] = api.get("/v1/streams", prefix=path.rpartition("/")[2]).json()
    created = found.pop("created_at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", created)
    assert isinstance(found.pop("epoch"), int)
    assert found == {
        "name": path.rpartition("/")[2],
        "content_type": "application/json",
        "expires_at": "2999-01-01T00:00:00Z",
        "next_offset": "2",
        "sealed_through": "-1",
        "uploaded_through": "-1",
        "closed": True,
        "profile": "generic",
    }


def test_a_descriptor_tells_how_far_a_stream_is_published(
    start_server: StartServer, api_of: Any, eventually: Callable[..., None]
) -> None:
    api = api_of(start_server(storage__seal_age_s="0"))

    def through(path: str) -> tuple[str, str]:
        [found] = api.get("/v1/streams", prefix=path.rpartition("/")[2]).json()
        return found["sealed_through"], found["uploaded_through"]

    path, empty = api.stream(1, 2, 3), api.stream()
    eventually(lambda: through(path) == ("2", "2"))
    assert through(empty) == ("-1", "-1")
    fork = api.name()
    assert api.put(fork, headers={"stream-forked-from": path}).status_code == 201
    assert through(fork) == ("2", "2")
    api.post(path, [4])
    eventually(lambda: through(path) == ("3", "3"))
    assert through(fork) == ("2", "2")


def test_a_fork_is_not_published_before_its_source_is(api: Api) -> None:
    source, fork = api.stream(1, 2), api.name()
    assert api.put(fork, [3], headers={"stream-forked-from": source}).status_code == 201
    [found] = api.get("/v1/streams", prefix=fork.rpartition("/")[2]).json()
    assert found["next_offset"] == "3"
    assert found["sealed_through"] == "-1"
    assert found["uploaded_through"] == "-1"


def test_what_is_gone_is_not_listed(api: Api) -> None:
    deleted, soft, fork = api.stream(1), api.stream(1), api.name()
    assert api.put(fork, headers={"stream-forked-from": soft}).status_code == 201
    assert api.delete(deleted).status_code == 204
    assert api.delete(soft).status_code == 204
    over = api.stream(headers={"stream-expires-at": "2001-01-01T00:00:00Z"})
    listed = {stream["name"] for page in [api.get("/v1/streams", limit=1000, prefix="s").json()] for stream in page}
    for path, is_listed in ((deleted, False), (soft, False), (over, False), (fork, True)):
        assert (path.rpartition("/")[2] in listed) is is_listed


def test_deleted_names_do_not_shorten_a_page(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server())
    for number in range(60):
        assert api.put(f"/v1/stream/x{number:02}").status_code == 201
    for number in range(0, 60, 2):
        assert api.delete(f"/v1/stream/x{number:02}").status_code == 204
    pages = walk(api, "/v1/streams?limit=10")
    assert [name for page in pages for name in page] == [f"x{number:02}" for number in range(1, 60, 2)]
    assert [len(page) for page in pages[:3]] == [10, 10, 10]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=-1", "limit=ten", "limit=", "limit=1.5", "offset=5", "limit=1&limit=2",
     "prefix=%ff", "after=a&after=b", "x=1"],
)  # fmt: skip
def test_a_parameter_that_cannot_be_honoured_is_refused(api: Api, code_of: Code, query: str) -> None:
    refused = api.get(f"/v1/streams?{query}")
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"


def test_an_empty_server_lists_nothing(start_server: StartServer, api_of: Any) -> None:
    page = api_of(start_server()).get("/v1/streams")
    assert page.status_code == 200
    assert page.json() == []
    assert "link" not in page.headers

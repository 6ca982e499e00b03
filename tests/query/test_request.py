from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import BadRequest
from headrace.query.request import MAX_SIZE, MAX_TIMEOUT_MS, SIZE, SearchRequest, read, read_parameters
from headrace.query.syntax import parse
from query.declarations import SEARCH


def refused(given: Any, ask: Any = read) -> dict[str, Any]:
    with pytest.raises(BadRequest) as refusal:
        ask(given, SEARCH)
    facts: dict[str, Any] = refusal.value.body()["error"]
    return facts


def test_a_request_needs_nothing_but_a_query() -> None:
    found = read({"q": "status:5"}, SEARCH)
    assert found.tree == parse("status:5")
    assert found.size == SIZE
    assert found.timeout_ms == MAX_TIMEOUT_MS
    assert found.after is None
    assert not found.track_total_hits and not found.snippets
    assert [key.name for key in found.order] == ["offset"]


def test_everything_can_be_given() -> None:
    given = {
        "q": "status:5",
        "size": 3,
        "sort": ["time:asc"],
        "search_after": [7, "0" * 26],
        "timeout_ms": 20.5,
        "track_total_hits": True,
        "snippets": True,
    }
    found = read(given, SEARCH)
    assert found.size == 3
    assert found.timeout_ms == 20.5
    assert found.after == (7, "0" * 26)
    assert found.track_total_hits and found.snippets


def test_parameters_say_the_same_as_a_document() -> None:
    document = {"q": "status:5", "size": 3, "sort": ["time:asc", "mute"], "search_after": [7, None, "0" * 26]}
    parameters = {"q": "status:5", "size": "3", "sort": "time:asc, mute", "search_after": f'[7,null,"{"0" * 26}"]'}
    more = {"timeout_ms": "10", "track_total_hits": "1", "snippets": "TRUE"}
    wanted = read({**document, "timeout_ms": 10, "track_total_hits": True, "snippets": True}, SEARCH)
    assert read_parameters({**parameters, **more}, SEARCH) == wanted


def test_nobody_gets_more_time_than_there_is() -> None:
    assert read({"q": "status:5", "timeout_ms": 10**9}, SEARCH).timeout_ms == MAX_TIMEOUT_MS
    assert read({"q": "status:5", "timeout_ms": 0}, SEARCH).timeout_ms == 0


@pytest.mark.parametrize("size", [0, MAX_SIZE])
def test_a_page_has_up_to_500_hits(size: int) -> None:
    assert read({"q": "status:5", "size": size}, SEARCH).size == size


def test_every_member_that_is_wrong_is_named() -> None:
    error = refused({"q": 1, "size": MAX_SIZE + 1, "other": 2, "sort": [1], "timeout_ms": None})
    assert {problem["pointer"] for problem in error["problems"]} == {"/q", "/size", "/other", "/sort/0", "/timeout_ms"}


@pytest.mark.parametrize("given", [None, [], "q", 5])
def test_a_request_is_an_object(given: Any) -> None:
    assert refused(given)["field"] == "body"


def test_a_query_is_refused_with_its_place() -> None:
    assert refused({"q": "status:5 )"})["position"] == 9
    error = refused({"q": "nothing:1 status:x"})
    assert [fault["position"] for fault in error["problems"]] == [0, 10]


def test_parameters_that_are_no_json_are_refused() -> None:
    assert refused({"q": "status:5", "size": "many"}, read_parameters)["field"] == "size"
    assert refused({"q": "status:5", "search_after": "[" * 100_000}, read_parameters)["field"] == "search_after"


def test_a_place_fits_its_order() -> None:
    assert refused({"q": "status:5", "search_after": []})["field"] == "search_after"
    assert refused({"q": "status:5", "sort": ["time"], "search_after": ["5", "0" * 26]})["field"] == "search_after"
    found: SearchRequest = read({"q": "status:5", "search_after": None}, SEARCH)
    assert found.after is None

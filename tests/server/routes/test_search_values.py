"""Searches for values that are spelled in several ways; many events are read by DuckDB, a few one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from server.registries import append, installed
from server.routes.test_search import OPEN, SEARCH, field, numbers, search, stream

if TYPE_CHECKING:
    from tests.server.conftest import Api


@pytest.mark.parametrize("others", [0, 1_000], ids=["few", "many"])
def test_a_number_is_what_its_digits_say_however_it_is_spelled(api: Api, others: int) -> None:
    path = stream(api)
    spelled = ["9007199254740993.0", "9007199254740992.5", "900719925474099.3e1", "1e-400", "[1, 9007199254740993.0]"]
    events = [f'{{"n": {at}, "status": {text}}}' for at, text in enumerate(spelled)]
    body = ",".join([*events, *['{"n": 99, "status": 5}'] * others])
    assert api.post(path, f"[{body}]".encode(), {"content-type": "application/json"}).status_code == 204
    for q, expected in {
        "status:9007199254740993": [0, 2, 4],
        "status:9007199254740992": [],
        "status:0": [],
        "status:>=9007199254740992": [0, 2, 4],
        "has:status -status:5": [0, 2, 4],
    }.items():
        assert numbers(search(api, path, q, sort=["offset:asc"])) == expected, q
        assert [event["n"] for event in api.get(path, filter=q).json()] == expected, q


@pytest.mark.parametrize("others", [0, 1_000], ids=["few", "many"])
def test_a_text_of_digits_may_be_a_date(api: Api, others: int) -> None:
    path = stream(api)
    times = ["20240501", "20240231", "2024-05-01", "20240501123000", "2024123", "202405", "1714521600"]
    append(api, path, *({"n": at, "time": time} for at, time in enumerate(times)), *[{"n": 99}] * others)
    for q, expected in {
        "time:20240501": [0, 2],
        "time:2024-05-01": [0, 2],
        "time:20240501123000": [3],
        "time:2024123": [4],
        "time:<1971-01-01": [],
        "time:>2025-01-01": [],
        "has:time": [0, 2, 3, 4],
    }.items():
        assert numbers(search(api, path, q, sort=["offset:asc"])) == expected, q
    for q in ("time:20240231", "time:20240501126000", "time:2023366", "time:202405", "time:>1714521600"):
        assert "is no value of time" in api.get(f"{path}/_search", q=q).text


@pytest.mark.parametrize("name", ["time", "service", "status", "path", "tags", "message", "ts"])
@pytest.mark.parametrize("others", [0, 1_000], ids=["few", "many"])
def test_a_star_asks_for_any_value(api: Api, name: str, others: int) -> None:
    path = stream(api)
    whole = {"time": 5, "service": "a", "status": 1, "path": "/a", "tags": ["x"], "message": "word"}
    filler = [whole | {"n": 99, "status": 77}] * others
    append(api, path, whole | {"n": 0}, {"n": 1}, whole | {"n": 2}, *filler)
    for q in (f"{name}:*", f'"{name}":=*', f"has:{name}"):
        found = search(api, path, q, sort=["offset:asc"], track_total_hits=True)
        assert numbers(found)[:2] == [0, 2] and found["total"] == {"value": 2 + others, "relation": "eq"}, q
        assert numbers(search(api, path, f"-{q}", sort=["offset:asc"])) == [1], q
        assert [event["n"] for event in api.get(path, filter=f"-{q}").json()] == [1], q


def test_a_star_in_quotes_is_a_value(api: Api) -> None:
    path = stream(api)
    append(api, path, {"n": 0, "service": "*"}, {"n": 1, "service": "a"})
    assert numbers(search(api, path, 'service:"\\*"')) == [0]
    assert [event["n"] for event in api.get(path, filter='service:"*"').json()] == [0]


@pytest.mark.parametrize("member", ["fields", "aliases"])
def test_a_field_that_cannot_be_asked_is_refused(api: Api, member: str) -> None:
    path = installed(api, OPEN)
    given = SEARCH | {member: SEARCH[member] | {"has": "time" if member == "aliases" else SEARCH["fields"]["tags"]}}
    refused = api.post(f"{path}/_schema", {"search": given})
    [problem] = refused.json()["error"]["problems"]
    assert refused.status_code == 400
    assert problem["pointer"] == f"/search/{member}/has"
    assert "choose another name" in problem["message"]


@pytest.mark.parametrize("kind", ["integer", "float"])
@pytest.mark.parametrize("spelled", ["{}", "{}.0", "{}0e-1"])
def test_a_page_goes_on_after_a_number_however_it_is_spelled(api: Api, kind: str, spelled: str) -> None:
    size = field(kind, "/size", column=True, sortable=True)
    path = stream(api, search={**SEARCH, "fields": {**SEARCH["fields"], "size": size}})
    sizes = [2**53 - 2 + at for at in range(6)]
    append(api, path, *({"status": 5, "size": size} for size in sizes))
    seen: list[int] = []
    asked: dict[str, str] = {"q": "status:5", "sort": "size:asc,offset:asc", "size": "1"}
    for _ in sizes:
        page = api.get(f"{path}/_search", **asked)
        assert page.status_code == 200, page.text
        [hit] = page.json()["hits"]
        seen.append(hit["fields"]["size"])
        # The client repeats the digits of the event; a field of doubles compares the nearest one.
        asked["search_after"] = f'[{spelled.format(seen[-1])}, "{hit["sort"][-1]}"]'
    assert seen == sizes


@pytest.mark.parametrize("spelled", ["9007199254740992.5", "1e-400", '"5"'])
def test_a_page_goes_on_after_no_other_value(api: Api, spelled: str) -> None:
    answer = api.get(f"{stream(api)}/_search", q="status:5", sort="status", search_after=f'[{spelled}, "{"0" * 26}"]')
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == "search_after"

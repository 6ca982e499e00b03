"""Searching the events of a source: what may be asked follows from the types of its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.pipelines import Pipeline

if TYPE_CHECKING:
    from server.conftest import Api


def test_events_are_searched_by_their_fields_also_by_those_that_were_added(api: Api) -> None:
    pipeline = Pipeline(api)
    assert pipeline.register().status_code == 200
    address = f"/v1/push/{pipeline.event}"
    for number in range(5):
        api.post(address, {"user": f"u{number % 2}", "amount": number, "n": number})
    pipeline.descriptors[pipeline.event]["schema"]["city"] = {"type": "str", "required": False}
    assert pipeline.register().status_code == 200
    assert api.post(address, {"user": "u1", "amount": 9, "n": 9, "city": "Oslo"}).status_code == 200

    def found(query: str) -> list[float]:
        answer = api.post(f"/v1/stream/events/{pipeline.event}/_search", {"q": query, "sort": ["offset:asc"]})
        assert answer.status_code == 200, answer.text
        return [hit["source"]["n"] for hit in answer.json()["hits"]]

    assert found("user:u1") == [1, 3, 9]
    assert found("user:u1 amount:>2") == [3, 9]
    assert found("city:Oslo") == [9]

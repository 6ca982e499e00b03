"""Erasures as requests, and what their answers mean."""

from __future__ import annotations

import msgspec

from headrace.client import entity_requests
from headrace.client.answers import Answer
from headrace.client.entity_requests import Erasure

PLAN = {
    "ids": ["ent_a"], "observations": 2, "log_rows": 1, "segments": [{"name": "s", "bytes": 3, "observations": 1}],
    "companions": [], "states": [], "sources": ["src_1"], "idempotency_answers": 0,
}  # fmt: skip


def answer(status: int, document: object) -> Answer:
    return Answer(status, {}, msgspec.json.encode(document))


def test_an_erasure_is_asked_for_and_looked_at() -> None:
    asked = entity_requests.erase("ent_a/b", dry_run=True, user_id="ann")
    assert asked.method == "POST"
    assert asked.target == "/v1/entities/ent_a%2Fb/erase"
    assert asked.changes is False
    assert msgspec.json.decode(asked.body) == {"dry_run": True, "user_id": "ann"}
    assert entity_requests.erase("ent_a").changes
    assert entity_requests.get_erasure("e 1", user_id="ann").target == "/v1/erasures/e%201?user_id=ann"


def test_a_plan_and_an_erasure_are_read() -> None:
    plan = entity_requests.read_plan(answer(200, {"dry_run": True, "entity_id": "ent_a", "plan": PLAN}))
    assert plan.observations == 2
    assert plan.segments[0]["bytes"] == 3
    told = {
        "erasure_id": "e1", "entity_id": "ent_a", "entity_type": "person", "state": "running", "step": "log",
        "complete": False, "begun_at": "2026-01-01T00:00:00Z", "completed_at": None, "plan": PLAN, "report": {},
    }  # fmt: skip
    found = answer(202, told).decode(Erasure)
    assert found.erasure_id == "e1" and not found.complete and found.plan == plan

"""Erasures on the wire: an entity is removed for good, and how far that is."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.observations import path
from headrace.client.requests import Request, ask, segment, with_query

ERASURES_PATH = "/v1/erasures"


class ErasurePlan(msgspec.Struct, frozen=True):
    """What an erasure removes, and where it lies: objects are told with their names and bytes."""

    ids: list[str]
    observations: int
    log_rows: int
    segments: list[dict[str, Any]]
    companions: list[dict[str, Any]]
    states: list[dict[str, Any]]
    sources: list[str]
    idempotency_answers: int


class Erasure(msgspec.Struct, frozen=True):
    """An erasure that was begun; ``complete`` once nothing holds the data."""

    erasure_id: str
    entity_id: str
    entity_type: str
    state: str
    step: str
    complete: bool
    begun_at: str
    plan: ErasurePlan
    report: dict[str, Any]
    completed_at: str | None = None


class _Planned(msgspec.Struct):
    plan: ErasurePlan


def erase(entity_id: str, *, dry_run: bool = False, user_id: str | None = None) -> Request:
    """POST: remove an entity for good, or ask what that would remove."""
    document = {"dry_run": dry_run, "user_id": user_id}
    return ask(f"{path(entity_id)}/erase", document, changes=not dry_run)


def get(erasure_id: str, user_id: str | None = None) -> Request:
    """GET: how far an erasure is."""
    return Request("GET", with_query(f"{ERASURES_PATH}/{segment(erasure_id)}", {"user_id": user_id}))


def planned(answer: Answer) -> ErasurePlan:
    """What would be removed."""
    return answers.decoded(answer.checked().body, _Planned).plan


def begun(answer: Answer) -> Erasure:
    """An erasure as it is told."""
    return answers.decoded(answer.checked().body, Erasure)

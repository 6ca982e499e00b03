"""Registries on the wire: what is asked of a stream's schemas, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.requests import Request, stream_path
from headrace.types import JSON

Registry = dict[str, Any]

#: What is not given stays as it is; None clears it.
UNSET = msgspec.UNSET
Setting = Mapping[str, Any] | msgspec.UnsetType | None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a change does, or would do; ``registry`` is what it leads to, or what stays where it is refused."""

    subject: str
    from_version: int
    to_version: int
    classification: str
    requires_force: bool
    changes: list[dict[str, Any]]
    reasons: list[str]
    lens: dict[str, Any] | None
    impact: list[dict[str, Any]]
    refusals: list[dict[str, Any]]
    registry: Registry


class Revision(msgspec.Struct, frozen=True):
    """A registry as it was from a moment on."""

    revision: int
    at: str
    registry: Registry


class _History(msgspec.Struct):
    revisions: list[Revision]


def show(name: str) -> Request:
    """GET: the registry of a stream."""
    return Request("GET", _path(name))


def history(name: str) -> Request:
    """GET: every revision of it."""
    return Request("GET", f"{_path(name)}/history")


def evolve(
    name: str, schema: Any, lens: Mapping[str, Any] | None, *, routing_key: Setting, search: Setting, dry_run: bool
) -> Request:
    """POST: the next schema, the lens that leads to it, and the settings beside them."""
    given = {"schema": schema, "lens": UNSET if lens is None else lens, "routingKey": routing_key, "search": search}
    body = {field: value for field, value in given.items() if value is not UNSET}
    target = f"{_path(name)}?dry_run=true" if dry_run else _path(name)
    return Request("POST", target, {"content-type": JSON}, msgspec.json.encode(body))


def registry(answer: Answer) -> Registry:
    """The registry of a stream."""
    return answers.decoded(answer.checked().body, Registry)


def revisions(answer: Answer) -> list[Revision]:
    """Every revision of a registry, the oldest first."""
    return answers.decoded(answer.checked().body, _History).revisions


def plan(answer: Answer) -> Plan:
    """The plan that a dry run shows, or that was carried out: then it is the ``diff`` beside the registry."""
    document = registry(answer)
    diff = document.pop("diff", None)
    whole = document if diff is None else {**diff, "registry": document}
    return answers.decoded(msgspec.json.encode(whole), Plan)


def _path(name: str) -> str:
    return f"{stream_path(name)}/_schema"

"""Registration on the wire: what is asked of the registry of features, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.diffs import Diff, Effects
from headrace.client.options import known
from headrace.client.requests import Request, ask, with_query

REGISTRY_PATH = "/v1/registry"


class RegisterOptions(TypedDict, total=False):
    """What may be said with a registration, by the names of the protocol."""

    #: Do what loses state, too.
    force: bool
    #: Change nothing, and say what would change.
    dry_run: bool
    #: Whether features are computed from the events that are there; what is left out, the server decides.
    backfill: bool | None
    #: Whose descriptors these are: all of this app's, and none of another's.
    app: str | None
    #: Refuse if the registry has another version by now.
    expected_version: int | None
    #: Remove what depends on something that is removed, other apps' too.
    cascade: bool


class Registered(msgspec.Struct, frozen=True):
    """All that is registered: descriptors as they could be registered again, and whose each is."""

    registry_version: int
    descriptors: list[dict[str, Any]]
    apps: dict[str, str] = {}
    #: The life of every feature, by table and name.
    features: dict[str, dict[str, dict[str, Any]]] = {}


class RegistryVersion(msgspec.Struct, frozen=True):
    """A change of the registry: who made it, when, and what it changed."""

    registry_version: int
    at: str
    who: str
    app: str
    action: str
    force: bool
    added: list[str]
    removed: list[str]
    changed: list[dict[str, Any]]
    plan: Effects


class _History(msgspec.Struct):
    versions: list[RegistryVersion]


def register(document: Mapping[str, Any]) -> Request:
    """POST: all descriptors of an app, and the options beside them; what is None is left out."""
    return _post("/v1/register", document)


def registry(app: str | None) -> Request:
    """GET: the registry as it is, of one app or of all."""
    return Request("GET", with_query(REGISTRY_PATH, {"app": app}))


def history(after: int) -> Request:
    """GET: one page of versions after one."""
    return Request("GET", with_query(f"{REGISTRY_PATH}/history", {"after": str(after)}))


def rollback(version: int, options: RegisterOptions) -> Request:
    """POST: what was registered at a version, as the next one."""
    known(RegisterOptions, options)
    return _post(f"{REGISTRY_PATH}/rollback", {"version": version, **options})


def diff(answer: Answer) -> Diff:
    """What a registration changed, or would change."""
    return answers.decoded(answer.checked().body, Diff)


def registered(answer: Answer) -> Registered:
    """The registry as it is."""
    return answers.decoded(answer.checked().body, Registered)


def versions(answer: Answer) -> list[RegistryVersion]:
    """One page of versions; none is left where it is empty."""
    return answers.decoded(answer.checked().body, _History).versions


def _post(target: str, document: Mapping[str, Any]) -> Request:
    return ask(target, document, changes=not document.get("dry_run", False))

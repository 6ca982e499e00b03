"""Registries on the wire: what is asked of a stream's schemas, and what the answers mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.requests import Request, segment, stream_path
from headrace.types import JSON

Registry = dict[str, Any]

#: What is not given stays as it is; None clears it.
UNSET = msgspec.UNSET
Setting = Mapping[str, Any] | msgspec.UnsetType | None

FIRST_LOOK_S, LAST_LOOK_S = 0.05, 1.0


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


class Misfit(msgspec.Struct, frozen=True):
    """An event that would fail, at a lens or at the proposed schema: its offset, where in it, and why."""

    offset: str
    seq: int
    cause: str
    pointer: str
    reason: str


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """A change held against stored events: everything before ``through_offset`` was looked at.

    ``failing`` counts the events that would fail, by cause; ``failures`` are the first of them.
    """

    id: str
    stream: str
    state: str
    from_version: int
    to_version: int
    begun_at: str
    ended_at: str | None
    reason: str | None
    events: int
    total: int
    through_offset: str
    failing: dict[str, int]
    failures: list[Misfit]

    @property
    def ended(self) -> bool:
        """Whether nothing more will be found."""
        return self.state != "running"

    @property
    def passed(self) -> bool:
        """Whether every event carries the change."""
        return self.state == "done" and not any(self.failing.values())


class Verified(msgspec.Struct, frozen=True):
    """A plan, and what came of it on data; None where it makes no version that events could be held against."""

    plan: Plan
    verification: Verification | None


class Revision(msgspec.Struct, frozen=True):
    """A registry as it was from a moment on."""

    revision: int
    at: str
    registry: Registry


class _History(msgspec.Struct):
    revisions: list[Revision]


class _Begun(msgspec.Struct):
    verification: Verification | None


def show(name: str) -> Request:
    """GET: the registry of a stream."""
    return Request("GET", _path(name))


def history(name: str) -> Request:
    """GET: every revision of it."""
    return Request("GET", f"{_path(name)}/history")


def verification(name: str, id: str) -> Request:
    """GET: how far a verification is."""
    return Request("GET", f"{_path(name)}/verifications/{segment(id)}")


def evolve(
    name: str,
    schema: Any,
    lens: Mapping[str, Any] | None,
    *,
    routing_key: Setting,
    search: Setting,
    dry_run: bool,
    on_data: bool = False,
) -> Request:
    """POST: the next schema, the lens that leads to it, and the settings beside them."""
    changes = {"schema": schema, "lens": UNSET if lens is None else lens, "routingKey": routing_key, "search": search}
    body = {field: value for field, value in changes.items() if value is not UNSET}
    flags = "&".join(f"{flag}=true" for flag, is_set in {"dry_run": dry_run, "on_data": on_data}.items() if is_set)
    target = f"{_path(name)}?{flags}" if flags else _path(name)
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


def verified(answer: Answer) -> Verified:
    """The plan of a dry run on data, and the verification that has begun."""
    begun = answers.decoded(answer.checked().body, _Begun)
    return Verified(plan(answer), begun.verification)


def progress(answer: Answer) -> Verification:
    """A verification as it is now."""
    return answers.decoded(answer.checked().body, Verification)


def pauses() -> Iterator[float]:
    """How long to wait before each look at a verification."""
    pause = FIRST_LOOK_S
    while True:
        yield pause
        pause = min(2 * pause, LAST_LOOK_S)


def _path(name: str) -> str:
    return f"{stream_path(name)}/_schema"


#: A profile as it is shown: its kind, and its settings beside it.
Profile = dict[str, Any]


class _Resource(msgspec.Struct):
    profile: Profile


def show_profile(name: str) -> Request:
    """GET: the profile of a stream."""
    return Request("GET", _profile_path(name))


def change_profile(name: str, kind: str, settings: Mapping[str, Any] | None, *, dry_run: bool = False) -> Request:
    """POST: another profile, or other settings; a dry run only asks."""
    body = {"profile": {**(settings or {}), "kind": kind}}
    target = f"{_profile_path(name)}?dry_run=true" if dry_run else _profile_path(name)
    return Request("POST", target, {"content-type": JSON}, msgspec.json.encode(body), changes=not dry_run)


def profile(answer: Answer) -> Profile:
    """The profile of a stream."""
    return answers.decoded(answer.checked().body, _Resource).profile


def _profile_path(name: str) -> str:
    return f"{stream_path(name)}/_profile"

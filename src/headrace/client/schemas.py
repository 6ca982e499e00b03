"""Requests about the schemas and the profile of a stream, and their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.requests import Request, segment, stream_path
from headrace.types import JSON

Registry = dict[str, Any]

#: The default of a setting, which leaves it as it is; None clears it.
UNSET = msgspec.UNSET
Setting = Mapping[str, Any] | msgspec.UnsetType | None

FIRST_POLL_S, LAST_POLL_S = 0.05, 1.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a change; ``registry`` is its result, or the current registry if it is refused."""

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
    """The check of a change against stored events: everything before ``through_offset`` has been checked.

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
        """Whether the verification has ended."""
        return self.state != "running"

    @property
    def passed(self) -> bool:
        """Whether every event fits the change."""
        return self.state == "done" and not any(self.failing.values())


class Verified(msgspec.Struct, frozen=True):
    """A plan and its verification on data; None where the plan makes no new version."""

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
    """GET: the progress of a verification."""
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
    first_on_data: bool = False,
) -> Request:
    """POST: the next schema, the lens that leads to it, and the settings beside them."""
    changes = {"schema": schema, "lens": UNSET if lens is None else lens, "routingKey": routing_key, "search": search}
    body = {field: value for field, value in changes.items() if value is not UNSET}
    choices = {"dry_run": dry_run, "on_data": on_data, "first_on_data": first_on_data}
    flags = "&".join(f"{flag}=true" for flag, is_set in choices.items() if is_set)
    target = f"{_path(name)}?{flags}" if flags else _path(name)
    return Request("POST", target, {"content-type": JSON}, msgspec.json.encode(body))


def read_revisions(answer: Answer) -> list[Revision]:
    """Every revision of a registry, the oldest first."""
    return answer.decode(_History).revisions


def read_plan(answer: Answer) -> Plan:
    """The plan of a dry run, or the ``diff`` of an applied change."""
    document = answer.decode(Registry)
    diff = document.pop("diff", None)
    planned = document if diff is None else {**diff, "registry": document}
    return answers.decode_body(msgspec.json.encode(planned), Plan)


def read_verified(answer: Answer) -> Verified:
    """The plan of a dry run on data, and the verification that has begun."""
    begun = answer.decode(_Begun)
    return Verified(read_plan(answer), begun.verification)


def poll_pauses() -> Iterator[float]:
    """The pauses between polls, growing to a second."""
    pause = FIRST_POLL_S
    while True:
        yield pause
        pause = min(2 * pause, LAST_POLL_S)


def _path(name: str) -> str:
    return f"{stream_path(name)}/_schema"


#: A profile: its kind and its settings.
Profile = dict[str, Any]


class _Resource(msgspec.Struct):
    profile: Profile


def show_profile(name: str) -> Request:
    """GET: the profile of a stream."""
    return Request("GET", _profile_path(name))


def change_profile(name: str, kind: str, settings: Mapping[str, Any] | None, *, dry_run: bool = False) -> Request:
    """POST: another profile, or other settings; a dry run changes nothing."""
    body = {"profile": {**(settings or {}), "kind": kind}}
    target = f"{_profile_path(name)}?dry_run=true" if dry_run else _profile_path(name)
    return Request("POST", target, {"content-type": JSON}, msgspec.json.encode(body), changes=not dry_run)


def read_profile(answer: Answer) -> Profile:
    """The profile of a stream."""
    return answer.decode(_Resource).profile


def _profile_path(name: str) -> str:
    return f"{stream_path(name)}/_profile"

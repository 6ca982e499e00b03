"""Features on the wire: what is pushed and asked, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from headrace import decoding
from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.errors import PushRefused
from headrace.client.options import known
from headrace.client.requests import Moment, Request, moment, segment, to_json
from headrace.types import JSON

#: The most events of one request.
PUSH_EVENTS = 1_000

Key = Any
Asked = tuple[str, Key] | tuple[str, Key, Sequence[str]]


class GetOptions(TypedDict, total=False):
    """What may be said with a get."""

    #: Only these features; all where it is left out.
    features: Sequence[str] | None
    #: As it was at a moment.
    as_of: Moment | None
    #: Say how it came about, too: from which events on, and from which states.
    explain: bool


class Pushed(msgspec.Struct, frozen=True):
    """An event that is stored at ``offset``; ``idempotent_replay`` where it was there already."""

    offset: str
    registry_version: int = 0
    idempotent_replay: bool = False


class Row(dict[str, Any]):
    """The features of a key by name; none where the key was never seen.

    Where ``complete`` is false, features that are None are still computed from events of the past; in a row of the
    past, events that would count are not there any more, and ``events_from`` is when the first came that is.
    """

    complete: bool
    events_from: str | None = None
    explain: dict[str, Any] | None = None


class _Explained(msgspec.Struct):
    row: dict[str, Any]
    explain: dict[str, Any]


class _Batch(msgspec.Struct):
    results: list[dict[str, Any]]
    registry_version: int = 0


def push(event: str, fields: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Request:
    """POST: one event, or several."""
    return Request("POST", f"/v1/push/{segment(event)}", {"content-type": JSON}, to_json(fields))


def get(table: str, key: Key, **options: Unpack[GetOptions]) -> Request:
    """POST: the features of one key."""
    known(GetOptions, options)
    return _ask("/v1/get", {"table": table, "key": key, **_options(options)})


def batch_get(asked: Sequence[Asked]) -> Request:
    """POST: the features of several keys, as of one moment."""
    requests = [dict(zip(("table", "key", "features"), one, strict=False)) for one in asked]
    return _ask("/v1/batch_get", {"requests": requests})


def pushed(answer: Answer) -> Pushed:
    """The acknowledgement of one event."""
    return answers.decoded(answer.checked().body, Pushed)


def results(answer: Answer) -> list[dict[str, Any]]:
    """What became of each of several events, in order: an acknowledgement, or the error."""
    batch = answers.decoded(answer.checked().body, _Batch)
    return [{"registry_version": batch.registry_version, **one} for one in batch.results]


def all_pushed(found: Sequence[dict[str, Any]]) -> list[Pushed]:
    """The acknowledgements, if every event has one; raises what was refused otherwise."""
    refused = sum("error" in one for one in found)
    if refused:
        raise PushRefused(f"{refused:,} of {len(found):,} events were refused", results=list(found))
    return decoding.convert(list(found), list[Pushed])


def row(answer: Answer, *, explained: bool = False) -> Row:
    """The features of one key, and how they came about where that was asked for."""
    body = answer.checked().body
    if not explained:
        return _row(answers.decoded(body, dict[str, Any]), answer)
    found = answers.decoded(body, _Explained)
    made = _row(found.row, answer)
    made.explain = found.explain
    return made


def rows(answer: Answer) -> list[Row]:
    """The features of several keys, in the order in which they were asked for."""
    return [_row(one, answer) for one in answers.decoded(answer.checked().body, _Batch).results]


def _row(features: dict[str, Any], answer: Answer) -> Row:
    made = Row(features)
    made.complete = answer.headers.get("headrace-coverage", "complete") == "complete"
    made.events_from = answer.headers.get("headrace-events-from")
    return made


def _options(options: GetOptions) -> dict[str, Any]:
    features, as_of = options.get("features"), options.get("as_of")
    given = {
        "features": None if features is None else list(features),
        "as_of": moment(as_of) or None,
        "explain": options.get("explain") or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _ask(target: str, body: dict[str, Any]) -> Request:
    return Request("POST", target, {"content-type": JSON}, msgspec.json.encode(body), changes=False)

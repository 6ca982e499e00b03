"""Features on the wire: what is pushed and asked, and what the answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from headrace import decoding
from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.diffs import Diff, Effects
from headrace.client.errors import HistoryFailed, PushRefused
from headrace.client.requests import Moment, Request, ask, known, moment, segment, to_json, with_query
from headrace.types import JSON

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


class _RegistryVersions(msgspec.Struct):
    versions: list[RegistryVersion]


def register(document: Mapping[str, Any]) -> Request:
    """POST: all descriptors of an app, and the options beside them; what is None is left out."""
    return _post_change("/v1/register", document)


def registry(app: str | None) -> Request:
    """GET: the registry as it is, of one app or of all."""
    return Request("GET", with_query(REGISTRY_PATH, {"app": app}))


def history(after: int) -> Request:
    """GET: one page of versions after one."""
    return Request("GET", with_query(f"{REGISTRY_PATH}/history", {"after": str(after)}))


def rollback(version: int, options: RegisterOptions) -> Request:
    """POST: what was registered at a version, as the next one."""
    known(RegisterOptions, options)
    return _post_change(f"{REGISTRY_PATH}/rollback", {"version": version, **options})


def diff(answer: Answer) -> Diff:
    """What a registration changed, or would change."""
    return answers.decoded(answer.checked().body, Diff)


def registered(answer: Answer) -> Registered:
    """The registry as it is."""
    return answers.decoded(answer.checked().body, Registered)


def versions(answer: Answer) -> list[RegistryVersion]:
    """One page of versions; none is left where it is empty."""
    return answers.decoded(answer.checked().body, _RegistryVersions).versions


def _post_change(target: str, document: Mapping[str, Any]) -> Request:
    return ask(target, document, changes=not document.get("dry_run", False))


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


def batch_get(lookups: Sequence[Asked]) -> Request:
    """POST: the features of several keys, as of one moment."""
    requests = [dict(zip(("table", "key", "features"), lookup, strict=False)) for lookup in lookups]
    return _ask("/v1/batch_get", {"requests": requests})


def pushed(answer: Answer) -> Pushed:
    """The acknowledgement of one event."""
    return answers.decoded(answer.checked().body, Pushed)


def results(answer: Answer) -> list[dict[str, Any]]:
    """What became of each of several events, in order: an acknowledgement, or the error."""
    batch = answers.decoded(answer.checked().body, _Batch)
    return [{"registry_version": batch.registry_version, **outcome} for outcome in batch.results]


def all_pushed(outcomes: Sequence[dict[str, Any]]) -> list[Pushed]:
    """The acknowledgements, if every event has one; raises what was refused otherwise."""
    refused = sum("error" in outcome for outcome in outcomes)
    if refused:
        raise PushRefused(f"{refused:,} of {len(outcomes):,} events were refused", results=list(outcomes))
    return decoding.convert(list(outcomes), list[Pushed])


def row(answer: Answer, *, explained: bool = False) -> Row:
    """The features of one key, and how they came about where that was asked for."""
    body = answer.checked().body
    if not explained:
        return _row(answers.decoded(body, dict[str, Any]), answer)
    explained_row = answers.decoded(body, _Explained)
    made = _row(explained_row.row, answer)
    made.explain = explained_row.explain
    return made


def rows(answer: Answer) -> list[Row]:
    """The features of several keys, in the order in which they were asked for."""
    return [_row(row, answer) for row in answers.decoded(answer.checked().body, _Batch).results]


def _row(features: dict[str, Any], answer: Answer) -> Row:
    made = Row(features)
    made.complete = answer.headers.get("headrace-coverage", "complete") == "complete"
    made.events_from = answer.headers.get("headrace-events-from")
    return made


def _options(options: GetOptions) -> dict[str, Any]:
    features, as_of = options.get("features"), options.get("as_of")
    options_sent = {
        "features": None if features is None else list(features),
        "as_of": moment(as_of) or None,
        "explain": options.get("explain") or None,
    }
    return {name: value for name, value in options_sent.items() if value is not None}


def _ask(target: str, body: dict[str, Any]) -> Request:
    return Request("POST", target, {"content-type": JSON}, msgspec.json.encode(body), changes=False)


#: The most rows of one question.
HISTORY_ROWS = 10_000


class History(msgspec.Struct, frozen=True):
    """How a question stands; ``results`` are its rows once they are found."""

    id: str = ""
    state: str = "done"
    reason: str | None = None
    complete: bool = True
    events_from: str | None = None
    results: list[dict[str, Any]] = []


class _Begun(msgspec.Struct):
    history: History


def request_history(table: str, rows: Sequence[tuple[Key, Moment]], features: Sequence[str] | None) -> Request:
    """POST: the rows of these keys, each as it was at its moment."""
    document = {"rows": [{"key": key, "at": moment(at)} for key, at in rows]}
    body = document if features is None else {**document, "features": list(features)}
    return Request("POST", _path(table), {"content-type": JSON}, msgspec.json.encode(body), changes=False)


def poll_history(table: str, id: str) -> Request:
    """GET: how a question stands."""
    return Request("GET", f"{_path(table)}/{segment(id)}")


def started_history(answer: Answer) -> History:
    """The answer to a question, or where it will be found."""
    if answer.checked().status == 202:
        return answers.decoded(answer.body, _Begun).history
    return answers.decoded(answer.body, History)


def history_status(answer: Answer) -> History:
    """How a question stands now."""
    return answers.decoded(answer.checked().body, History)


def history_rows(history: History) -> list[Row]:
    """The rows of a question that is answered, in the order in which they were asked for."""
    if history.state != "done":
        raise HistoryFailed(f"the rows were not found: {history.reason}", history=history.id)
    rows = []
    for features in history.results:
        row = Row(features)
        row.complete, row.events_from = history.complete, history.events_from
        rows.append(row)
    return rows


def _path(table: str) -> str:
    return f"/v1/tables/{segment(table)}/history"

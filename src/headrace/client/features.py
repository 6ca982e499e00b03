"""Requests about features and their answers: registration, pushes, rows and history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from headrace import decoding
from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.declared_types import TableTypes, type_values, typed_table
from headrace.client.diffs import Effects
from headrace.client.errors import HistoryFailed, PushRefused
from headrace.client.frames import Tabular, nullable_pandas_frame
from headrace.client.json_values import moment, to_json
from headrace.client.requests import Moment, Request, check_options, post, segment, with_query
from headrace.errors import UnknownTable
from headrace.types import JSON

if TYPE_CHECKING:
    import pandas
    import pyarrow

REGISTRY_PATH = "/v1/registry"


class RegisterOptions(TypedDict, total=False):
    """Options of a registration, by the names of the protocol."""

    #: Allow changes that lose state.
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
    """The registry: descriptors in the form of a registration, and the app of each."""

    registry_version: int
    descriptors: list[dict[str, Any]]
    apps: dict[str, str] = {}
    #: The version of every feature, by table and name.
    features: dict[str, dict[str, dict[str, Any]]] = {}
    #: The types of every table.
    types: dict[str, TableTypes] = {}


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
    """POST: register again what was registered at a version."""
    check_options(RegisterOptions, options)
    return _post_change(f"{REGISTRY_PATH}/rollback", {"version": version, **options})


def read_versions(answer: Answer) -> list[RegistryVersion]:
    """One page of versions; an empty one is the last."""
    return answer.decode(_RegistryVersions).versions


def _post_change(target: str, document: Mapping[str, Any]) -> Request:
    return post(target, document, changes=not document.get("dry_run", False))


#: The most events of one push.
MAX_PUSHED_EVENTS = 1_000

Key = Any


class GetOptions(TypedDict, total=False):
    """Options of a get."""

    #: Only these features; all where it is left out.
    features: Sequence[str] | None
    #: The row at a moment of the past.
    as_of: Moment | None
    #: With ``as_of``: from the events that were appended until then.
    as_known_at: Moment | None
    #: Explain the row too: from which events and states it was computed.
    explain: bool


class Pushed(msgspec.Struct, frozen=True):
    """An event that is stored at ``offset``; ``idempotent_replay`` where it was there already."""

    offset: str
    registry_version: int = 0
    idempotent_replay: bool = False


class Row(dict[str, Any]):
    """The features of a key by name; none where the key was never seen.

    Values have the types that the table declares: moments are ``datetime`` in UTC, bytes are ``bytes``; ``raw`` has
    them as JSON has. In rows of the past ``key``, ``at`` and ``as_known_at`` are those of the question.

    Where ``complete`` is false, features that are None are still computed from events of the past; in a row of the
    past, events that would count are not there any more, and ``events_from`` is when the first came that is.
    ``late_events`` is how many events of the key came too late to count.
    """

    complete: bool
    events_from: str | None = None
    explain: dict[str, Any] | None = None
    late_events: int = 0
    key: Key = None
    at: Any = None
    as_known_at: Any = None

    def __init__(self, features: Mapping[str, Any], types: Mapping[str, str] | None = None) -> None:
        super().__init__(type_values(features, types) if types else features)
        self.raw: Mapping[str, Any] = features


class KeyRows(list[Row], Tabular):
    """The rows of several keys of one moment, in the order of the request; or all as one table, with their keys."""

    def __init__(self, rows: Iterable[Row], lookups: Sequence[Sequence[Any]], types: Mapping[str, TableTypes]) -> None:
        super().__init__(rows)
        self._lookups = lookups
        self._types = types

    def rows(self) -> list[dict[str, Any]]:
        """The rows as JSON has their values, each with the fields of its key."""
        names = list(self._table_types().key)
        return [{**key_fields(names, row.key), **row.raw} for row in self]

    def to_arrow(self) -> pyarrow.Table:
        """The rows as an Arrow table whose columns have the types that are declared; rows of one table of features."""
        types = self._table_types()
        features = {name for _, _, *rest in self._lookups for name in (rest[0] if rest else types.features)}
        wanted = {name: kind for name, kind in types.features.items() if name in features}
        return typed_table(self.rows(), {**types.key, **wanted})

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame, in which integers with a null stay integers."""
        return nullable_pandas_frame(self.to_arrow())

    def _table_types(self) -> TableTypes:
        tables = list(dict.fromkeys(lookup[0] for lookup in self._lookups))
        if len(tables) != 1:
            raise ValueError(f"a table has the rows of one table of features, and these are of {len(tables)}: {tables}")
        return require_types(self._types, tables[0])


def require_types(types: Mapping[str, TableTypes], table: str) -> TableTypes:
    """The types of a table; raises UnknownTable where there are none."""
    if table not in types:
        raise UnknownTable(f"there is no table {table} whose types the server says", table=table)
    return types[table]


def key_fields(names: Sequence[str], key: Key) -> dict[str, Any]:
    """The fields of a key by their names, as JSON has their values."""
    plain = msgspec.json.decode(to_json(key))
    values = plain if isinstance(plain, list) else [plain]
    return dict(zip(names, values, strict=False))


class _Explained(msgspec.Struct):
    row: dict[str, Any]
    explain: dict[str, Any]


class _Batch(msgspec.Struct):
    results: list[dict[str, Any]]
    late_events: list[int] | None = None
    registry_version: int = 0


def push(event: str, fields: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, first_row: int = 0) -> Request:
    """POST: one event, or several, which messages count from ``first_row`` on."""
    return Request("POST", f"/v1/push/{segment(event)}", {"content-type": JSON}, to_json(fields, first_row=first_row))


def get(table: str, key: Key, **options: Unpack[GetOptions]) -> Request:
    """POST: the features of one key."""
    check_options(GetOptions, options)
    return _post_question("/v1/get", {"table": table, "key": key, **_options(options)})


def batch_get(lookups: Sequence[tuple[Any, ...]]) -> Request:
    """POST: the features of several keys, as of one moment."""
    requests = [dict(zip(("table", "key", "features"), lookup, strict=False)) for lookup in lookups]
    return _post_question("/v1/batch_get", {"requests": requests})


def read_push_results(answer: Answer) -> list[dict[str, Any]]:
    """The outcome of each event, in order: an acknowledgement, or the error."""
    batch = answer.decode(_Batch)
    return [{"registry_version": batch.registry_version, **outcome} for outcome in batch.results]


def check_all_pushed(event: str, outcomes: Sequence[dict[str, Any]]) -> list[Pushed]:
    """The acknowledgements of all events of a name; raises PushRefused if one was refused."""
    refused = sum("error" in outcome for outcome in outcomes)
    if refused:
        message = f"{refused:,} of {len(outcomes):,} events were refused, the others are stored"
        raise PushRefused(message, event=event, results=list(outcomes))
    return decoding.convert(list(outcomes), list[Pushed])


def read_row(answer: Answer, types: TableTypes | None = None, *, explained: bool = False) -> Row:
    """The row of one key, with its explanation where that was requested."""
    body = answer.checked().body
    if not explained:
        return _make_row(answers.decode_body(body, dict[str, Any]), answer, types)
    explained_row = answers.decode_body(body, _Explained)
    row = _make_row(explained_row.row, answer, types)
    row.explain = explained_row.explain
    return row


def read_rows(answer: Answer, lookups: Sequence[Sequence[Any]], types: Mapping[str, TableTypes]) -> KeyRows:
    """The rows of several keys, in the order of the request."""
    rows = []
    batch = answer.decode(_Batch)
    late = batch.late_events or [0] * len(batch.results)
    for (table, key, *_), features, late_events in zip(lookups, batch.results, late, strict=True):
        row = _make_row(features, answer, types.get(table))
        row.key, row.late_events = key, late_events
        rows.append(row)
    return KeyRows(rows, lookups, types)


def _make_row(features: dict[str, Any], answer: Answer, types: TableTypes | None) -> Row:
    row = Row(features, types.features if types is not None else None)
    row.complete = answer.headers.get("headrace-coverage", "complete") == "complete"
    row.events_from = answer.headers.get("headrace-events-from")
    row.late_events = int(answer.headers.get("headrace-late-events", 0))
    return row


def _options(options: GetOptions) -> dict[str, Any]:
    features = options.get("features")
    options_sent = {
        "features": None if features is None else list(features),
        "as_of": moment(options.get("as_of")) or None,
        "as_known_at": moment(options.get("as_known_at")) or None,
        "explain": options.get("explain") or None,
    }
    return {name: value for name, value in options_sent.items() if value is not None}


def _post_question(target: str, body: dict[str, Any]) -> Request:
    return Request("POST", target, {"content-type": JSON}, to_json(body), changes=False)


#: The most rows of one history query.
MAX_HISTORY_ROWS = 10_000


class History(msgspec.Struct, frozen=True):
    """The state of a history query; ``results`` are its rows once it is done."""

    id: str = ""
    state: str = "done"
    reason: str | None = None
    complete: bool = True
    events_from: str | None = None
    results: list[dict[str, Any]] = []
    late_events: list[int] = []


class _Begun(msgspec.Struct):
    history: History


#: A key and its moment, and perhaps until when what counts was appended.
KeyMoment = tuple[Key, Moment] | tuple[Key, Moment, Moment]


def request_history(
    table: str,
    rows: Sequence[KeyMoment],
    features: Sequence[str] | None,
    *,
    first_row: int = 0,
    as_known_at: Moment | None = None,
) -> Request:
    """POST: a history query: the rows of keys, each at its moment; messages count them from ``first_row`` on."""
    documents = []
    for number, row in enumerate(rows, first_row):
        try:
            key, at, *more = row
            document = {"key": key, "at": moment(at)}
            (appended,) = more or (None,)
            if appended is not None:
                document["as_known_at"] = moment(appended)
            documents.append(document)
        except (TypeError, ValueError) as reason:
            kind = TypeError if isinstance(reason, TypeError) else ValueError
            raise kind(f"row {number} is no (key, moment): {reason}") from reason
    body = {
        "rows": msgspec.Raw(to_json(documents, first_row=first_row)),
        "features": None if features is None else list(features),
        "as_known_at": moment(as_known_at) or None,
    }
    sent = {name: value for name, value in body.items() if value is not None}
    return Request("POST", _path(table), {"content-type": JSON}, to_json(sent), changes=False)


def poll_history(table: str, id: str) -> Request:
    """GET: the state of a history query."""
    return Request("GET", f"{_path(table)}/{segment(id)}")


def read_history(answer: Answer) -> History:
    """The result of a history query, or the running query."""
    if answer.checked().status == 202:
        return answers.decode_body(answer.body, _Begun).history
    return answers.decode_body(answer.body, History)


def read_history_rows(
    history: History,
    questions: Sequence[KeyMoment],
    types: TableTypes | None = None,
    as_known_at: Moment | None = None,
) -> list[Row]:
    """The rows of a history query that is done, in the order of the request."""
    if history.state != "done":
        raise HistoryFailed(f"the rows were not found: {history.reason}", history=history.id)
    rows = []
    late_events = history.late_events or [0] * len(history.results)
    for features, late, (key, at, *more) in zip(history.results, late_events, questions, strict=True):
        row = Row(features, types.features if types is not None else None)
        row.complete, row.events_from, row.late_events = history.complete, history.events_from, late
        row.key, row.at, row.as_known_at = key, at, more[0] if more else as_known_at
        rows.append(row)
    return rows


def _path(table: str) -> str:
    return f"/v1/tables/{segment(table)}/history"

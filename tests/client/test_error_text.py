"""The text of each error alone says what failed, where, why, and what to do about it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

import headrace as hr
from headrace import errors, testing
from headrace.client.error_text import ADVICE, describe
from headrace.client.errors import from_answer
from headrace.errors import HeadraceError, every_error


class Txn(hr.Event):
    user: str
    amount: float


@hr.table(key="user")
def Spending(txn: Txn) -> hr.Aggregated:
    return txn.agg(n=hr.count(), total=hr.sum("amount"))


@hr.table(key="user")
def Wrong(txn: Txn) -> hr.Aggregated:
    return txn.agg(half=hr.quantile("amount", q=2))


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
DEFINITION = {"fields": {"name": {"type": "string", "required": True}}, "canonical_name_fields": ["name"]}
LENS = {"apiVersion": "durable.lens/v1", "schema": "orders", "from": 1, "to": 2, "ops": []}
NEWEST = "7ZZZZZZZZZZZZZZZZZW0000000"
DEFAULT_TIME = "2026-01-01T00:00:00Z"


class Refused(NamedTuple):
    """What is tried, the error that it raises, and parts of the text."""

    attempt: Callable[[hr.App], Any]
    kind: type[Exception]
    parts: tuple[str, ...]


def producer_of_another(app: hr.App) -> None:
    """A producer whose epoch has been taken over."""
    stream = app.client.stream("orders")
    for epoch in (2, 1):
        with stream.producer(id="till", epoch=epoch) as producer:
            producer.send({"n": 1}).result(10)


def append_at_an_old_tail(app: hr.App) -> None:
    stream = app.client.stream("orders")
    old, _ = (stream.append({"n": 1}).next_offset for _ in range(2))
    stream.append({"n": 1}, if_match=old)


def closed_producer(app: hr.App) -> None:
    with app.client.stream("orders").producer() as producer:
        pass
    producer.send({"n": 1})


def closed_client(app: hr.App) -> None:
    client = hr.Client(app.client.settings.url)
    client.close()
    client.stream("orders").info()


REFUSALS = {
    "a field is missing": Refused(
        lambda app: app.push(Txn, {"user": "ada"}),
        errors.MissingField,
        ("'amount' is required", "'Txn'", "Send the field"),
    ),
    "a field is unknown": Refused(
        lambda app: app.push(Txn, {"user": "ada", "amount": 1.0, "colour": "red"}),
        errors.UnknownField,
        ("'colour'", "'Txn'", "Leave the field out"),
    ),
    "a value has another type": Refused(
        lambda app: app.push(Txn, {"user": "ada", "amount": "1"}),
        errors.SchemaMismatch,
        ("/amount", '"number"', "'Txn'", "text is not converted"),
    ),
    "some of many events": Refused(
        lambda app: app.push_many(
            Txn, [{"user": "ada", "amount": 1.0}] * 1001 + [{"user": "ada"}, {"user": 3, "amount": 1}]
        ),
        hr.PushRefused,
        (
            "Txn: 2 of 1,003 events were refused, the others are stored",
            "rows[1001]: 'amount' is required (missing_field)",
            "rows[1002]: /user: value is not of type",
            "`refusals` has each",
        ),
    ),
    "one event instead of many": Refused(
        lambda app: app.push_many(Txn, {"user": "ada", "amount": 1.0}),
        TypeError,
        ("one event", "use push"),  # type: ignore[arg-type]
    ),
    "a value is no JSON": Refused(
        lambda app: app.push_many(Txn, [{"user": "ada", "amount": 1.0}, {"user": "ada", "amount": float("nan")}]),
        ValueError,
        ("row 1, field 'amount'", "nan", "send None, or text"),
    ),
    "an event is unknown": Refused(
        lambda app: app.push("Tnx", {}), errors.UnknownEvent, ("no event", "'Tnx'", "app.register")
    ),
    "a table is unknown": Refused(
        lambda app: app.get("Spendings", "ada"), errors.UnknownTable, ("no table", "'Spendings'", "app.register")
    ),
    "a table of several is unknown": Refused(
        lambda app: app.batch_get([(Spending, "ada"), ("Spendings", "ada")]),
        errors.UnknownTable,
        ("requests[1]", "'Spendings'", "app.register"),
    ),
    "a feature is unknown": Refused(
        lambda app: app.get(Spending, "ada", features=["totl"]),
        errors.FeatureNotInTable,
        ("Spending", "'totl'", "app.registry().features"),
    ),
    "a key has another shape": Refused(
        lambda app: app.get(Spending, 7), errors.KeyShapeMismatch, ("user (str)", "table 'Spending'", "key 7")
    ),
    "a key of a row has another shape": Refused(
        lambda app: list(app.history(Spending, [("ada", DEFAULT_TIME), (7, DEFAULT_TIME)])),
        errors.KeyShapeMismatch,
        ("rows[1].key", "user (str)", "'Spending'", "7"),
    ),
    "a moment is none": Refused(
        lambda app: app.get(Spending, "ada", as_of="yesterday"), errors.BadRequest, ("as_of", "'yesterday'", "RFC 3339")
    ),
    "a declaration is wrong": Refused(
        lambda app: app.register(Spending, Wrong),
        hr.RegistrationInvalid,
        (
            "changes nothing",
            "Wrong.agg.half.params.q: must be a number above 0 and below 1",
        ),
    ),
    "a table would be lost": Refused(
        lambda app: app.register(Txn), hr.RegistrationConflict, ("'Spending' is removed", "force=True", "- Spending")
    ),
    "another version of the registry": Refused(
        lambda app: app.register(Spending, expected_version=7),
        hr.RegistrationConflict,
        ("the registry has version 1, not 7", "app.registry()"),
    ),
    "a stream is not there": Refused(
        lambda app: app.client.stream("nope").info(), errors.NotFound, ("no such stream", "'nope'", "create()")
    ),
    "events do not fit their schema": Refused(
        lambda app: app.client.stream("orders").append([{"n": 1}, {"n": "x"}, {}]),
        errors.BadRequest,
        ("event 2 does not fit", "/n", "'orders'", "event 3", '"n" is a required property'),
    ),
    "a lens is unsound": Refused(
        lambda app: app.client.stream("orders").evolve({**SCHEMA, "properties": {"n": {"type": "string"}}}, LENS),
        errors.LensUnsound,
        ("/n: it may be an integer", "'orders'", "dry_run=True"),
    ),
    "a search configuration is wrong in several ways": Refused(
        lambda app: app.client.stream("orders").evolve(search={"fields": {"a": {"kind": "x"}}}),
        errors.BadRequest,
        ("must be one of keyword", "/search/fields/a/kind", "/search/fields/a/bindings: is required", "'orders'"),
    ),
    "search is not configured": Refused(
        lambda app: app.client.stream("orders").search("n:1"), errors.BadRequest, ("'orders'", "evolve(search=…)")
    ),
    "a stream is managed": Refused(
        lambda app: app.client.stream("events/Txn").evolve(SCHEMA),
        errors.ManagedStream,
        ("'events/Txn'", "registry", "app.register"),
    ),
    "a stream is closed": Refused(
        lambda app: app.client.stream("end").append({"n": 1}), errors.StreamClosed, ("'end'", "closed", "fork(name)")
    ),
    "a sequence does not increase": Refused(
        lambda app: [app.client.stream("orders").append({"n": 1}, seq=seq) for seq in ("b", "a")],
        errors.Conflict,
        ("'a' does not come after 'b'", "'orders'"),
    ),
    "the tail has moved": Refused(
        append_at_an_old_tail,
        errors.PreconditionFailed,
        ("'orders'", "Somebody else appended first"),
    ),
    "an offset is another stream's": Refused(
        lambda app: list(app.client.stream("orders").read(NEWEST)),
        errors.OffsetFenced,
        ("offset", "'orders'", "read from the start"),
    ),
    "an offset is none": Refused(
        lambda app: list(app.client.stream("orders").read("abc")),
        errors.BadRequest,
        ("offset", "26 characters", "'orders'"),
    ),
    "a producer was taken over": Refused(producer_of_another, errors.ProducerFenced, ("epoch", "an id of its own")),
    "a producer is closed": Refused(closed_producer, hr.ProducerClosed, ("closed", "stream.producer()")),
    "an entity is not there": Refused(
        lambda app: app.entities.get("ent_nope"), errors.EntityNotFound, ("'ent_nope'", "app.entities.list")
    ),
    "an entity has no type": Refused(
        lambda app: app.entities.store({"name": "x"}), errors.BadRequest, ("entity 1 has no entity_type",)
    ),
    "an entity type is unknown": Refused(
        lambda app: app.entities.types.get("compny"),
        errors.UnknownEntityType,
        ("'compny'", "app.entities.types.register"),
    ),
    "an entity type is wrong in several ways": Refused(
        lambda app: app.entities.types.register("company", "1", {"fields": {}}, {"merge_policies": {}}),
        errors.BadRequest,
        ("'1' is no version", "/schema_version", "/schema_definition/fields:"),
    ),
    "a version is taken": Refused(
        lambda app: [
            app.entities.types.register(
                "firm",
                "1.0.0",
                {**DEFINITION, "fields": {**DEFINITION["fields"], extra: {"type": "string"}}},
                {"merge_policies": {}},
            )  # type: ignore[dict-item]
            for extra in ("a", "b")
        ],
        errors.VersionTaken,
        ("1.0.0", "Raise the version"),
    ),
    "touch is off": Refused(
        lambda app: app.client.stream("orders").touch.meta(), errors.NotFound, ("touch", "'orders'", "set_profile")
    ),
    "a name is another path": Refused(
        lambda app: app.client.stream("a//b").info(), errors.BadRequest, ("stream name", "'..'")
    ),
    "a client is closed": Refused(closed_client, hr.ClientError, ("the client is closed: make another",)),
    "no server": Refused(
        lambda app: hr.Client("http://127.0.0.1:9", retry_for=0).stream("orders").info(),
        hr.Unreachable,
        ("http://127.0.0.1:9", "refused", "'orders'", "headrace up"),
    ),
    "an option is unknown": Refused(
        lambda app: app.client.stream("orders").append(1, kye="a"),  # type: ignore[call-arg]
        TypeError,
        ("'kye'", "did you mean 'key'"),
    ),
    "a moment has no time zone": Refused(
        lambda app: app.client.stream("orders").append({"n": 1}, timestamp="soon"),
        errors.BadRequest,
        ("'soon'", "RFC 3339"),
    ),
}


@pytest.fixture(scope="module")
def app() -> Iterator[testing.VirtualApp]:
    with testing.app() as app:
        app.register(Spending)
        orders = app.client.stream("orders")
        orders.create()
        orders.evolve(SCHEMA)
        app.client.stream("end").create(closed=True)
        yield app


@pytest.mark.parametrize("refused", REFUSALS.values(), ids=REFUSALS)
def test_a_text_says_what_where_why_and_what_to_do(app: testing.VirtualApp, refused: Refused) -> None:
    with pytest.raises(refused.kind) as caught:
        refused.attempt(app)
    assert type(caught.value) is refused.kind
    text = str(caught.value)
    assert [part for part in refused.parts if part not in text] == []
    if isinstance(caught.value, HeadraceError):
        assert str(pickle.loads(pickle.dumps(caught.value))) == text


#: Classes whose messages name the limit, the value or the two sides of a conflict, and so what to do.
SELF_EXPLAINING = {
    "bad_request",
    "not_found",
    "gone",
    "conflict",
    "internal",
    "client_error",
    "key_shape_mismatch",
    "producer_in_use",
    "push_refused",
    "rows_refused",
    "ERR_FORBIDDEN_ENTITY_TYPE",
    "ERR_PLURAL_ENTITY_TYPE",
    "ERR_CONSTRAINT_VIOLATION",
    "ERR_STORE_RESOLUTION_FAILED",
    "INVALID_CURSOR",
    "overloaded",
    "rate_limited",
    "source_mismatch",
}


def test_every_error_that_a_client_raises_has_advice_or_explains_itself() -> None:
    modules = (errors.__name__, "headrace.client.errors")
    codes = {kind.code for kind in every_error() if kind.__module__ in modules}
    assert codes - ADVICE.keys() - SELF_EXPLAINING == set()
    assert SELF_EXPLAINING & ADVICE.keys() == set()


@pytest.mark.parametrize("kind", [kind for kind in every_error() if kind.__module__ == errors.__name__])
def test_what_the_server_says_stays_the_message(kind: type[HeadraceError]) -> None:
    sent = kind("a sentence", stream="orders", field="/n")
    rebuilt = from_answer(kind.status, sent.headers(), msgspec.json.encode(sent.body()))
    assert rebuilt.message == "a sentence"
    assert str(rebuilt).startswith("a sentence (stream 'orders', at /n)")


def test_what_a_message_names_is_not_repeated() -> None:
    facts = {"stream": "end", "field": "/n", "failures": [{"index": 0, "path": "/n", "message": "/n is no number"}]}
    assert describe("event 0: /n is no number", "x", facts) == "event 0: /n is no number (stream 'end')"
    assert describe("the end: /n is no number", "x", facts) == "the end: /n is no number"


def test_many_reasons_are_cut() -> None:
    facts = {"problems": [{"pointer": f"/{number}", "message": f"is wrong {number}"} for number in range(12)]}
    lines = describe("is wrong 0", "x", facts).splitlines()
    assert lines[:2] == ["is wrong 0", "  /1: is wrong 1"]
    assert lines[-1] == "  … and 1 more"
    assert len(lines) == 12


def test_a_pause_that_the_server_asks_for_is_the_advice() -> None:
    assert describe("a queue is full", "overloaded", {"retry_after": 3}) == "a queue is full\nTry again in 3 s."

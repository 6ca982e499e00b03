"""A story told to a server in this process while a tracer of every thread is installed: ``profile`` or ``trace``."""

from __future__ import annotations

import sys
import tempfile
import threading
from typing import Any

import headrace as hr
from headrace import testing
from headrace.client.entities import Entities
from headrace.errors import TimedOut

WORD = {"type": "string"}
#: The tracer makes everything many times slower.
PLENTY_S = "60"


@hr.event
class Visit:
    user: str


@hr.table(key="user")
def Visits(visit: Visit):  # type: ignore[no-untyped-def]
    return visit.agg(ever=hr.count())


def shape(*names: str) -> dict[str, Any]:
    """A closed object with these members, all of them words."""
    properties = dict.fromkeys(names, WORD)
    return {"type": "object", "properties": properties, "required": list(names), "additionalProperties": False}


def hard(depth: int, leaf: Any) -> Any:
    """Choices within choices: a proof over them takes longer than a request may."""
    if not depth:
        return leaf
    inner = {"type": "object", "properties": {"a": hard(depth - 1, leaf)}}
    return {"anyOf": [{**inner, "required": ["a"]}, {**inner, "required": ["a", "b"]}]}


def tell() -> None:
    """Create, append, change the schema with a lens, search, register features and observe entities."""
    with testing.app(server__resolver_timeout_s=PLENTY_S) as app:
        stream = app.client.stream("words")
        stream.create()
        search = {
            "primaryTimestampField": "time",
            "fields": {
                "time": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/t"}], "column": True},
                "word": {"kind": "keyword", "exact": True, "bindings": [{"version": 1, "jsonPointer": "/word"}]},
            },
        }
        stream.evolve(shape("word", "t"), search=search)
        stream.append([{"word": word, "t": "2026-01-01T00:00:00Z"} for word in ("alpha", "beta")])
        rename = {"op": "rename", "from": "/word", "to": "/term"}
        lens = {"apiVersion": "durable.lens/v1", "schema": "words", "from": 1, "to": 2, "ops": [rename]}
        stream.evolve(shape("term", "t"), lens)
        assert [event["term"] for batch in stream.read() for event in batch.items] == ["alpha", "beta"]
        assert len(stream.search("word:beta").hits) == 1

        app.register(Visits)
        app.push(Visit, {"user": "u1"})
        assert app.get(Visits, "u1") == {"ever": 1}

        entities = Entities(app.client)
        stored = entities.store({"entity_type": "contact", "email": "ann@example.org", "name": "Ann"})
        assert entities.get(stored.entities[0].entity_id).snapshot["name"] == "Ann"


def run_out_of_time(data_dir: str) -> None:
    """Plan a change whose proof takes too long: it is refused in time, and the server goes on."""
    with testing.app(data_dir, server__resolver_timeout_s=PLENTY_S) as app:
        app.client.stream("choices").create()
        app.client.stream("choices").evolve(hard(9, WORD))
    with testing.app(data_dir, server__resolver_timeout_s="0.3") as app:
        stream = app.client.stream("choices")
        try:
            stream.evolve(hard(9, {"type": ["string", "null"]}), dry_run=True)
        except TimedOut:
            assert stream.info().name == "choices"
        else:
            raise AssertionError("the proof ended in time: it is too easy for this test")


def main(kind: str) -> None:
    """Install the tracer in every thread that there will be, and tell the story."""
    seen: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> Any:
        seen.add(threading.current_thread().name)
        return note

    install = {"profile": (threading.setprofile, sys.setprofile), "trace": (threading.settrace, sys.settrace)}
    for setter in install[kind]:
        setter(note)
    try:
        tell()
        with tempfile.TemporaryDirectory() as data_dir:
            run_out_of_time(data_dir)
    finally:
        for setter in install[kind]:
            setter(None)  # type: ignore[arg-type]
    assert {"headrace-testing", "headrace-writer"} <= seen, seen
    print("told")


if __name__ == "__main__":
    main(sys.argv[1])

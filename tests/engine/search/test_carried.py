"""Fields that a lens moves are found as before: in the tail, in segments, in companions, and after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.registries import change, forget_carried_bindings, registry
from engine.search.searches import Searched
from headrace.deadline import Deadline
from headrace.engine.search.aggregate import aggregate
from headrace.query.definition import Definition
from headrace.reduce.request import read
from headrace.server.routes.details import describe_details
from reduce.answers import decoded
from server.registries import TEXT, WHOLE, lens, rename, shape
from support.engine_rig import Rig

OLD = shape(at=WHOLE, host=TEXT, duration_ms=WHOLE)
NEW = shape(at=WHOLE, service=TEXT, latency_ms=WHOLE)
OPS = [rename("duration_ms", "latency_ms"), rename("host", "service")]


def bound(kind: str, place: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "bindings": [{"version": 1, "jsonPointer": place}], "exact": True, **more}


SEARCH: dict[str, Any] = {
    "primaryTimestampField": "at",
    "aliases": {"duration": "ms"},
    "fields": {
        "at": bound("date", "/at", column=True),
        "host": bound("keyword", "/host"),
        "ms": bound("integer", "/duration_ms", column=True, aggregatable=True, sortable=True),
    },
    "rollups": {
        "load": {
            "dimensions": ["host"],
            "intervals": ["1m"],
            "measures": {"n": {"kind": "count"}, "ms": {"kind": "summary", "field": "ms"}},
        }
    },
}
BEFORE = [{"at": at * 1000, "host": f"h{at % 2}", "duration_ms": at} for at in range(6)]
AFTER = [{"at": at * 1000, "service": f"h{at % 2}", "latency_ms": at} for at in range(6, 10)]


def made(rig: Rig) -> Searched:
    stream = Searched(rig, SEARCH, OLD)
    stream.append(*BEFORE)
    return stream


def evolve(stream: Searched) -> None:
    change(stream.rig, stream.name, schema=NEW, lens=lens(stream.name, 1, *OPS))


def sums(stream: Searched) -> dict[str, tuple[int, float]]:
    """The number of events and the sum of durations, by host."""
    found, head = stream.stream, stream.stream.head
    defined = stream.archive.defined(found, head)
    request = {"rollup": "load", "interval": "1m", "from": 0, "to": 10**10, "group_by": ["host"]}
    answer = aggregate(stream.archive, found, head, defined, read(request, defined.definition.search), Deadline(60))
    assert not answer.missing.events
    groups = [group for bucket in decoded(answer.buckets) for group in bucket["groups"]]
    return {g["key"]["host"]: (g["measures"]["n"]["count"], g["measures"]["ms"]["sum"]) for g in groups}


def answers(stream: Searched) -> Any:
    queries = ("ms:>1", "duration:<=3", "host:h1 ms:>=3", "has:ms")
    return [sorted(stream.ask(q).seqs) for q in queries], stream.ask("has:ms", sort=["ms:desc"]).seqs, sums(stream)


def in_the_tail(stream: Searched) -> None:
    pass


def in_segments(stream: Searched) -> None:
    stream.rig.publish(stream.name)


def in_companions(stream: Searched) -> None:
    stream.rig.publish(stream.name)
    stream.index(0, len(BEFORE))


@pytest.mark.parametrize("prepare", [in_the_tail, in_segments, in_companions])
def test_moved_fields_answer_as_before(rig: Rig, prepare: Callable[[Searched], None]) -> None:
    stream = made(rig)
    prepare(stream)
    before = answers(stream)
    assert before == (
        [[2, 3, 4, 5], [0, 1, 2, 3], [3, 5], [0, 1, 2, 3, 4, 5]],
        [5, 4, 3, 2, 1, 0],
        {"h0": (3, 6.0), "h1": (3, 9.0)},
    )
    evolve(stream)
    assert answers(stream) == before
    stream.append(*AFTER)
    grown = answers(stream)
    assert grown[0][0] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert grown[2] == {"h0": (5, 20.0), "h1": (5, 25.0)}
    in_segments(stream)
    assert answers(stream) == grown
    rig.reopen()
    assert answers(stream) == grown


def test_companions_that_were_made_before_the_lens_answer_after_it(rig: Rig) -> None:
    stream = made(rig)
    hashes = [_hashes(stream)]
    evolve(stream)
    hashes.append(_hashes(stream))
    assert hashes[0] == hashes[1]


def test_many_events_are_described_alike(rig: Rig) -> None:
    stream = made(rig)
    stream.append(*({"at": at, "host": "x", "duration_ms": at} for at in range(400)))
    in_segments(stream)
    evolve(stream)
    stream.append(*({"at": at, "service": "x", "latency_ms": at} for at in range(400)))
    found = sorted(stream.ask("ms:>=390", size=500).seqs)
    assert found == [*range(396, 406), *range(796, 806)]
    in_segments(stream)
    stream.index(0, 806)
    assert sorted(stream.ask("ms:>=390", size=500).seqs) == found


def _hashes(stream: Searched) -> list[str]:
    definition = Definition.of(registry(stream.rig, stream.name))
    assert definition is not None
    return [definition.field_hash("ms", 1), definition.field_hash("host", 1), definition.rollup_hash("load", 1)]


def test_bindings_are_written_for_the_version_that_moves_them(rig: Rig) -> None:
    stream = made(rig)
    evolve(stream)
    fields = registry(rig, stream.name).search["fields"]
    assert fields["ms"]["bindings"] == [
        {"version": 1, "jsonPointer": "/duration_ms"},
        {"version": 2, "jsonPointer": "/latency_ms"},
    ]
    assert fields["at"]["bindings"] == [{"version": 1, "jsonPointer": "/at"}]
    # The document that was sent first, sent again, changes nothing.
    again = change(rig, stream.name, schema=NEW, search=SEARCH)
    assert again.search["fields"] == fields
    assert len(rig.engine.schemas.history(stream.stream)) == 2


def test_a_field_that_was_emptied_earlier_is_reported_and_mended(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        stream = made(rig)
        before = answers(stream)
        evolve(stream)
    forget_carried_bindings(tmp_path, stream.name, 2)
    with Rig(tmp_path) as rig:
        stream = Searched.of(rig, stream.name)
        # A stored binding keeps its meaning.
        assert stream.ask("has:ms").seqs == []
        reported = msgspec.to_builtins(describe_details(rig.engine, stream.stream).emptied_fields)
        assert reported == [
            {"field": "host", "from_version": 2, "binding": {"version": 2, "jsonPointer": "/service"}},
            {"field": "ms", "from_version": 2, "binding": {"version": 2, "jsonPointer": "/latency_ms"}},
        ]
        mended = registry(rig, stream.name).dump()["search"]
        for one in reported:
            mended["fields"][one["field"]]["bindings"].append(one["binding"])
        change(rig, stream.name, search=mended)
        assert answers(stream) == before
        assert describe_details(rig.engine, stream.stream).emptied_fields == []

"""How far indexes are: segments that companions cover, what is out of date, and whose bytes are whose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.registries import change, evolve
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import save_registry
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.search.index_status import CoveredSegments, Index, IndexBytes, IndexStatus, split
from headrace.errors import NotFound
from headrace.format.companion.layout import Companion, PartFile
from headrace.query import search_document
from headrace.query.search import Search
from headrace.types import JSON
from support.engine_rig import START_US, Rig, array
from support.work_rig import SCHEMA, Worker, listed, opened, publish, search, searched

ROLLUP = {"intervals": ["1m"], "measures": {"events": {"kind": "count"}}}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened(tmp_path, fan_out=100) as rig:
        yield rig


def status(rig: Rig, name: str) -> IndexStatus:
    return rig.engine.indexes.status(rig.find(name))


def exact(rig: Rig, name: str) -> dict[str, Index]:
    return {index.name: index for index in status(rig, name).exact}


def work(rig: Rig, units: int) -> None:
    worker = Worker(rig)
    worker.commit(worker.granted(limit=units, jobs=["index"]))


def test_a_stream_without_search_fields_wants_no_index(rig: Rig) -> None:
    rig.create("s", JSON, array(1))
    rig.publish("s")
    found = status(rig, "s")
    assert found.generation == 0
    assert found.exact == ()
    assert found.families == ()
    assert found.objects == 0
    assert found.segments == 1
    assert found.is_complete is True
    assert found.sizes.total == 0
    assert found.lexicon.covered == CoveredSegments()
    assert found.lexicon.behind == 1


def test_segments_are_counted_as_companions_cover_them(rig: Rig) -> None:
    searched(rig, "s")
    for _ in range(4):
        rig.clock.us += 1_000_000
        publish(rig, "s", 10)
    before = status(rig, "s")
    assert before.segments == 4
    assert before.is_complete is False
    assert before.generation == 1
    assert before.everything == CoveredSegments(4, 4, START_US + 4_000_000)
    work(rig, 2)
    for index in (*exact(rig, "s").values(), *status(rig, "s").families, status(rig, "s").lexicon):
        assert index.covered == CoveredSegments(2, 2, START_US + 2_000_000)
        assert index.behind == 2
        assert index.outdated == 0
        assert index.is_stale is False
        assert index.active == 2
        assert index.objects == 2
    work(rig, 2)
    after = status(rig, "s")
    assert after.is_complete is True
    assert after.objects == 12
    assert {index.behind for index in (*after.exact, *after.families)} == {0}


def test_what_is_covered_beyond_a_gap_does_not_count_as_contiguous(rig: Rig) -> None:
    searched(rig, "s", 40)
    worker = Worker(rig)
    grant = worker.granted()
    worker.commit(grant, [one for at, one in enumerate(worker.made(grant)) if at != 1])
    for index in exact(rig, "s").values():
        assert index.covered.segments == 3
        assert index.covered.contiguous == 1
        assert index.behind == 1
    assert not status(rig, "s").is_complete


def test_a_new_field_is_behind_and_the_others_are_not(rig: Rig) -> None:
    searched(rig, "s", 20)
    work(rig, 2)
    change(rig, "s", search=search("user", "team"))
    found = exact(rig, "s")
    assert found["user"].behind == 0
    assert found["at"].behind == 0
    assert found["team"].behind == 2
    assert not any(index.is_stale for index in found.values()), "nobody has the field in another form"
    (family, _) = status(rig, "s").families
    assert family.name == "exact"
    assert family.behind == 2
    assert family.outdated == 2
    assert family.is_stale is True
    assert status(rig, "s").generation == 2
    Worker(rig).work()
    assert {index.behind for index in exact(rig, "s").values()} == {0}
    assert [(one.outdated, one.is_stale) for one in status(rig, "s").families] == [(0, False)] * 2


def test_a_changed_field_is_stale_until_it_is_built_anew(rig: Rig) -> None:
    searched(rig, "s", 20)
    work(rig, 2)
    changed = search("user")
    changed["fields"]["user"]["normalizer"] = "lowercase_v1"
    change(rig, "s", search=changed)
    found = exact(rig, "s")
    assert found["user"].is_stale is True
    assert found["user"].behind == 2
    assert found["user"].outdated == 2
    assert found["at"].is_stale is False
    assert found["at"].behind == 0
    work(rig, 1)
    found = exact(rig, "s")
    assert found["user"].is_stale is True
    assert found["user"].behind == 1
    assert found["user"].covered.segments == 1
    work(rig, 1)
    assert exact(rig, "s")["user"].is_stale is False
    assert exact(rig, "s")["user"].behind == 0
    assert {index.retired for index in exact(rig, "s").values()} <= {0, 2}


def test_companions_that_others_took_the_place_of_are_retired_until_a_manifest_says_so(rig: Rig) -> None:
    searched(rig, "s", 20)
    work(rig, 2)
    change(rig, "s", search=search("user", "team"))
    work(rig, 2)
    found = exact(rig, "s")
    assert found["user"].active == 2
    assert found["user"].retired == 2
    assert found["team"].active == 2
    assert found["team"].retired == 0
    assert status(rig, "s").objects == 6
    rig.publish("s")
    assert exact(rig, "s")["user"].retired == 0


def test_families_name_their_fields(rig: Rig) -> None:
    rig.create("s", JSON)
    declared = search("user", **{"per_minute": ROLLUP})
    fields: dict[str, Any] = declared["fields"]
    bound = [{"version": 1, "jsonPointer": "/x"}]
    fields["user"] |= {"prefix": True}
    fields["message"] = {"kind": "text", "bindings": bound, "analyzer": "unicode_word_v1"}
    fields["plain"] = {"kind": "integer", "bindings": bound, "exact": True}
    change(rig, "s", schema=SCHEMA, search=declared)
    found = {index.name: index.fields for index in status(rig, "s").families}
    assert found == {
        "exact": ("at", "user", "plain"),
        "col": ("at", "user"),
        "fts": ("user", "message"),
        "agg": ("per_minute",),
    }
    assert [index.name for index in status(rig, "s").exact] == ["at", "plain", "user"]


def test_entries_before_a_break_are_not_waited_for(rig: Rig) -> None:
    searched(rig, "s", 20)
    Worker(rig).work()
    stream = rig.find("s")

    def cut(batch: Batch) -> None:
        known = batch.draft(stream).registry
        assert known is not None
        registry = StreamRegistry(known.registry.advanced({"type": "object"}, None, 20), known.revision + 1)
        batch.draft(stream).registry = registry
        save_registry(batch, stream.id, registry)

    rig.run(rig.engine.apply(cut))
    publish(rig, "s", 10)
    found = status(rig, "s")
    assert found.segments == 3
    assert exact(rig, "s")["user"].behind == 1
    assert not exact(rig, "s")["user"].is_stale
    Worker(rig).work()
    found = status(rig, "s")
    assert found.segments == 3
    assert found.is_complete is True
    assert exact(rig, "s")["user"].covered == CoveredSegments(1, 1, START_US)


def test_retention_takes_segments_out_of_the_count(rig: Rig) -> None:
    searched(rig, "s", 40)
    Worker(rig).work()
    head = rig.find("s").head
    rig.retain("s", size=head.bytes // 2)
    assert rig.find("s").head.first_seq == 20
    found = status(rig, "s")
    assert found.segments == 2
    assert found.is_complete is True
    assert exact(rig, "s")["user"].covered.segments == 2


def test_a_fork_counts_the_segments_it_reads(rig: Rig) -> None:
    searched(rig, "s", 30)
    rig.fork("s", "f", 15)
    publish(rig, "f", 10)
    assert status(rig, "f").segments == 3, "one of its source, half of another, and its own"
    assert exact(rig, "f")["user"].behind == 3
    Worker(rig).work()
    found = status(rig, "f")
    assert found.segments == 3
    assert found.is_complete is True
    assert exact(rig, "f")["user"].covered.contiguous == 3


def test_every_byte_is_someones(rig: Rig) -> None:
    searched(rig, "s", 20)
    Worker(rig).work()
    found, shares = status(rig, "s"), status(rig, "s").sizes
    assert shares.total == sum(part.bytes for one in listed(rig, "s") for part in one.parts.values()) > 0
    assert sum(shares.families.values()) + shares.lexicon == shares.total
    assert {index.name: index.bytes for index in found.families} == {
        name: shares.families[name] for name in ("exact", "col")
    }
    assert sum(index.bytes for index in found.exact) == shares.families["exact"]


def test_what_was_found_is_remembered_until_something_changes(rig: Rig) -> None:
    searched(rig, "s", 10)
    first = status(rig, "s")
    rig.append("s", array({"user": "x"}))
    assert status(rig, "s") is first
    for step in (lambda: rig.publish("s"), lambda: work(rig, 1), lambda: evolve(rig, "s", {"title": "next"})):
        before = status(rig, "s")
        step()
        assert status(rig, "s") is not before


def test_a_stream_that_is_gone_has_no_status(rig: Rig) -> None:
    searched(rig, "s", 10)
    stream = rig.find("s")
    rig.delete("s")
    rig.sweep()
    rig.clock.us += 10**15
    rig.sweep()
    with pytest.raises(NotFound):
        rig.engine.indexes.status(stream)


def companion(postings: int, *names: str, keys: bool = True, words: int = 0) -> Companion:
    return Companion(
        name="c",
        first_seq=0,
        count=10,
        level=0,
        through_version=1,
        fields=dict.fromkeys(names, "hash"),
        rollups={},
        keys=keys,
        columns=PartFile(1000, ""),
        postings=PartFile(postings, "") if postings else None,
        panes=PartFile(100, ""),
        times=None,
        segments=1,
        words={"message": (10, words)} if "message" in names else {},
    )


@given(st.integers(0, 2**50), st.dictionaries(st.text(), st.integers(0, 2**40), min_size=1))
def test_parts_are_the_whole(total: int, weights: dict[str, int]) -> None:
    parts = split(total, weights)
    assert list(parts) == list(weights)
    assert sum(parts.values()) == (total if sum(weights.values()) else 0)
    for name, weight in weights.items():
        if sum(weights.values()):
            assert abs(parts[name] - total * weight / sum(weights.values())) <= 1 + total * 1e-9


@pytest.mark.parametrize("declared", [True, False])
def test_postings_are_split_by_how_many_there_are(declared: bool) -> None:
    parsed = search_document.parse_search_document(search("user"), current_version=1)
    assert isinstance(parsed, Search)
    sizes = IndexBytes(parsed if declared else None)
    sizes.add([companion(400, "user", "message", words=15), companion(200, "user", "message", words=5)])
    assert sizes.postings == {"": 150, "user": 150, "message": 300}
    assert sizes.lexicon == 150
    assert sizes.total == 2800
    assert sizes.families == {"exact": 150, "fts": 300, "col": 2000, "agg": 200}


def test_a_companion_without_postings_has_none_to_split() -> None:
    sizes = IndexBytes(None)
    sizes.add([companion(0, "user")])
    assert sizes.total == 1100
    assert sizes.lexicon == 0
    assert sizes.families["exact"] == 0

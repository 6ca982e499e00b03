"""Searches over files, memory and the log: one answer, whatever lies where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.registries import change
from engine.search.oracle import expected
from engine.search.searches import SHAPES, Searched, document
from headrace.deadline import Deadline
from headrace.engine.history.stored_events import Events, EventsMoved
from headrace.engine.search import search
from headrace.engine.search.search import SearchHits
from headrace.errors import BadRequest, CorruptData, NotFound, OffsetFenced, Unavailable
from headrace.format.companion.layout import Limits
from headrace.format.object_names import companion_key
from headrace.storage.derived import Companions
from server.registries import lens
from support.engine_rig import Rig, array

SMALL = Limits(rows=4, postings=8, terms=4, filtered=2)
WORDS = ("red green", "green", "blue red red", "", "red")
QUERIES = (
    "has:time", "service:a", "service:a*", "status:>=3", "status:4 OR duration:<1.5", "-has:tags", "red",
    "message:gre*", '"red green"', "-red", "tags:x status:<4", "contains:message:ree",
)  # fmt: skip
ORDERS: tuple[list[str], ...] = ([], ["offset:asc"], ["time"], ["status:asc", "time:asc"], ["service", "_score"])


def events(start: int, stop: int, code: str = "code", body: str = "body") -> list[dict[str, Any]]:
    return [
        {
            "time": 1000 * (n % 7) + n,
            "service": "abc"[n % 3],
            "tags": ["x", "y"][: n % 3],
            "duration": n / 4,
            code: n % 6,
            body: WORDS[n % 5],
        }
        for n in range(start, stop)
    ]


def same_as_oracle(stream: Searched) -> None:
    """Every query in every order gives what the oracle gives, page by page."""
    documents = stream.documents()
    for query in QUERIES:
        for order in ORDERS:
            pages = stream.pages(query, sort=order, size=7)
            wanted = expected(stream.search, documents, pages[0].request)
            assert [seq for page in pages for seq in page.seqs] == [seq for seq, _ in wanted], (query, order)


# -- where events lie


@pytest.mark.parametrize("covered", [[], [(0, 40)], [(0, 13), (13, 20), (25, 40)], [(5, 9), (0, 30)]])
def test_it_does_not_matter_what_is_indexed(rig: Rig, covered: list[tuple[int, int]]) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 25))
    rig.publish(stream.name)
    stream.append(*events(25, 40))
    for start, stop in covered:
        stream.index(start, stop, SMALL)
    same_as_oracle(stream)


def test_coverage_counts_what_answered(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    rig.publish(stream.name)
    stream.index(0, 12)
    stream.append(*events(20, 25))
    found = stream.ask("has:time", size=500).found
    assert found.tally.indexed_segments == 1
    assert found.tally.scanned_segments == 1
    assert found.tally.scanned_tail_docs == 5
    assert found.families == ("col",)
    assert found.tally.latest_ms == max(event["time"] for event in events(0, 25))
    assert stream.ask('service:a status:>2 "x y"', size=500).found.families == ("col", "exact", "fts")


def test_a_page_of_the_newest_does_not_look_at_the_oldest(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 40))
    rig.publish(stream.name)
    stream.index(0, 40, SMALL)
    found = stream.ask("has:time", size=3).found
    assert found.tally.candidate_doc_ids == 4
    assert stream.ask("has:time", size=3, sort=["offset:asc"]).found.tally.candidate_doc_ids == 4
    assert stream.ask("has:time", size=3, track_total_hits=True).found.tally.candidate_doc_ids == 40


def test_a_page_of_the_greatest_looks_only_where_they_can_be(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*({"time": n} for n in range(40)))
    stream.index(0, 40, SMALL)
    assert stream.ask("has:time", size=3, sort=["time"]).found.tally.candidate_doc_ids == 4
    found = stream.ask("has:time", size=3, sort=["time:asc"], search_after=[20, stream.stream.offset_at(21)])
    assert found.seqs == [21, 22, 23]
    assert found.found.tally.candidate_doc_ids == 4


def test_events_are_extracted_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Searched(rig)
    taken: list[tuple[int, int]] = []
    batches = Events.batches
    monkeypatch.setattr(
        Events, "batches", lambda self, chunk: (taken.append((chunk.start, chunk.stop)), batches(self, chunk))[1]
    )
    for n in range(0, 60, 5):
        stream.append(*events(n, n + 5))
        assert len(stream.ask("has:time", size=500).seqs) == n + 5
        if n % 20 == 0:
            rig.publish(stream.name)
    assert taken == [(n, n + 5) for n in range(0, 60, 5)]


# -- retention, forks, deletion


def test_only_retained_events_are_found_and_counted(rig: Rig) -> None:
    stream = Searched(rig)
    for n in range(0, 40, 4):
        stream.append(*events(n, n + 4))
        rig.clock.us += 1_000_000
    stream.index(0, 30, SMALL)
    rig.retain(stream.name, age_us=5_000_000)
    assert stream.stream.head.first_seq > 0
    same_as_oracle(stream)
    first = stream.stream.head.first_seq
    found = stream.ask("has:time", size=500, track_total_hits=True).found
    assert found.start == first
    assert found.total == 40 - first
    last = stream.stream.offset_at(2)
    assert stream.ask("has:time", search_after=[last]).seqs == []


def test_a_fork_finds_what_it_reads(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    rig.publish(stream.name)
    stream.append(*events(20, 26))
    fork = Searched.of(rig, rig.fork(stream.name, "fork", 23).name)
    stream.append(*events(26, 30))
    fork.append(*events(100, 104))
    same_as_oracle(fork)
    fork.index(3, 25, SMALL)
    rig.publish(stream.name)
    same_as_oracle(fork)
    assert len(fork.ask("has:time", size=500).seqs) == 27


def test_a_deleted_stream_is_not_found(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 3))
    found, head = stream.stream, stream.stream.head
    defined = stream.archive.defined(found, head)
    request = stream.ask("has:time").request
    rig.delete(stream.name)
    with pytest.raises(NotFound):
        search.search(stream.archive, found, head, defined, request, Deadline(3))


def test_a_search_begins_again_where_events_vanish(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 30))
    read, failures = Events._read, [EventsMoved("once"), EventsMoved("twice")]

    def unsteady(self: Events, seq: int) -> Any:
        if failures:
            raise failures.pop()
        return read(self, seq)

    monkeypatch.setattr(Events, "_read", unsteady)
    assert len(stream.ask("has:time").seqs) == 30
    failures += [EventsMoved("always")] * 10
    stream.append(*events(30, 31))
    with pytest.raises(Unavailable):
        stream.ask("has:time")


# -- versions and definitions


def test_a_field_that_lenses_moved_is_found_in_every_version(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 10))
    stream.index(0, 6, SMALL)
    stream.evolve()
    stream.append(*events(10, 20, "code", "message"))
    stream.index(6, 14, SMALL)
    stream.evolve()
    stream.append(*({**event, "http": {"status": event.pop("http")}} for event in events(20, 30, "http", "message")))
    same_as_oracle(stream)
    assert len(stream.ask("status:3", size=500).seqs) == 5


def test_companions_of_an_older_definition_answer_for_what_did_not_change(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    stream.index(0, 20, SMALL)
    given = document(1)
    given["fields"]["tags"]["prefix"] = True
    given["fields"]["extra"] = {
        "kind": "keyword",
        "bindings": [{"version": 1, "jsonPointer": "/service"}],
        "exact": True,
    }
    change(rig, stream.name, search=given)
    assert stream.ask("service:a").found.tally.indexed_segments == 1
    for query in ("extra:a", "tags:x", "service:a tags:x"):
        found = stream.ask(query).found
        assert (found.tally.indexed_segments, found.tally.scanned_tail_docs) == (0, 20), query
    assert stream.ask("extra:a").seqs == stream.ask("service:a").seqs
    same_as_oracle(stream)


def test_blocks_of_an_older_definition_are_made_anew(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    assert stream.ask("service:A").seqs == stream.ask("service:a").seqs != []
    given = document(1)
    del given["fields"]["service"]["normalizer"]
    change(rig, stream.name, search=given)
    assert stream.ask("service:A").seqs == []
    assert len(stream.ask("service:a").seqs) == 7


def test_a_search_begins_after_a_break(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 10))
    stream.index(0, 10, SMALL)
    registry = stream.stream.head.registry
    assert registry is not None
    broken = registry.registry.advanced(SHAPES[0], None, 10)
    rig.run(rig.engine.apply(lambda batch: _install(batch, stream, broken)))
    stream.append(*events(10, 14))
    found = stream.ask("has:time", track_total_hits=True).found
    assert found.start == 10
    assert found.total == 4
    assert found.missing.events == 0


def _install(batch: Any, stream: Searched, registry: Any) -> None:
    from headrace.engine.log.lifecycle import save_registry
    from headrace.engine.log.stream_registry import StreamRegistry

    head = batch.draft(stream.stream)
    head.registry = StreamRegistry(registry, head.registry.revision + 1)
    save_registry(batch, stream.stream.id, head.registry)


def test_events_that_no_lens_carries_are_reported_as_missing(rig: Rig) -> None:
    shape = {
        "type": "object",
        "properties": {"time": True, "code": {"enum": ["1", "2"]}},
        "additionalProperties": False,
    }
    fields = {
        "time": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/time"}], "exists": True},
        "code": {"kind": "integer", "bindings": [{"version": 1, "jsonPointer": "/code"}], "exact": True},
    }
    stream = Searched(rig, {"primaryTimestampField": "time", "fields": fields}, shape)
    stream.append({"time": 1, "code": "1"}, {"time": 2, "code": "2"}, {"time": 3})
    convert = {
        "op": "convert", "path": "/code", "fromType": "string", "toType": "integer", "optional": True,
        "forward": {"map": {"1": 1, "2": 2}}, "backward": {"map": {"1": "1", "2": "2"}},
    }  # fmt: skip
    wider = {**shape, "properties": {"time": True, "code": {"type": "integer"}}}
    change(rig, stream.name, schema=wider, lens=lens(stream.name, 1, convert))
    # What was stored was never valid: a lens that is proven does not fail otherwise.
    sql = "UPDATE wal SET body = CAST(replace(CAST(body AS TEXT), '\"2\"', '\"3\"') AS BLOB)"
    rig.run(rig.engine.apply(lambda batch: batch.connection.execute(sql)))
    found = stream.ask("has:time", size=500).found
    assert [hit.seq for hit in found.hits] == [2, 0]
    assert found.missing.events == 1


# -- rows that columns cannot describe


def test_events_beyond_the_columns_are_searched_like_others(rig: Rig) -> None:
    stream = Searched(rig)
    huge = 10**30
    given = events(0, 12)
    given[3] |= {"code": huge, "body": "red red"}
    given[7] |= {"code": [5, -huge], "body": ["blue", "red green"], "time": [huge]}
    given[9] |= {"code": -huge}
    stream.append(*given[:9])
    stream.append(*given[9:])
    stream.index(0, 8, SMALL)
    same_as_oracle(stream)
    assert stream.ask(f"status:>={huge}").seqs == [3]
    assert stream.ask(f"status:{huge}").seqs == [3]
    assert stream.ask("has:status", sort=["status"]).seqs[0] == 3
    assert stream.ask("has:status", sort=["status:asc"]).seqs[0] == 9
    page = stream.ask("has:status", sort=["status"], size=1)
    assert stream.ask("has:status", sort=["status"], size=1, search_after=page.found.last).found.hits[0].sort[0] == 5


def test_events_nested_as_deep_as_they_can_be_are_searched(rig: Rig) -> None:
    stream = Searched(rig)
    deep = 700
    stream.append({"time": 1, "service": "a", "body": "x"})
    text = b'[{"time":2,"service":"a","why":' + b"[" * deep + b'"deep"' + b"]" * deep + b"}]"
    rig.append(stream.name, text)
    assert stream.ask("service:a").seqs == [1, 0]
    assert stream.ask("why:deep").seqs == [1]
    hit = stream.ask("service:a", size=1).found.hits[0]
    assert hit.event.payload == text[1:-1]
    assert bytes(hit.event.fields(stream.search)["why"]) == b'"deep"'


# -- time


def test_what_there_was_no_time_for_is_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    rig.publish(stream.name)
    stream.index(0, 8, SMALL)
    stream.index(8, 16, SMALL)
    stream.append(*events(20, 30))
    for order in (["time"], ["time:asc"]):
        missing: list[int] = []
        while not missing or missing[-1]:
            found = _until(stream, monkeypatch, 2 * len(missing), sort=order)
            count = found.missing.events
            hidden = range(count) if order == ["time"] else range(30 - count, 30)
            assert {hit.seq for hit in found.hits} >= set(range(30)) - set(hidden)
            assert found.timed_out or not hidden
            assert found.missing[1:3] == (sum(seq >= 20 for seq in hidden), int(any(seq < 20 for seq in hidden)))
            assert (found.missing.since_us is None) == (not hidden)
            assert found.visible == (hidden[0] if 29 in hidden else 30)
            missing.append(count)
        assert missing == sorted(missing, reverse=True) and len(set(missing)) > 3


def _until(stream: Searched, monkeypatch: pytest.MonkeyPatch, looks: int, **request: Any) -> SearchHits:
    """Search until the clock was looked at so often."""
    left = iter(range(looks))
    with monkeypatch.context() as patched:
        patched.setattr(Deadline, "passed", property(lambda _: next(left, None) is None))
        return stream.ask("has:time", size=500, **request).found


def test_a_search_for_words_gives_what_it_has_time_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Searched(rig)
    stream.append(*({"time": n, "body": "red"} for n in range(20)))
    for start in range(0, 20, 5):
        stream.index(start, start + 5, SMALL)
    with_share = Deadline.with_share
    looks = iter(range(4))

    class Short(Deadline):
        passed = property(lambda _: next(looks, None) is None)  # type: ignore[assignment]

    monkeypatch.setattr(Deadline, "with_share", lambda self, share: Short(with_share(self, share).left_s))
    found = stream.ask("red").found
    assert found.timed_out and [hit.seq for hit in found.hits] == list(range(19, 9, -1))
    assert found.missing.events == 10


# -- damage


def test_a_damaged_companion_is_left_out(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    rig.publish(stream.name)
    good, bad = stream.index(0, 10, SMALL), stream.index(10, 20, SMALL)
    for part in ("columns", "postings"):
        _file(rig, stream, bad.name, part).write_bytes(b"not Parquet")
    found = stream.ask("red", size=500)
    assert found.found.tally.indexed_segments == good.segments == 1
    same_as_oracle(stream)


def test_a_companion_whose_file_is_gone_is_left_out(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    rig.publish(stream.name)
    lost = stream.index(0, 10, SMALL)
    _file(rig, stream, lost.name, "columns").unlink()
    same_as_oracle(stream)


def test_a_damaged_segment_is_an_error(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    rig.publish(stream.name)
    for path in (Path(rig.config.storage.data_dir) / "objects" / "segments").rglob("*.parquet"):
        path.write_bytes(b"not Parquet")
    with pytest.raises(CorruptData, match=r"segments/.* is damaged"):
        stream.ask("red")


def _file(rig: Rig, stream: Searched, name: str, part: Any) -> Path:
    path = rig.engine.objects.local_path(companion_key(stream.name, stream.stream.incarnation, name, part))
    assert path is not None
    return path


def test_companions_that_count_no_more_are_not_asked(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*events(0, 20))
    made = stream.index(0, 20, SMALL)
    assert stream.ask("red").found.tally.indexed_segments == 1
    rig.run(rig.engine.apply(lambda batch: Companions(batch.connection).retire(stream.stream.id, [made.name])))
    assert stream.ask("red").found.tally.indexed_segments == 0


# -- places


def test_a_place_belongs_to_the_stream(rig: Rig) -> None:
    stream, other = Searched(rig), Searched(rig)
    stream.append(*events(0, 5))
    other.append(*events(0, 5))
    with pytest.raises(OffsetFenced):
        stream.ask("has:time", search_after=[other.stream.tail_offset()])
    with pytest.raises(BadRequest):
        stream.ask("has:time", search_after=["x"])
    assert stream.ask("has:time", sort=["offset:asc"], search_after=["0" * 26]).seqs == [0, 1, 2, 3, 4]


def test_many_appends_of_one_event_are_found_while_they_come(rig: Rig) -> None:
    stream = Searched(rig)
    for n in range(30):
        rig.append(stream.name, array({"time": n, "service": f"s{n}", "body": f"w{n} all"}))
        assert stream.ask(f"service:s{n}").seqs == [n]
        assert stream.ask(f"w{n}").seqs == [n]
        assert len(stream.ask("all", size=500).seqs) == n + 1

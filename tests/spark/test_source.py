"""The data source without Spark: what its tasks read of generated streams is what HTTP reads give."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from conftest import ServerProcess
from headrace.errors import BadRequest, HeadraceError, NotFound, NotRepresentable, StoreUnavailable
from headrace.query.definition import decode_exact
from headrace.spark.columns import CORRUPT, ENVELOPE
from headrace.spark.source import HeadraceSource, SnapshotReader
from spark.lives import Life
from support.http_caller import Caller
from support.polling import wait_until

STREAMS, PHASES = 12, 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"storage__seal_rows": "100000", "storage__seal_age_s": "3600", "server__resolver_timeout_s": "60"}
    running = ServerProcess(tmp_path_factory.mktemp("source") / "data", settings).start()
    yield running
    running.kill()


@pytest.fixture
def caller(server: ServerProcess) -> Iterator[Caller]:
    with closing(Caller(server.url)) as opened:
        yield opened


_KINDS = {"string": StringType(), "int": IntegerType()}


def columns(text: str) -> StructType:
    """A schema such as ``key string, version int``; Spark's own parser needs Java."""
    return StructType([StructField(name, _KINDS[kind]) for name, kind in map(str.split, text.split(", "))])


def read(url: str, stream: str, schema: str | None = None, **options: str) -> list[dict[str, Any]]:
    """All rows, as Spark's tasks read them: the reader and every partition go through a pickle."""
    source = HeadraceSource({"url": url, "stream": stream, **options})
    wanted = source.schema() if schema is None else columns(schema)
    reader = source.reader(wanted)
    partitions = reader.partitions()
    reader = pickle.loads(pickle.dumps(reader))
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.equals(to_arrow_schema(wanted, timezone="UTC"))
            rows += batch.to_pylist()
    return rows


def check_envelope(life: Life, url: str, **options: str) -> None:
    """The envelope as it is stored, and in every version."""
    caller = life.caller
    stored = read(url, life.name, mode="envelope", **options)
    retained = life.retained()
    assert [row["key"] for row in stored] == life.keys[len(life.keys) - retained :]
    tails = {offset for seq, offset in life.tails.items() if seq > len(life.keys) - retained}
    offsets = [row["offset"] for row in stored]
    assert tails <= set(offsets)
    assert offsets == sorted(set(offsets))
    times = [row["append_time"] for row in stored]
    assert times == sorted(times)
    for version in range(1, life.version + 1):
        wanted = caller.entries(life.name, schema_version=str(version))
        options["schemaVersion"] = str(version)
        if len(wanted) < retained:
            with pytest.raises(NotRepresentable) as failure:
                read(url, life.name, "payload string", mode="envelope", **options)
            assert failure.value.facts["offset"] == offsets[len(wanted)]
            continue
        found = read(url, life.name, "payload string, version int", mode="envelope", **options)
        assert [decode_exact(row["payload"]) for row in found] == wanted
        assert {row["version"] for row in found} <= {version}


def check_typed(life: Life, url: str, **options: str) -> None:
    """Typed columns are the members of what a plain read gives; in what fits none, the text of the event."""
    wanted = life.caller.entries(life.name)
    found = read(url, life.name, mode="typed", **options)
    assert len(found) == len(wanted)
    schema = life.registry().current_schema["properties"]
    for row, event in zip(found, wanted, strict=True):
        if row[CORRUPT] is not None:
            assert decode_exact(row[CORRUPT]) == event
            continue
        for name in row.keys() - {CORRUPT}:
            is_text = isinstance(schema[name], dict) and schema[name].get("type") == "string"
            value = decode_exact(row[name]) if isinstance(row[name], str) and not is_text else row[name]
            assert value == event.get(name), (name, value, event)


def test_dataframes_are_what_http_reads_give(caller: Caller, server: ServerProcess) -> None:
    lives = [Life(caller, 9_000 + seed) for seed in range(STREAMS)]
    for number, life in enumerate(lives):
        if number < STREAMS - 3:
            life.begin()
        else:
            life.fork(lives[number - 4])
    typed = 0
    for phase in range(PHASES):
        for life in lives:
            life.go_on(phase)
        for number, life in enumerate(lives):
            if number % 3 == phase:
                caller.done("POST", f"{life.name}/_seal", timeout="60000")
        if phase == 1:
            _retain_half([life for life in lives if not life.segments()])  # their rows go one by one
        if phase:
            for number, life in enumerate(lives):
                options = {"storeAccess": "http"} if number % 5 == 4 else {"minPartitions": str(1 + number % 3)}
                check_envelope(life, server.url, **options)
                if isinstance(life.registry().current_schema, dict):
                    check_typed(life, server.url, **options)
                    typed += 1
    assert typed > STREAMS


def _retain_half(lives: list[Life]) -> None:
    """Keep half of the bytes, for good: what comes later is all kept."""
    before = {life: life.retained() for life in lives}
    for life in lives:
        life.forget(life.bytes() // 2)
    wait_until(lambda: all(life.retained() < count for life, count in before.items()))
    for life in lives:
        life.forget(None)


def stream(caller: Caller, name: str, *events: Any) -> str:
    caller.done("PUT", name)
    if events:
        caller.done("POST", name, list(events))
    return name


def test_ranges_by_offset_and_by_time(caller: Caller, server: ServerProcess) -> None:
    name = stream(caller, "ranges")
    ends = [
        caller.done("POST", name, [n], {"Stream-Timestamp": f"2026-01-0{n}T00:00:00Z"}).headers["stream-next-offset"]
        for n in range(1, 5)
    ]

    def payloads(**options: str) -> list[str]:
        return [row["payload"] for row in read(server.url, name, "payload string", **options)]

    assert payloads() == list("1234")
    assert payloads(startingOffsets=ends[0], endingOffsets=ends[2]) == list("23")
    assert payloads(startingTimestamp="2026-01-02T00:00:00Z", endingTimestamp="2026-01-04T00:00:00Z") == list("23")
    assert payloads(startingOffsets="latest") == []
    assert payloads(maxRecordsPerPartition="1") == list("1234")
    assert list(read(server.url, name, "key string, offset string")[0]) == ["key", "offset"]


def test_bytes_are_an_envelope(caller: Caller, server: ServerProcess) -> None:
    caller.done("PUT", "octets", headers={"Content-Type": "application/octet-stream"})
    caller.done("POST", "octets", {"a": 1}, {"Content-Type": "application/octet-stream"})
    [row] = read(server.url, "octets")
    assert list(row) == list(ENVELOPE)
    assert row["payload"] == b'{"a":1}'


def test_a_snapshot_stays_while_its_segments_are_replaced(caller: Caller, server: ServerProcess) -> None:
    name = stream(caller, "replaced", *range(5))
    caller.done("POST", f"{name}/_seal")
    reader = HeadraceSource({"url": server.url, "stream": name}).reader(columns("payload string"))
    assert isinstance(reader, SnapshotReader)
    caller.done("POST", name, [5])
    caller.done("POST", f"{name}/_seal")
    [stored] = [each.object for each in reader._ranges]
    Path(server.data_dir, "objects", stored.key).unlink()  # as if the lease had ended
    rows = [batch.to_pylist() for part in reader.partitions() for batch in reader.read(part)]
    assert [row["payload"] for batch in rows for row in batch] == list("01234")


def test_what_cannot_be_read_says_why(caller: Caller, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    name = stream(caller, "plain", 1)
    with pytest.raises(BadRequest, match="mode=envelope"):
        read(server.url, name, mode="typed")
    with pytest.raises(NotFound):
        read(server.url, "nowhere")
    with pytest.raises(HeadraceError, match="no versions"):
        read(server.url, name, schemaVersion="1")
    caller.done("POST", f"{name}/_seal")
    monkeypatch.setattr("headrace.spark.source._opened", _refuse)
    assert [row["payload"] for row in read(server.url, name)] == ["1"], "the server has what the store does not give"
    with pytest.raises(StoreUnavailable):
        read(server.url, name, storeAccess="direct")


def _refuse(store: str) -> Any:
    raise StoreUnavailable(f"{store} is out of reach")


def test_an_offset_that_is_gone_fails_or_is_skipped(caller: Caller, server: ServerProcess) -> None:
    name = stream(caller, "short")
    ends = [caller.done("POST", name, [str(n) * 50]).headers["stream-next-offset"] for n in range(4)]
    caller.done("POST", f"{name}/_retention", {"bytes": 60})
    wait_until(lambda: len(caller.entries(name)) == 1, 30)
    kept = caller.entries(name)
    with pytest.raises(HeadraceError) as failure:
        read(server.url, name, startingOffsets=ends[0])
    assert failure.value.code == "offset_gone"
    found = read(server.url, name, startingOffsets=ends[0], failOnDataLoss="false")
    assert [decode_exact(row["payload"]) for row in found] == kept


def test_readers_hold_a_lease(caller: Caller, server: ServerProcess) -> None:
    name = stream(caller, "leased", 1)
    reader = HeadraceSource({"url": server.url, "stream": name}).reader(columns("payload string"))
    assert isinstance(reader, SnapshotReader)
    assert reader._lease is not None

"""What the golden files hold, by format version.

The files beside this module were written once, and are never written again: every later Headrace must read them. Run as
a program, this writes only those that are missing.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.companion.layout import Companion, PartFile
from headrace.format.manifest import Manifest, Revision, Segment
from headrace.format.object_names import range_name
from headrace.format.segment.row_group import AppendRun
from headrace.format.segment.writer import SegmentWriter
from headrace.format.state import State, StateInfo
from headrace.format.state_file import Packed, PackedColumns
from headrace.format.state_file import write as write_state
from headrace.reduce.features.columns import fold_rows
from headrace.reduce.features.event_columns import AT_MS, SEQ, columns_of, number_texts
from headrace.reduce.features.table import TableReducer
from headrace.schema.descriptor.nodes import Event, EventField, Feature, FeatureVersion, Table
from headrace.schema.descriptor.validate import resolve_table
from headrace.schema.entries import entries_of

START_US = 1_763_200_000_000_000
ROWS_A_GROUP = 40


def json_runs() -> list[AppendRun]:
    """Append requests of a JSON stream: one key for all, a key each, none; two schema versions."""
    runs, seq = [], 1000
    for number in range(30):
        count = number % 7 + 1
        texts = [f'{{"n":{seq + place},"text":"Größe {number} ✓"}}' for place in range(count)]
        keys = (None, f"key-{number % 5}", [f"each-{place}" if place % 2 else None for place in range(count)])[
            number % 3
        ]
        version = 1 if number < 20 else 2
        runs.append(
            AppendRun(seq, START_US + number // 2 * 1_000_001, version, keys, [text.encode() for text in texts])
        )
        seq += count
    return runs


def byte_runs() -> list[AppendRun]:
    """Append requests of a byte stream: every byte there is, and nothing at all."""
    payloads = [bytes(range(256)), b"", b"\0", b",", "é".encode(), b"\xff\xfe", b"x" * 5000]
    return [
        AppendRun(seq, START_US + seq, 0, "k" if seq % 2 else None, [payload]) for seq, payload in enumerate(payloads)
    ]


def manifest() -> Manifest:
    """A manifest with something in every field."""
    segments = [
        Segment(
            name=object_names.segment_name(first, 500, unique),
            first_seq=first,
            count=500,
            bytes=30_000,
            payload_bytes=100_000,
            before_bytes=200 * first,
            total_bytes=200 * (first + 500),
            min_us=START_US + first,
            max_us=START_US + first + 499,
            sha256=f"{first:064x}",
        )
        for first, unique in [(200, "0kept0"), (1000, "a1"), (1500, "b2")]
    ]
    return Manifest(
        stream="orders/größe",
        incarnation="0000000007",
        generation=42,
        writer="node-1.9f3c",
        written_us=START_US + 10_000,
        state="soft_deleted",
        content_type="application/json",
        created_us=START_US,
        ttl_s=3600,
        expires_us=None,
        deadline_us=START_US + 3_600_000_000,
        retention_age_us=86_400_000_000,
        retention_bytes=1 << 40,
        epochs=((3, 0), (7, 150), (9, 150)),
        lineage=(("0000000003", 150),),
        fork_origin='["orders",150,0]',
        closed=True,
        closed_by=("producer", 1, 17),
        profile="evlog",
        registry=(
            Revision(1, START_US + 5, msgspec.Raw(b'{"schemas":{"1":{"type":"object"}}}')),
            Revision(2, START_US + 9, msgspec.Raw(b'{"schemas": {"1": true}, "lenses": [null, 1.0, "\xc3\xa9"]}')),
        ),
        first_seq=1000,
        first_bytes=200_000,
        published_seq=2000,
        total_bytes=400_000,
        last_us=START_US + 1999,
        stream_seq="000017",
        producers={"producer": (1, 17), "größe": (0, 0)},
        segments=tuple(segments[1:]),
        kept=(segments[0],),
    )


def manifest_v2() -> Manifest:
    """The same with companions: one that was merged, and one without postings, panes and times."""
    merged = Companion(
        name=range_name(200, 1300, "0ce2"),
        first_seq=200,
        count=1300,
        level=1,
        through_version=2,
        fields={"zeit": "00112233445566ff", "größe": "ff00000000000000"},
        rollups={"hourly": "0123456789abcdef"},
        keys=True,
        columns=PartFile(40_000, "c" * 64),
        postings=PartFile(20_000, "d" * 64),
        panes=PartFile(1_000, "e" * 64),
        times=(-1, 1_763_200_000_000),
        segments=2,
        words={"größe": (1299, 70_000)},
    )
    plain = Companion(
        name=range_name(1500, 500, "a"),
        first_seq=1500,
        count=500,
        level=0,
        through_version=1,
        fields={},
        rollups={},
        keys=False,
        columns=PartFile(1, "f" * 64),
        postings=None,
        panes=None,
        times=None,
        segments=1,
        words={},
    )
    return msgspec.structs.replace(manifest(), companions=(merged, plain))


def manifest_v4() -> Manifest:
    """The same with states, of an event source."""
    state = State(
        table="Users",
        name=range_name(0, 1500, "57a7e"),
        first_seq=0,
        count=1500,
        level=1,
        lives={"größe": "größe@7", "n": "n@3"},
        rows=17,
        bytes=2_000,
        sha256="9" * 64,
    )
    return msgspec.structs.replace(manifest_v2(), states=(state,), managed='{"kind":"event"}')


STATE = StateInfo(
    stream="golden", incarnation="0000000001", table="Users", first_seq=4000, count=10, level=2,
    lives={"größe": "größe@7", "n": "n@3"},
)  # fmt: skip
STATE_ROWS: list[Packed] = [
    (b"\x90", {"": b"\x95\x00\x01\x02\x03\xc2", "n@3": b"\x05"}),
    (b"\x91\xa1a", {"": b"\x95\x04\x05\x06\x07\xc3", "n@3": b"", "größe@7": bytes(range(256))}),
]

#: What state-v2.parquet holds: a table over these events, each ten seconds after the one before, folded from columns.
TABLE = Table(
    "Users",
    "E",
    ("user",),
    {
        "n": Feature("count"),
        "n_minute": Feature("count", {"window": 60_000}),
        "total": Feature("sum", {"field": "amount"}),
        "mean": Feature("mean", {"field": "amount", "window": 60_000}),
        "middle": Feature("quantile", {"field": "amount", "q": 0.5}),
        "shops": Feature("n_unique", {"field": "shop"}),
        "often": Feature("top_k", {"field": "shop", "k": 2, "window": 60_000}),
        "seen": Feature("last_seen", {"where": "(amount > 2)"}),
    },
)
EVENTS = [
    {"user": "añb"[number % 3], "amount": number / 2, "shop": None if number % 5 == 0 else f"shop {number % 4}"}
    for number in range(24)
]
EVENT_MS = [1_763_200_000_000 + 10_000 * number for number in range(24)]


def table_reducer() -> TableReducer:
    """The table of `EVENTS`."""
    source = Event("E", {"user": EventField("str"), "amount": EventField("f64"), "shop": EventField("str", False)})
    versions = {name: FeatureVersion(f"{name}@1", 0) for name in TABLE.features}
    return TableReducer(resolve_table({"E": source, "Users": TABLE}, "Users"), versions)


def state_v2() -> tuple[StateInfo, PackedColumns]:
    """The states of the table, folded from columns."""
    reducer = table_reducer()
    columns = columns_of(reducer.source_types, EVENTS)
    columns |= {SEQ: pa.array(range(24), pa.int64()), AT_MS: pa.array(EVENT_MS, pa.int64())}
    lives = {name: version.id for name, version in reducer.feature_versions.items()}
    info = msgspec.structs.replace(STATE, version=2, table="Users", first_seq=0, count=24, level=0, lives=lives)
    return info, fold_rows(reducer, number_texts(pa.table(columns)))


def main() -> None:
    """Write the files that are missing."""
    from pathlib import Path

    here = Path(__file__).parent
    for name, runs in {"segment-v1-json.parquet": json_runs(), "segment-v1-bytes.parquet": byte_runs()}.items():
        if not (here / name).exists():
            with (here / name).open("xb") as file:
                facts = {"stream": "golden", "incarnation": "0000000001", "first_seq": runs[0].seq}
                writer = SegmentWriter(file, is_json="json" in name, split=entries_of, group_rows=ROWS_A_GROUP, **facts)  # type: ignore[arg-type]
                for run in runs:
                    writer.add(run)
                print(name, writer.finish().sha256)
    if not (here / "manifest-v4.json").exists():
        (here / "manifest-v4.json").write_bytes(manifests.encode(manifest_v4()))
    if not (here / "state-v1.parquet").exists():
        write_state(here / "state-v1.parquet", STATE, "golden", STATE_ROWS)
    if not (here / "state-v2.parquet").exists():
        info, packed = state_v2()
        write_state(here / "state-v2.parquet", info, "golden", packed)


if __name__ == "__main__":
    main()

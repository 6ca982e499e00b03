"""What the golden files of format version 1 hold.

The files beside this module were written once, and are never written again: every later Headrace must read them. Run as
a program, this writes only those that are missing.
"""

from __future__ import annotations

import msgspec

from headrace.engine.split import entries_of
from headrace.format import manifest as manifests
from headrace.format.manifest import Manifest, Revision, Segment
from headrace.format.segment.gathering import Run
from headrace.format.segment.writer import Writer

START_US = 1_763_200_000_000_000
ROWS_A_GROUP = 40


def json_runs() -> list[Run]:
    """Append requests of a JSON stream: one key for all, a key each, none; two schema versions."""
    runs, seq = [], 1000
    for number in range(30):
        count = number % 7 + 1
        texts = [f'{{"n":{seq + place},"text":"Größe {number} ✓"}}' for place in range(count)]
        keys = (None, f"key-{number % 5}", [f"each-{place}" if place % 2 else None for place in range(count)])[
            number % 3
        ]
        version = 1 if number < 20 else 2
        runs.append(Run(seq, START_US + number // 2 * 1_000_001, version, keys, [text.encode() for text in texts]))
        seq += count
    return runs


def byte_runs() -> list[Run]:
    """Append requests of a byte stream: every byte there is, and nothing at all."""
    payloads = [bytes(range(256)), b"", b"\0", b",", "é".encode(), b"\xff\xfe", b"x" * 5000]
    return [Run(seq, START_US + seq, 0, "k" if seq % 2 else None, [payload]) for seq, payload in enumerate(payloads)]


def manifest() -> Manifest:
    """A manifest with something in every field."""
    segments = [
        Segment(
            name=manifests.segment_name(first, 500, unique),
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


def main() -> None:
    """Write the files that are missing."""
    from pathlib import Path

    here = Path(__file__).parent
    for name, runs in {"segment-v1-json.parquet": json_runs(), "segment-v1-bytes.parquet": byte_runs()}.items():
        if not (here / name).exists():
            with (here / name).open("xb") as file:
                facts = {"stream": "golden", "incarnation": "0000000001", "first_seq": runs[0].seq}
                writer = Writer(file, is_json="json" in name, split=entries_of, group_rows=ROWS_A_GROUP, **facts)  # type: ignore[arg-type]
                for run in runs:
                    writer.add(run)
                print(name, writer.finish().sha256)
    if not (here / "manifest-v1.json").exists():
        (here / "manifest-v1.json").write_bytes(manifests.encode(manifest()))


if __name__ == "__main__":
    main()

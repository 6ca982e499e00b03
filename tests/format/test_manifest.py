from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from golden.contents import manifest as example
from headrace.errors import CorruptData
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.companion.layout import Companion, PartFile
from headrace.format.manifest import Manifest, Revision, Segment, decode, encode
from headrace.format.object_names import generations, manifest_key, range_name, segment_key
from headrace.format.state import State
from headrace.types import JSON
from support.segment_files import Cell, seal

KEY = manifest_key("s", "1", 1)
NULL = msgspec.Raw(b"null")


def small(**facts: Any) -> Manifest:
    """A manifest of a stream without entries, but for these facts."""
    plain = {"stream": "s", "incarnation": "1", "generation": 1, "writer": "w", "written_us": 5, "content_type": JSON}
    return Manifest(**{**plain, "created_us": 1, "epochs": ((0, 0),), "published_seq": 0, **facts})


def segments(*bounds: tuple[int, int]) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            name=object_names.segment_name(first, end - first, "a"),
            first_seq=first, count=end - first, bytes=1, payload_bytes=1, before_bytes=0, total_bytes=1, min_us=1,
            max_us=1, sha256="0" * 64,
        )
        for first, end in bounds
    )  # fmt: skip


def companions(*bounds: tuple[int, int]) -> tuple[Companion, ...]:
    return tuple(
        Companion(
            name=range_name(max(first, 0), end - first, "a"), first_seq=first, count=end - first, level=0,
            through_version=1, fields={"f": "0"}, rollups={}, keys=True, columns=PartFile(1, "0" * 64), postings=None,
            panes=None, times=None, segments=1, words={},
        )
        for first, end in bounds
    )  # fmt: skip


def envelope(content: bytes, **facts: Any) -> bytes:
    """A manifest around any content, with a checksum that fits."""
    document = {"headrace": "manifest", "version": 4, "sha256": hashlib.sha256(content).hexdigest()}
    return msgspec.json.encode({**document, "content": msgspec.Raw(content), **facts})


@pytest.mark.parametrize("manifest", [small(), example()], ids=["small", "full"])
def test_a_manifest_is_read_back_as_it_was(manifest: Manifest) -> None:
    key = manifest_key(manifest.stream, manifest.incarnation, manifest.generation)
    assert decode(encode(manifest), key) == manifest


def test_a_manifest_is_plain_json_that_tells_its_version() -> None:
    document = msgspec.json.decode(encode(example()))
    assert document["headrace"] == "manifest"
    assert document["version"] == 4
    assert document["content"]["registry"][0]["document"] == {"schemas": {"1": {"type": "object"}}}
    assert document["content"]["segments"][0]["name"] == "0000000000001000-500-a1.parquet"


def test_every_changed_bit_and_every_missing_end_is_noticed() -> None:
    written = encode(small(segments=segments((0, 5), (5, 9)), published_seq=9))
    changed = (
        written[:place] + bytes([written[place] ^ 1 << bit]) + written[place + 1 :]
        for place in range(len(written))
        for bit in range(8)
    )
    for damaged in (*changed, *(written[:end] for end in range(len(written)))):
        with pytest.raises(CorruptData) as caught:
            decode(damaged, KEY)
        assert caught.value.facts["object"] == KEY


@pytest.mark.parametrize(
    ("data", "check"),
    [
        (b"", "document"),
        (b"\xff", "document"),
        (b"[]", "document"),
        (envelope(b"{}", headrace="lease"), "identity"),
        (envelope(b"{}", version=5, colour="blue"), "version"),
        (envelope(b"{}", version=3), "version"),
        (envelope(b"{}", sha256="0" * 64), "checksum"),
        (envelope(b"{}"), "document"),
        (envelope(msgspec.json.encode(small(generation=2))), "identity"),
        (envelope(msgspec.json.encode(small())[:-1] + b',"colour":"blue"}'), "document"),
        (envelope(msgspec.json.encode(small(published_seq=5))), "continuity"),
    ],
)
def test_what_is_damaged_misplaced_or_newer_is_refused_by_name(data: bytes, check: str) -> None:
    with pytest.raises(CorruptData, match=f"^{KEY} is damaged") as caught:
        decode(data, KEY)
    assert caught.value.facts == {"object": KEY, "check": check}


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"segments": segments((0, 5), (6, 9)), "published_seq": 9}, "entry 5 is due, and .* begins with 6"),
        ({"segments": segments((0, 5)), "published_seq": 6}, "end at 5, not at 6"),
        ({"segments": segments((0, 5), (5, 5)), "published_seq": 5}, "has no entries"),
        ({"segments": segments((3, 5)), "published_seq": 5}, "no segment holds entry 0"),
        ({"segments": segments((3, 5)), "published_seq": 5, "lineage": (("0", 2),)}, "no segment holds entry 2"),
        ({"segments": segments((3, 5)), "kept": segments((0, 4)), "published_seq": 5, "first_seq": 3}, "overlap"),
        ({"published_seq": 5}, "no segment holds entry 0"),
        ({"published_seq": 5, "first_seq": 6}, "first entry is 6"),
        ({"epochs": ()}, "epochs"),
        ({"epochs": ((1, 0), (1, 5))}, "epochs"),
        ({"epochs": ((2, 0), (1, 5))}, "epochs"),
        ({"epochs": ((1, 5), (2, 0))}, "epochs"),
        ({"lineage": (("1", 5), ("2", 3))}, "lineage"),
        ({"registry": (Revision(2, 1, NULL), Revision(1, 2, NULL))}, "registry"),
        ({"companions": companions((0, 1))}, "companion describes entries that are not published"),
        ({"companions": companions((3, 3)), "published_seq": 4, "lineage": (("0", 4),)}, "companion"),
        ({"companions": companions((-1, 3)), "published_seq": 4, "lineage": (("0", 4),)}, "companion"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_neither_written_nor_read(facts: dict[str, Any], problem: str) -> None:
    manifest = small(**facts)
    with pytest.raises(ValueError, match=problem):
        encode(manifest)
    with pytest.raises(CorruptData, match=problem):
        decode(envelope(msgspec.json.encode(manifest)), KEY)


@pytest.mark.parametrize(("version", "lacks"), [(1, ["companions", "states", "managed"]), (2, ["states", "managed"])])
def test_a_manifest_of_an_older_version_lacks_what_came_later(version: int, lacks: list[str]) -> None:
    content = msgspec.json.decode(msgspec.json.encode(small()))
    for name in lacks:
        del content[name]
    assert decode(envelope(msgspec.json.encode(content), version=version), KEY) == small()


@pytest.mark.parametrize(("first_seq", "count"), [(0, 0), (-1, 3), (0, 6)])
def test_a_state_of_events_that_are_not_published_is_neither_written_nor_read(first_seq: int, count: int) -> None:
    state = State(
        table="T", name="x", first_seq=first_seq, count=count, level=0, lives={}, rows=0, bytes=1, sha256="0" * 64
    )
    manifest = small(segments=segments((0, 5)), published_seq=5, states=(state,))
    with pytest.raises(ValueError, match="a state holds entries"):
        encode(manifest)
    with pytest.raises(CorruptData, match="a state holds entries"):
        decode(envelope(msgspec.json.encode(manifest)), KEY)


@pytest.mark.parametrize(
    "facts",
    [
        {"segments": segments((0, 5), (5, 9)), "published_seq": 9, "first_seq": 7},
        {"segments": segments((4, 9)), "published_seq": 9, "first_seq": 2, "lineage": (("0", 4),)},
        {"segments": segments((6, 9)), "kept": segments((0, 2), (4, 5)), "published_seq": 9, "first_seq": 6},
        {"published_seq": 9, "first_seq": 9},
        {"published_seq": 4, "lineage": (("0", 4),)},
        {"epochs": ((1, 0), (5, 0), (6, 3))},
        {"published_seq": 4, "lineage": (("0", 4),), "companions": companions((0, 4), (0, 2), (1, 3))},
    ],
    ids=[
        "retention within a segment",
        "a fork",
        "kept for forks",
        "all is gone",
        "an empty fork",
        "recovered twice",
        "derived",
    ],
)
def test_what_streams_go_through_can_be_written(facts: dict[str, Any]) -> None:
    manifest = small(**facts)
    assert decode(encode(manifest), KEY) == manifest


def test_a_listing_tells_the_newest_generation_of_every_stream() -> None:
    keys = [manifest_key(stream, life, number) for stream in "ab" for life in ("1", "2") for number in (9, 11, 10)]
    found = generations([*keys, "manifests/else/x.json", segment_key("a", "1", "x"), "manifests"])
    assert found == {(object_names.name_hash(stream), life): [11, 10, 9] for stream in "ab" for life in ("1", "2")}
    place = object_names.name_hash("a"), "2"
    assert object_names.generation_key(place, found[place][0]) == manifest_key("a", "2", 11)


def test_keys_are_told_apart_by_name_life_and_generation() -> None:
    digest = hashlib.sha256("größe".encode()).hexdigest()[:32]
    assert manifest_key("größe", "07", 12) == f"manifests/{digest}/07/0000000000000012.json"
    name = object_names.segment_name(5, 10, "x1")
    key = segment_key("größe", "07", name)
    assert key == f"segments/{digest}/07/0000000000000005-10-x1.parquet"
    assert object_names.parse_segment_key(key) == ((digest, "07"), name)
    assert object_names.parse_segment_key(manifest_key("s", "1", 1)) is None
    for bad in ("", "A", "../x", "a/b", "x" * 65):
        with pytest.raises(ValueError, match="cannot be part of a key"):
            segment_key("s", bad, name)


def test_a_sealed_segment_is_listed_with_what_was_written() -> None:
    data, sealed = seal([Cell(b"1"), Cell(b"22")], first_seq=7)
    found = manifests.segment_entry(sealed, "n", before_bytes=9, total_bytes=50)
    assert found.first_seq == 7
    assert found.end_seq == 9
    assert found.bytes == len(data)
    assert found.payload_bytes == 3
    assert found.total_bytes == 50
    assert found.sha256 == hashlib.sha256(data).hexdigest()

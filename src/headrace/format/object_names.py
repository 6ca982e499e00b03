"""The keys of the objects of streams in the store.

They are named so that one listing finds all streams, and never walks through their segments::

    manifests/<hash of the stream's name>/<incarnation>/<generation, 16 digits>.json
    segments/<hash of the stream's name>/<incarnation>/<first seq, 16 digits>-<count>-<unique>.parquet
    companions/<hash of the stream's name>/<incarnation>/<first seq, 16 digits>-<count>-<unique>.<part>.parquet
    states/<hash of the stream's name>/<incarnation>/<first seq, 16 digits>-<count>-<unique>.parquet

The *hash* is the first half of the name's SHA-256, in hex. The *incarnation* tells a stream from earlier ones of the
same name. A *part* is ``columns``, ``postings`` or ``panes``. A generation of a manifest is created once and never
written again; the newest valid one counts, and older ones are swept. So a listing of ``manifests/`` yields about two
objects for each stream, which `generations` groups by stream.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

MANIFESTS, SEGMENTS, COMPANIONS, STATES = "manifests", "segments", "companions", "states"

_MANIFEST_KEY = re.compile(rf"{MANIFESTS}/([0-9a-f]{{32}})/([0-9a-z]{{1,64}})/(\d{{16}})\.json")
_SEGMENT_KEY = re.compile(rf"{SEGMENTS}/([0-9a-f]{{32}})/([0-9a-z]{{1,64}})/(\d{{16}}-\d+-[0-9a-z]+\.parquet)")
_INCARNATION = re.compile(r"[0-9a-z]{1,64}")
_COMPANION_KEY = re.compile(
    rf"{COMPANIONS}/([0-9a-f]{{32}})/([0-9a-z]{{1,64}})/(\d{{16}}-\d+-[0-9a-z]{{1,64}})\.(?:columns|postings|panes)\.parquet"
)
_STATE_KEY = re.compile(rf"{STATES}/([0-9a-f]{{32}})/([0-9a-z]{{1,64}})/(\d{{16}}-\d+-[0-9a-z]{{1,64}})\.parquet")


def name_hash(stream: str) -> str:
    """The hash of a stream's name in keys."""
    return hashlib.sha256(stream.encode()).hexdigest()[:32]


def manifest_key(stream: str, incarnation: str, generation: int) -> str:
    """The key of one generation."""
    return generation_key((name_hash(stream), check_key_part(incarnation)), generation)


def range_name(first_seq: int, count: int, unique: str) -> str:
    """The name of what is made of a range of a stream, among others of its kind; ``unique`` distinguishes attempts."""
    return f"{first_seq:016}-{count}-{check_key_part(unique)}"


def segment_name(first_seq: int, count: int, unique: str) -> str:
    """The name of a segment among those of its stream."""
    return f"{range_name(first_seq, count, unique)}.parquet"


def segment_key(stream: str, incarnation: str, name: str) -> str:
    """The key of a segment."""
    return f"{SEGMENTS}/{name_hash(stream)}/{check_key_part(incarnation)}/{name}"


def generations(keys: Iterable[str]) -> dict[tuple[str, str], list[int]]:
    """A listing of manifests as (name hash, incarnation) → generations, newest first."""
    by_stream: dict[tuple[str, str], list[int]] = {}
    for key in keys:
        if match := _MANIFEST_KEY.fullmatch(key):
            by_stream.setdefault((match[1], match[2]), []).append(int(match[3]))
    for numbers in by_stream.values():
        numbers.sort(reverse=True)
    return by_stream


def generation_key(stream: tuple[str, str], generation: int) -> str:
    """The key of one generation, where a listing found it."""
    return f"{MANIFESTS}/{stream[0]}/{stream[1]}/{generation:016}.json"


def parse_segment_key(key: str) -> tuple[tuple[str, str], str] | None:
    """The (name hash, incarnation) and the name that a segment's key is made of, or None for another key."""
    match = _SEGMENT_KEY.fullmatch(key)
    return None if match is None else ((match[1], match[2]), match[3])


def check_key_part(part: str) -> str:
    """A part of a key, unchanged; raises ValueError for other characters than digits and small letters."""
    if not _INCARNATION.fullmatch(part):
        raise ValueError(f"{part!r} cannot be part of a key: only 1 to 64 of 0-9 and a-z")
    return part


def file_name(name: str, part: str) -> str:
    """The last part of an object's key, and what the file is called."""
    return f"{name}.{part}.parquet"


def companion_key(stream: str, incarnation: str, name: str, part: str) -> str:
    """The key of one object of a companion."""
    return f"{COMPANIONS}/{name_hash(stream)}/{check_key_part(incarnation)}/{file_name(name, part)}"


def parse_companion_key(key: str) -> tuple[tuple[str, str], str] | None:
    """The (name hash, incarnation) and the companion's name that a key is made of, or None for another key."""
    match = _COMPANION_KEY.fullmatch(key)
    return None if match is None else ((match[1], match[2]), match[3])


def state_prefix(stream: str, incarnation: str) -> str:
    """How the keys of all states of a stream begin."""
    return f"{STATES}/{name_hash(stream)}/{check_key_part(incarnation)}"


def state_key(stream: str, incarnation: str, name: str) -> str:
    """The key of a state."""
    return f"{state_prefix(stream, incarnation)}/{name}.parquet"


def parse_state_key(key: str) -> tuple[tuple[str, str], str] | None:
    """The (name hash, incarnation) and the state's name that a key is made of, or None for another key."""
    match = _STATE_KEY.fullmatch(key)
    return None if match is None else ((match[1], match[2]), match[3])

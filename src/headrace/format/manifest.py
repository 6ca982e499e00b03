"""Manifests: what is published of a stream in the object store, one numbered object per generation.

Format version 4. A manifest is a JSON document, ``{"headrace": "manifest", "version": 4, "sha256": …, "content": …}``,
where the checksum is that of the content's bytes as they stand. Everything in it is as of ``published_seq`` and never
newer. A field that is added later has a default, and raises the version where older servers must not overlook it.
Version 1 had no companions, version 2 no states and no managed streams. There is no version 3: one bit makes 2 of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace import decoding
from headrace.format.companion.layout import Companion
from headrace.format.identity import Envelope, check_content, corrupt, enclose
from headrace.format.object_names import manifest_key
from headrace.format.state import State
from headrace.types import NEVER_US, NonNegativeInt

if TYPE_CHECKING:
    from headrace.format.segment.layout import SealedSegment

VERSION = 4
_VERSIONS = (1, 2, VERSION)


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published segment; the stream's payload is counted up to its start and up to its end, as the log counts it."""

    name: str
    first_seq: NonNegativeInt
    count: NonNegativeInt
    bytes: NonNegativeInt
    payload_bytes: NonNegativeInt
    before_bytes: NonNegativeInt
    total_bytes: NonNegativeInt
    min_us: int
    max_us: int
    sha256: str

    @property
    def end_seq(self) -> int:
        """The sequence number after its last entry."""
        return self.first_seq + self.count


class Revision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schema registry's document as of one change."""

    revision: int
    at_us: int
    document: msgspec.Raw


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stream as it is published."""

    stream: str
    incarnation: str
    generation: int
    #: Who wrote this: no two writers may ever write equal bytes under one key.
    writer: str
    written_us: int
    #: Soft-deleted while forks need it; deleted until the last of its objects is gone.
    state: Literal["live", "soft_deleted", "deleted"] = "live"
    content_type: str
    created_us: int
    ttl_s: int | None = None
    expires_us: int | None = None
    deadline_us: int | None = None
    retention_age_us: int | None = None
    retention_bytes: int | None = None
    #: (epoch, first seq), in order.
    epochs: tuple[tuple[int, int], ...]
    #: (incarnation, end) of the ancestors a fork reads from, oldest first, and the fork as it was asked for.
    lineage: tuple[tuple[str, int], ...] = ()
    fork_origin: str | None = None
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None
    profile: str = "generic"
    #: What manages the stream, as it is stored; empty where nothing does.
    managed: str = ""
    #: The schema registry after each of its changes, oldest first.
    registry: tuple[Revision, ...] = ()
    #: The first retained entry, and the payload bytes before it.
    first_seq: int = 0
    first_bytes: int = 0
    #: Entries below it are published; the payload bytes up to it, and the last append time.
    published_seq: int
    total_bytes: int = 0
    last_us: int = NEVER_US
    stream_seq: str | None = None
    #: Producer → (epoch, last sequence number).
    producers: dict[str, tuple[int, int]] = {}
    #: The published entries, without gaps up to ``published_seq``.
    segments: tuple[Segment, ...] = ()
    #: Segments before those, which only forks still read; there may be gaps between them.
    kept: tuple[Segment, ...] = ()
    #: What was derived from published entries, its ancestors' included; ranges may overlap.
    companions: tuple[Companion, ...] = ()
    #: What features have folded of published entries, those that are not retained any more included.
    states: tuple[State, ...] = ()


class _Marked(msgspec.Struct):
    headrace: str
    version: int


def encode(manifest: Manifest) -> bytes:
    """The manifest as an object; raises ValueError for one that could not be read back."""
    if problem := _problem(manifest):
        raise ValueError(f"the manifest of {manifest.stream!r} cannot be written: {problem}")
    return enclose("manifest", VERSION, msgspec.json.encode(manifest))


def decode(data: bytes, key: str) -> Manifest:
    """Read the object of this key; raises CorruptData, naming it, for what is damaged, misplaced or newer."""
    try:
        marked = decoding.decode(data, _Marked)
        if marked.headrace != "manifest":
            raise corrupt(key, "identity", "it is not a manifest")
        if marked.version > VERSION:
            message = f"it has manifest format {marked.version}, this Headrace knows {VERSION}: install a newer one"
            raise corrupt(key, "version", message)
        envelope = decoding.decode(data, Envelope)
        if envelope.version not in _VERSIONS:
            raise corrupt(key, "version", f"there never was a manifest format {envelope.version}")
        check_content(envelope, key)
        # Raw documents are slices of what they were read from, and would keep all of it in memory.
        manifest = decoding.decode(envelope.content, Manifest)
        documents = tuple(
            msgspec.structs.replace(revision, document=revision.document.copy()) for revision in manifest.registry
        )
        manifest = msgspec.structs.replace(manifest, registry=documents)
    except (msgspec.DecodeError, UnicodeDecodeError) as reason:
        raise corrupt(key, "document", str(reason)) from reason
    if key != manifest_key(manifest.stream, manifest.incarnation, manifest.generation):
        raise corrupt(key, "identity", "it belongs under another key")
    if problem := _problem(manifest):
        raise corrupt(key, "continuity", problem)
    return manifest


def segment_entry(sealed: SealedSegment, name: str, before_bytes: int, total_bytes: int) -> Segment:
    """A segment as the manifest lists it."""
    info = sealed.info
    return Segment(
        name=name,
        first_seq=info.first_seq,
        count=info.count,
        bytes=sealed.bytes,
        payload_bytes=info.payload_bytes,
        before_bytes=before_bytes,
        total_bytes=total_bytes,
        min_us=info.min_us,
        max_us=info.max_us,
        sha256=sealed.sha256,
    )


def _problem(manifest: Manifest) -> str:
    """Why a manifest contradicts itself, or nothing."""
    segments, everything = manifest.segments, (*manifest.kept, *manifest.segments)
    for before, after in pairwise(segments):
        if before.end_seq != after.first_seq:
            return f"after {before.name} entry {before.end_seq} is due, and {after.name} begins with {after.first_seq}"
    for before, after in pairwise(everything):
        if before.end_seq > after.first_seq:
            return f"{before.name} and {after.name} overlap"
    if any(segment.count <= 0 for segment in everything):
        return "a segment has no entries"
    return _misses(manifest) or _disorder(manifest)


def _misses(manifest: Manifest) -> str:
    """What lies between the first own entry that is retained and the last that is published, and is not listed."""
    first, end, segments = manifest.first_seq, manifest.published_seq, manifest.segments
    if not 0 <= first <= end:
        return f"its first entry is {first}, and it ends at {end}"
    own = manifest.lineage[-1][1] if manifest.lineage else 0
    if segments and segments[-1].end_seq != end:
        return f"its segments end at {segments[-1].end_seq}, not at {end}"
    due = max(first, own)
    if end > due and (not segments or segments[0].first_seq > due):
        return f"no segment holds entry {due}"
    return ""


def _disorder(manifest: Manifest) -> str:
    numbers, firsts = [epoch for epoch, _ in manifest.epochs], [first for _, first in manifest.epochs]
    if not numbers or numbers != sorted(set(numbers)) or firsts != sorted(firsts):
        return "its epochs are out of order"
    if any(_is_outside(companion, manifest) for companion in manifest.companions):
        return "a companion describes entries that are not published"
    if any(_is_outside(state, manifest) for state in manifest.states):
        return "a state holds entries that are not published"
    revisions = [revision.revision for revision in manifest.registry]
    if revisions != sorted(set(revisions)):
        return "its registry is out of order"
    ends = [end for _, end in manifest.lineage]
    return "its lineage is out of order" if ends != sorted(ends) else ""


def _is_outside(derived: Companion | State, manifest: Manifest) -> bool:
    """Whether a companion or a state is empty or goes beyond what is published."""
    return derived.count <= 0 or not 0 <= derived.first_seq < derived.end_seq <= manifest.published_seq

"""Verifying an object store: every object that counts, held against the manifest that names it.

Nothing but the store is needed. One segment is looked at at a time, a row group at a time, so memory does not grow with
the data. A server may be writing meanwhile: where something is amiss and a newer manifest is there, that one is
verified instead.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.engine.history.journal import Journal
from headrace.engine.history.recovery import StreamLocation, newest_valid
from headrace.errors import CorruptData
from headrace.format import object_names
from headrace.format.companion.layout import PartFile
from headrace.format.decoded_columns import LruCache
from headrace.format.manifest import Manifest, Segment
from headrace.format.object_names import (
    COMPANIONS,
    STATES,
    companion_key,
    parse_companion_key,
    parse_state_key,
    state_key,
)
from headrace.format.segment.reader import SegmentReader
from headrace.storage.objects import ObjectMissing, Objects
from headrace.types import JSON, media_type

_TRIES = 3
_KINDS = (object_names.SEGMENTS, COMPANIONS, STATES)

#: Told how many bytes of segments are done, of how many that are known of.
ReportProgress = Callable[[int, int], None]


class Damage(NamedTuple):
    """An object that is not what it should be."""

    object: str
    check: str
    message: str


class VerifyReport(msgspec.Struct):
    """One stream as the store has it; without a name where no manifest can be read.

    A journal has no name either: its state is the name of the journal, its generation its newest number.
    """

    stream: str | None
    incarnation: str
    generation: int = 0
    state: str = ""
    entries: int = 0
    segments: int = 0
    companions: int = 0
    states: int = 0
    bytes: int = 0
    damage: list[Damage] = []
    #: Objects that the newest manifest does not name: sooner or later a server sweeps them.
    orphans: list[str] = []


def verify(
    objects: Objects,
    journals: Sequence[Journal[Any]],
    *,
    stream: str | None = None,
    on_progress: ReportProgress | None = None,
) -> Iterator[VerifyReport]:
    """Verify one stream, or all of them and the journals; raises where the store does not answer."""
    return _Verification(objects, journals, stream, on_progress or (lambda done, total: None)).run()


class _Verification:
    def __init__(
        self, objects: Objects, journals: Sequence[Journal[Any]], stream: str | None, on_progress: ReportProgress
    ) -> None:
        self._objects = objects
        self._journals = journals
        self._under = "" if stream is None else f"/{object_names.name_hash(stream)}"
        self._on_progress = on_progress
        self._done = self._total = 0
        self._locations: dict[str, StreamLocation] = {}

    def run(self) -> Iterator[VerifyReport]:
        generations_by_location = self._list_generations(object_names.MANIFESTS + self._under)
        for location, generations in sorted(generations_by_location.items()):
            yield self._verify_newest(location, generations)
        yield from self._strays(generations_by_location)
        if not self._under:
            yield from filter(None, map(self._verify_journal, self._journals))

    def _verify_journal(self, journal: Journal[Any]) -> VerifyReport | None:
        """The report on a journal; None where the store has nothing of it."""
        contents = journal.verify(self._objects)
        if not contents.records and not contents.damage:
            return None
        return VerifyReport(
            None,
            "",
            generation=contents.newest,
            state=journal.name,
            entries=contents.records,
            bytes=contents.bytes,
            damage=[_damage(reason) for reason in contents.damage],
        )

    def _list_generations(self, prefix: str) -> dict[StreamLocation, list[int]]:
        return object_names.generations(object_info.key for object_info in self._objects.list(prefix))

    def _verify_newest(self, location: StreamLocation, generations: list[int]) -> VerifyReport:
        for _ in range(_TRIES):
            report = self._verify(location, generations)
            if not report.damage:
                break
            now = self._list_generations(f"{object_names.MANIFESTS}/{'/'.join(location)}").get(location, [])
            if now == generations:
                break
            generations = now  # what is missing was replaced, or deleted, while we looked
        return report

    def _verify(self, location: StreamLocation, generations: list[int]) -> VerifyReport:
        unreadable: list[CorruptData] = []
        manifest = newest_valid(self._objects, location, generations, unreadable)
        report = VerifyReport(None, location[1], damage=[_damage(reason) for reason in unreadable], orphans=[])
        below = (f"{kind}/{'/'.join(location)}" for kind in _KINDS)
        sizes = {object_info.key: object_info.bytes for prefix in below for object_info in self._objects.list(prefix)}
        if manifest is None:
            report.orphans += sorted(sizes)
            return report
        report.stream, report.state, report.generation = manifest.stream, manifest.state, manifest.generation
        report.entries = manifest.published_seq - manifest.first_seq
        report.orphans += [
            object_names.generation_key(location, older) for older in generations if older < manifest.generation
        ]
        self._verify_objects(manifest, sizes, report)
        report.damage += self._verify_sums(manifest)
        report.damage += self._verify_lineage(manifest)
        return report

    def _verify_objects(self, manifest: Manifest, sizes: dict[str, int], report: VerifyReport) -> None:
        named: dict[str, Segment | PartFile] = {**_segments(manifest), **_parts(manifest), **_states(manifest)}
        report.orphans += sorted(sizes.keys() - named.keys())
        report.segments = len(manifest.kept) + len(manifest.segments)
        report.companions = len(manifest.companions)
        report.states = len(manifest.states)
        report.bytes = sum(listed.bytes for listed in named.values())
        self._total += report.bytes
        for key, listed in named.items():
            try:
                self._verify_object(manifest, key, listed, sizes.get(key))
            except CorruptData as reason:
                report.damage.append(_damage(reason))
            self._done += listed.bytes
            self._on_progress(self._done, self._total)

    def _verify_object(self, manifest: Manifest, key: str, listed: Segment | PartFile, size: int | None) -> None:
        if size is None:
            raise ObjectMissing(f"the object {key} is missing", object=key, check="present")
        if size != listed.bytes:
            raise _corrupt(key, "size", f"it has {size} bytes, not {listed.bytes}")
        with self._local_copy(key, size) as path:
            if isinstance(listed, PartFile):
                _verify_checksum(key, listed, path)
                return
            reader = SegmentReader(path, name=key, decoded=LruCache(0), sha256=listed.sha256)
            _verify_identity(manifest, key, listed, reader)
            reader.verify()

    @contextmanager
    def _local_copy(self, key: str, size: int) -> Iterator[Path]:
        """A local file of an object; a download is removed afterwards."""
        path = self._objects.local_path(key)
        if path is not None:
            if not path.exists():
                raise ObjectMissing(f"the object {key} is missing", object=key, check="present")
            yield path
            return
        with tempfile.NamedTemporaryFile(prefix="headrace-", suffix=".parquet") as file:
            self._objects.download(key, size, file)  # type: ignore[arg-type]
            file.flush()
            yield Path(file.name)

    def _verify_sums(self, manifest: Manifest) -> Iterator[Damage]:
        """Yields damage where the payload totals of segments or of the manifest do not add up."""
        key = object_names.manifest_key(manifest.stream, manifest.incarnation, manifest.generation)
        for before, after in pairwise(manifest.segments):
            if before.total_bytes != after.before_bytes:
                what = f"{after.name} goes on after {after.before_bytes} bytes, not after {before.total_bytes}"
                yield _damage(_corrupt(key, "bytes", what))
        if manifest.segments and manifest.segments[-1].total_bytes != manifest.total_bytes:
            what = f"it has {manifest.total_bytes} bytes, its segments {manifest.segments[-1].total_bytes}"
            yield _damage(_corrupt(key, "bytes", what))

    def _verify_lineage(self, manifest: Manifest) -> Iterator[Damage]:
        """What a fork reads from others must be there."""
        key = object_names.manifest_key(manifest.stream, manifest.incarnation, manifest.generation)
        start = manifest.first_seq
        for incarnation, end in manifest.lineage:
            source = self._newest_of(incarnation)
            if source is None:
                yield _damage(
                    _corrupt(key, "lineage", f"it was forked from a stream that is not there ({incarnation})")
                )
            elif (missing := _first_missing(source, start, end)) is not None:
                yield _damage(_corrupt(key, "lineage", f"entry {missing} of {source.stream!r} is not published"))
            start = max(start, end)

    def _newest_of(self, incarnation: str) -> Manifest | None:
        if incarnation not in self._locations:
            self._locations |= {location[1]: location for location in self._list_generations(object_names.MANIFESTS)}
        location = self._locations.get(incarnation)
        if location is None:
            return None
        generations = self._list_generations(f"{object_names.MANIFESTS}/{'/'.join(location)}").get(location, [])
        return newest_valid(self._objects, location, generations, [])

    def _strays(self, generations_by_location: dict[StreamLocation, list[int]]) -> Iterator[VerifyReport]:
        """Segments, companions and states of streams that have no manifest."""
        strays: dict[StreamLocation, list[str]] = {}
        for object_info in (object_info for kind in _KINDS for object_info in self._objects.list(kind + self._under)):
            located = (
                object_names.parse_segment_key(object_info.key)
                or parse_companion_key(object_info.key)
                or parse_state_key(object_info.key)
            )
            if located is not None and located[0] not in generations_by_location:
                strays.setdefault(located[0], []).append(object_info.key)
        for location, keys in sorted(strays.items()):
            if not self._list_generations(f"{object_names.MANIFESTS}/{'/'.join(location)}"):
                yield VerifyReport(None, location[1], orphans=sorted(keys))


def _segments(manifest: Manifest) -> dict[str, Segment]:
    return {
        object_names.segment_key(manifest.stream, manifest.incarnation, segment.name): segment
        for segment in (*manifest.kept, *manifest.segments)
    }


def _parts(manifest: Manifest) -> dict[str, PartFile]:
    return {
        companion_key(manifest.stream, manifest.incarnation, companion.name, name): part
        for companion in manifest.companions
        for name, part in companion.parts.items()
    }


def _states(manifest: Manifest) -> dict[str, PartFile]:
    return {
        state_key(manifest.stream, manifest.incarnation, state.name): PartFile(state.bytes, state.sha256)
        for state in manifest.states
    }


def _verify_checksum(key: str, part: PartFile, path: Path) -> None:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
            raise _corrupt(key, "checksum", "its checksum differs")


def _verify_identity(manifest: Manifest, key: str, segment: Segment, reader: SegmentReader) -> None:
    """Raises where the footer of a segment differs from the manifest."""
    object_info = reader.info
    is_json = media_type(manifest.content_type) == JSON
    identity = (object_info.stream, object_info.incarnation, object_info.json)
    if identity != (manifest.stream, manifest.incarnation, is_json):
        raise _corrupt(key, "identity", f"it belongs to {object_info.stream!r}, life {object_info.incarnation}")
    counted = (
        object_info.first_seq,
        object_info.count,
        object_info.payload_bytes,
        object_info.min_us,
        object_info.max_us,
    )
    if counted != (segment.first_seq, segment.count, segment.payload_bytes, segment.min_us, segment.max_us):
        raise _corrupt(key, "count", "its entries, times or bytes are others than its manifest says")
    room, taken = segment.total_bytes - segment.before_bytes, reader.bytes_before(segment.end_seq)
    # The log counts a JSON body as it was sent, with what stands between its entries.
    if taken > room or (taken < room and not is_json):
        raise _corrupt(key, "bytes", f"its entries take {taken} bytes, its manifest counts {room}")


def _first_missing(source: Manifest, start: int, end: int) -> int | None:
    """The first entry of [start, end) that no segment of a stream's own holds; those it inherited are elsewhere."""
    if source.lineage:
        start = max(start, source.lineage[-1][1])
    for segment in (*source.kept, *source.segments):
        if segment.first_seq <= start < segment.end_seq:
            start = segment.end_seq
    return start if start < end else None


def _corrupt(key: str, check: str, what: str) -> CorruptData:
    return CorruptData(f"{key} is damaged: {what}", object=key, check=check)


def _damage(reason: CorruptData) -> Damage:
    return Damage(str(reason.facts.get("object", "")), str(reason.facts.get("check", "")), reason.message)

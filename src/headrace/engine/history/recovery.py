"""Recovery: updates an empty or old database to the published state.

The newest manifest of a stream counts. A stream that the database does not have is made anew; one that it has as of an
older manifest goes on from the newer one; one that was deleted since is deleted here. What was never published stays
as it is. A database may always lack a tail that was acknowledged and lost, so every stream that can be appended to
gets a new epoch: offsets of lost entries never lead to others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import msgspec

from headrace import decoding
from headrace.engine.history.journal import Journal
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import release
from headrace.errors import CorruptData, Fenced, Unavailable
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.manifest import Manifest
from headrace.storage.derived import Companions, States
from headrace.storage.node import holder_of
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.published import DeletedStream
from headrace.storage.registries import RegistryRow
from headrace.storage.streams import DELETED, LIVE, SOFT_DELETED, StreamRow, Streams
from headrace.storage.work import Work
from headrace.types import RESERVED

log = logging.getLogger("headrace.sealing")

StreamLocation = tuple[str, str]
Epochs = tuple[tuple[int, int], ...]
_PAGE = 500
#: Manifests that are looked for at once.
_PROBES = 16
#: Where the database notes the lease under which it has written so far.
LEASE = "lease"
_EPOCHS = decoding.make_decoder(Epochs)


class RecoveredStream(NamedTuple):
    """A stream that came from the store."""

    stream: str
    entries: int
    segments: int
    bytes: int


class Recovered(msgspec.Struct):
    """The streams that a recovery restored, and the problems of those that it could not restore."""

    streams: int = 0
    entries: int = 0
    problems: list[str] = []


#: Told after each manifest: how many are done, of how many, and the stream that it brought.
ReportProgress = Callable[[int, int, RecoveredStream | None], None]


def newest(objects: Objects, problems: list[CorruptData]) -> Iterator[Manifest]:
    """The newest valid manifest of every stream; an older one counts where the newest is damaged."""
    for location, generations in sorted(generations_of(objects).items()):
        manifest = newest_valid(objects, location, generations, problems)
        if manifest is not None:
            yield manifest


def generations_of(objects: Objects) -> dict[StreamLocation, list[int]]:
    """The generations of every manifest, the newest first; also those that a listing of a service lacks as yet."""
    generations_by_location = object_names.generations(
        object_info.key for object_info in objects.list(object_names.MANIFESTS)
    )
    if not objects.is_local:
        with ThreadPoolExecutor(_PROBES) as pool:
            for location, newer in zip(
                generations_by_location,
                pool.map(partial(_following, objects), generations_by_location.items()),
                strict=True,
            ):
                generations_by_location[location] = newer + generations_by_location[location]
    return generations_by_location


def _following(objects: Objects, listed: tuple[StreamLocation, list[int]]) -> list[int]:
    """The generations that follow the newest one that is listed, the newest first."""
    location, generations = listed
    newest = generations[0]
    while objects.has(object_names.generation_key(location, newest + 1)):
        newest += 1
    return list(range(newest, generations[0], -1))


def newest_valid(
    objects: Objects, location: StreamLocation, generations: list[int], problems: list[CorruptData]
) -> Manifest | None:
    """The newest valid one of some generations, and the problems of newer ones."""
    for generation in generations:
        key = object_names.generation_key(location, generation)
        try:
            return manifests.decode(objects.get(key), key)
        except CorruptData as reason:
            problems.append(reason)
    return None


def count_diverged_entries(row: StreamRow, manifest: Manifest) -> int:
    """How many entries of a stream are in the database alone, where a newer manifest has others in their place."""
    if row.name.startswith(RESERVED):
        return 0  # what a node says of itself gives way to what its successor says
    if manifest.incarnation != row.incarnation:
        # The store knows a later life of the name. If this one was published, it was deleted since.
        is_later = incarnation_number(manifest.incarnation) > incarnation_number(row.incarnation)
        return row.next_seq - (row.fork_seq or 0) if is_later and not row.generation else 0
    diverged = _first_difference(row, manifest)
    return 0 if manifest.generation <= row.generation or diverged is None else max(0, row.next_seq - diverged)


def first_difference(ours: Epochs, theirs: Epochs) -> int | None:
    """Return the entry from which on two lists of epochs have different histories; None where they have one."""
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    return min((epochs[common][1] for epochs in (ours, theirs) if len(epochs) > common), default=None)


def _first_difference(row: StreamRow, manifest: Manifest) -> int | None:
    return first_difference(_EPOCHS.decode(row.epochs), manifest.epochs)


def incarnation_number(incarnation: str) -> int:
    """An incarnation as a number, which grows: it is the first epoch of the stream."""
    return int(incarnation, 36)


class Deletions:
    """Finds streams that were deleted from the object store since a database last wrote there."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        #: The generations of every manifest, the newest first.
        self.generations_by_location = generations_of(objects)
        self._newest_incarnations: dict[str, int] = {}
        for name, incarnation in self.generations_by_location:
            self._newest_incarnations[name] = max(
                incarnation_number(incarnation), self._newest_incarnations.get(name, 0)
            )

    def stranded_forks(self, streams: Streams) -> Iterator[StreamRow]:
        """Forks in this database whose source was deleted by a node that did not have them."""
        for fork in _every(streams):
            source = None if fork.parent is None else streams.by_id(fork.parent)
            if source is not None and self._was_deleted(source) and not self._was_deleted(fork):
                yield fork

    def _was_deleted(self, row: StreamRow) -> bool:
        location = _location(row)
        if self._newest_incarnations.get(location[0], 0) > incarnation_number(row.incarnation):
            return True
        unknown = [
            generation for generation in self.generations_by_location.get(location, []) if generation > row.generation
        ]
        manifest = newest_valid(self._objects, location, unknown, [])
        return self.is_gone(row) if manifest is None else manifest.state == "deleted"

    def is_gone(self, row: StreamRow) -> bool:
        """Whether a stream was published, and nothing of it is left."""
        return self.is_unlisted(row) and not self._has_segments(row)

    def is_unlisted(self, row: StreamRow) -> bool:
        """Whether a stream was published, and has no manifest."""
        location = _location(row)
        is_unlisted = bool(row.generation) and location not in self.generations_by_location
        return is_unlisted and not self._objects.has(object_names.generation_key(location, row.generation))

    def _has_segments(self, row: StreamRow) -> bool:
        segments = f"{object_names.SEGMENTS}/{'/'.join(_location(row))}"
        return next(iter(self._objects.list(segments)), None) is not None


def _location(row: StreamRow) -> StreamLocation:
    return object_names.name_hash(row.name), row.incarnation


def recover(
    objects: Objects,
    batch: Batch,
    journals: Sequence[Journal[Any]],
    reserve: Callable[[Batch], None] | None = None,
    on_progress: ReportProgress | None = None,
) -> Recovered:
    """Update a database to the published state, in one commit; ``reserve`` provides more epochs where they run out.

    Raises Fenced where that would drop entries that are nowhere else.
    """
    return _Recovery(objects, batch, journals, reserve, on_progress).run()


class _Recovery:
    def __init__(
        self,
        objects: Objects,
        batch: Batch,
        journals: Sequence[Journal[Any]],
        reserve: Callable[[Batch], None] | None,
        on_progress: ReportProgress | None,
    ) -> None:
        self._objects = objects
        self._batch = batch
        self._journals = journals
        self._reserve = reserve
        self._on_progress = on_progress or (lambda done, total, brought: None)
        self._recovered = Recovered(problems=[])

    def run(self) -> Recovered:
        deletions = Deletions(self._objects)
        generations_by_location = deletions.generations_by_location
        for fork in deletions.stranded_forks(self._batch.streams):
            raise _only_here(fork, fork.next_seq - fork.first_seq)
        self._drop_deleted(deletions)
        Work(self._batch.connection).forget_leases()
        forks: list[tuple[int, str]] = []
        done, problems = 0, list[CorruptData]()
        for location, generations in sorted(generations_by_location.items()):
            manifest = newest_valid(self._objects, location, generations, problems)
            if manifest is not None and manifest.lineage:
                key = object_names.generation_key(location, manifest.generation)
                forks.append((len(manifest.lineage), key))  # they come after those they were forked from
                continue
            done += 1
            self._on_progress(done, len(generations_by_location), None if manifest is None else self._take(manifest))
        for reason in problems:
            self._complain(reason.message)
        for number, (_, key) in enumerate(sorted(forks), done + 1):
            self._on_progress(number, len(generations_by_location), self._take_fork(key))
        self._release_ancestors()
        for journal in self._journals:
            journal.recover(self._objects, self._batch, self._new_epoch, self._complain)
        self._open_epochs()
        return self._recovered

    def _take_fork(self, key: str) -> RecoveredStream | None:
        try:
            return self._take(manifests.decode(self._objects.get(key), key))
        except ObjectMissing as reason:
            self._complain(reason.message)
            return None

    def _take(self, manifest: Manifest) -> RecoveredStream | None:
        """Update the database to a manifest; returns what was restored."""
        batch = self._batch
        row = batch.streams.by_name(manifest.stream)
        if row is not None and row.incarnation != manifest.incarnation:
            if incarnation_number(row.incarnation) > incarnation_number(manifest.incarnation):
                batch.published.mark_deleted(DeletedStream(manifest.incarnation, manifest.stream))
                return None
            self._drop_replaced(row, manifest)
            row = None
        if manifest.state == "deleted":
            batch.published.mark_deleted(DeletedStream(manifest.incarnation, manifest.stream))
            if row is not None:
                self._delete(row)
            return None
        if row is not None and manifest.generation <= row.generation:
            return None
        if row is not None and row.state == DELETED:
            if self._is_ours(row, manifest):
                batch.published.mark_deleted(DeletedStream(row.incarnation, row.name))
                return None
            # It was deleted here, and another node that did not know has gone on with it.
            batch.streams.remove(row.id)
            row = None
        return self._insert(manifest) if row is None else self._adopt(row, manifest)

    def _is_ours(self, row: StreamRow, manifest: Manifest) -> bool:
        """Whether a newer manifest was written by this node before a crash, and no other has continued from it."""
        if _first_difference(row, manifest) is not None:
            return False
        # Whoever goes on with a stream opens an epoch, unless it is closed.
        lease = self._batch.streams.meta(LEASE, -1)
        return not manifest.closed or holder_of(self._objects, lease) == manifest.writer

    def _drop_replaced(self, row: StreamRow, manifest: Manifest) -> None:
        """Remove a stream whose name a later incarnation has taken."""
        _check(row, manifest)
        if row.state != DELETED:
            self._batch.published.mark_deleted(DeletedStream(row.incarnation, row.name))
        self._batch.streams.remove(row.id)

    def _delete(self, row: StreamRow) -> None:
        self._batch.streams.update(row.id, state=DELETED, deadline_us=self._batch.now_us)
        self._batch.streams.discard(row.id)

    def _drop_deleted(self, deletions: Deletions) -> None:
        """Delete published streams of which the store has nothing any more."""
        for row in _every(self._batch.streams):
            if deletions.is_gone(row):
                self._delete(row)
            elif deletions.is_unlisted(row):
                self._complain(f"{row.name!r} has segments and no manifest; another one is written")
                self._batch.published.mark(row.id, self._batch.now_us)

    def _release_ancestors(self) -> None:
        """Delete soft-deleted streams that no fork needs; none where some streams could not be recovered."""
        if self._recovered.problems:
            return
        for row in _every(self._batch.streams):
            if row.state == SOFT_DELETED:
                release(self._batch, row.id)

    def _insert(self, manifest: Manifest) -> RecoveredStream | None:
        streams = self._batch.streams
        self._batch.published.unmark_deleted(DeletedStream(manifest.incarnation, manifest.stream))
        for incarnation, end in manifest.lineage:
            ancestor = streams.by_incarnation(incarnation)
            if ancestor is None:
                self._complain(f"{manifest.stream!r} was forked from a stream that is not there ({incarnation})")
                return None
            if ancestor.next_seq < end:
                self._complain(
                    f"{manifest.stream!r} needs {end} entries of {ancestor.name!r}, and {ancestor.next_seq} are there"
                )
                return None
        row = _row(manifest)
        if manifest.lineage:
            parent = streams.by_incarnation(manifest.lineage[-1][0])
            row.parent, row.fork_seq = None if parent is None else parent.id, manifest.lineage[-1][1]
        row.id = streams.insert(row)
        return self._fill(row, manifest)

    def _adopt(self, row: StreamRow, manifest: Manifest) -> RecoveredStream:
        """Update a stream to a newer manifest, and keep its later entries."""
        _check(row, manifest)
        batch = self._batch
        if row.next_seq <= manifest.published_seq and not _has_ended(row, manifest):
            batch.streams.empty(row.id)
            values = msgspec.structs.asdict(_row(manifest))
            kept = {"id", "parent", "fork_seq", "revision"}
            batch.streams.update(row.id, **{name: value for name, value in values.items() if name not in kept})
            return self._fill(row, manifest)
        # Only the commit is missing that makes the manifest known.
        batch.published.remove(
            row.id, [placed.segment for placed in batch.published.following(row.id, 0, row.next_seq)]
        )
        for segment in (*manifest.kept, *manifest.segments):
            batch.published.add(row.id, segment)
        batch.wal.trim(row.id, 0, manifest.published_seq, -1)
        batch.streams.update(
            row.id,
            published_seq=manifest.published_seq,
            published_us=manifest.written_us,
            generation=manifest.generation,
            manifest_bytes=len(manifests.encode(manifest)),
            attempted=1,
        )
        self._list_derived(row, manifest)
        return self._count(manifest)

    def _fill(self, row: StreamRow, manifest: Manifest) -> RecoveredStream:
        """Everything about a stream apart from its row."""
        batch = self._batch
        for segment in (*manifest.kept, *manifest.segments):
            batch.published.add(row.id, segment)
        for revision in manifest.registry:
            document = bytes(revision.document).decode()
            batch.registries.save(row.id, RegistryRow(revision.revision, revision.at_us, document))
        batch.streams.save_producers(
            (row.id, producer, epoch, seq) for producer, (epoch, seq) in manifest.producers.items()
        )
        self._list_derived(row, manifest)
        return self._count(manifest)

    def _list_derived(self, row: StreamRow, manifest: Manifest) -> None:
        companions = Companions(self._batch.connection)
        companions.drop(row.id)
        for companion in manifest.companions:
            companions.add(row.id, companion)
        states = States(self._batch.connection)
        states.drop(row.id)
        for state in manifest.states:
            states.add(row.id, state)
        Work(self._batch.connection).mark(row.id, self._batch.now_us)

    def _count(self, manifest: Manifest) -> RecoveredStream:
        entries = manifest.published_seq - manifest.first_seq
        self._recovered.streams += 1
        self._recovered.entries += entries
        return RecoveredStream(
            manifest.stream, entries, len(manifest.segments), sum(segment.bytes for segment in manifest.segments)
        )

    def _open_epochs(self) -> None:
        """Entries after those that are here may have been acknowledged and lost: their offsets are not given again."""
        for row in _every(self._batch.streams):
            if not row.closed:
                epochs = [*_EPOCHS.decode(row.epochs), (self._new_epoch(), row.next_seq)]
                self._batch.streams.update(row.id, epochs=msgspec.json.encode(epochs).decode())
                self._batch.published.mark(row.id, self._batch.now_us)

    def _new_epoch(self) -> int:
        try:
            return self._batch.new_epoch()
        except Unavailable:
            if self._reserve is None:
                raise
            self._reserve(self._batch)
            return self._batch.new_epoch()

    def _complain(self, problem: str) -> None:
        self._recovered.problems.append(problem)
        log.error("%s", problem)


def _check(row: StreamRow, manifest: Manifest) -> None:
    """Raises Fenced where entries would be dropped that are nowhere else."""
    if entries := count_diverged_entries(row, manifest):
        raise _only_here(row, entries)


def _only_here(row: StreamRow, entries: int) -> Fenced:
    return Fenced(
        f"another node went on with {row.name!r} in this object store, and {entries} entries are only here",
        stream=row.name,
        entries=entries,
    )


def _has_ended(row: StreamRow, manifest: Manifest) -> bool:
    """Whether a stream was closed or deleted here after a manifest of the same history."""
    is_deleted = row.state == SOFT_DELETED and manifest.state == "live"
    return _first_difference(row, manifest) is None and (is_deleted or bool(row.closed) > manifest.closed)


def _every(streams: Streams) -> Iterator[StreamRow]:
    after = 0
    while rows := streams.every(after, _PAGE):
        yield from rows
        after = rows[-1].id


def _row(manifest: Manifest) -> StreamRow:
    return StreamRow(
        name=manifest.stream,
        content_type=manifest.content_type,
        created_us=manifest.created_us,
        epochs=msgspec.json.encode(manifest.epochs).decode(),
        state=SOFT_DELETED if manifest.state == "soft_deleted" else LIVE,
        ttl_s=manifest.ttl_s,
        expires_us=manifest.expires_us,
        deadline_us=manifest.deadline_us,
        retention_age_us=manifest.retention_age_us,
        retention_bytes=manifest.retention_bytes,
        closed=int(manifest.closed),
        closed_by=None if manifest.closed_by is None else msgspec.json.encode(manifest.closed_by).decode(),
        fork_origin=manifest.fork_origin,
        first_seq=manifest.first_seq,
        first_bytes=manifest.first_bytes,
        next_seq=manifest.published_seq,
        last_us=manifest.last_us,
        bytes=manifest.total_bytes,
        stream_seq=manifest.stream_seq,
        profile=manifest.profile,
        managed=manifest.managed,
        incarnation=manifest.incarnation,
        published_seq=manifest.published_seq,
        published_us=manifest.written_us,
        generation=manifest.generation,
        attempted=1,
        manifest_bytes=len(manifests.encode(manifest)),
    )

"""Recovery: a node made anew from what was published, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from headrace.engine.writer import Batch
from headrace.errors import CorruptData
from headrace.format import manifest as manifests
from headrace.format.manifest import Manifest
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.published import Grave
from headrace.storage.registries import RegistryRow
from headrace.storage.streams import LIVE, SOFT_DELETED, StreamRow

log = logging.getLogger("headrace.sealing")


class Recovered(msgspec.Struct):
    """What a recovery brought back, and the problems of streams that it could not."""

    streams: int = 0
    entries: int = 0
    problems: list[str] = []


def newest(objects: Objects, problems: list[str]) -> Iterator[Manifest]:
    """The newest valid manifest of every stream; an older one counts where the newest is damaged."""
    found = manifests.generations(info.key for info in objects.list(manifests.MANIFESTS))
    for place, generations in sorted(found.items()):
        manifest = _newest_valid(objects, place, generations, problems)
        if manifest is not None:
            yield manifest


def _newest_valid(
    objects: Objects, place: tuple[str, str], generations: list[int], problems: list[str]
) -> Manifest | None:
    for generation in generations:
        key = manifests.generation_key(place, generation)
        try:
            return manifests.decode(objects.get(key), key)
        except (CorruptData, ObjectMissing) as reason:
            problems.append(reason.message)
            log.error("%s", reason.message)
    return None


def recover(objects: Objects, batch: Batch) -> Recovered:
    """Fill an empty database with every published stream, in one commit."""
    recovered = Recovered(problems=[])
    ids: dict[str, int] = {}
    for manifest in sorted(newest(objects, recovered.problems), key=lambda manifest: len(manifest.lineage)):
        if manifest.state == "deleted":
            batch.published.dig(Grave(manifest.incarnation, manifest.stream))
            continue
        missing = [incarnation for incarnation, _ in manifest.lineage if incarnation not in ids]
        if missing:
            problem = f"{manifest.stream!r} was forked from a stream whose manifest is missing ({missing[0]})"
            recovered.problems.append(problem)
            log.error("%s", problem)
            continue
        ids[manifest.incarnation] = _restore(batch, manifest, ids)
        recovered.streams += 1
        recovered.entries += manifest.published_seq - manifest.first_seq
    return recovered


def _restore(batch: Batch, manifest: Manifest, ids: dict[str, int]) -> int:
    stream = batch.streams.insert(_row(batch, manifest, ids))
    for segment in (*manifest.kept, *manifest.segments):
        batch.published.add(stream, segment)
    for revision in manifest.registry:
        row = RegistryRow(revision.revision, revision.at_us, bytes(revision.document).decode())
        batch.registries.save(stream, row)
    batch.streams.save_producers(
        (stream, producer, epoch, seq) for producer, (epoch, seq) in manifest.producers.items()
    )
    batch.published.mark(stream, batch.now_us)
    return stream


def _row(batch: Batch, manifest: Manifest, ids: dict[str, int]) -> StreamRow:
    parent, fork_seq = manifest.lineage[-1] if manifest.lineage else (None, None)
    epochs = list(manifest.epochs)
    if not manifest.closed:
        # Entries after the published ones may have been acknowledged and lost: their offsets must not be given again.
        epochs.append((batch.new_epoch(), manifest.published_seq))
    return StreamRow(
        name=manifest.stream,
        content_type=manifest.content_type,
        created_us=manifest.created_us,
        epochs=msgspec.json.encode(epochs).decode(),
        state=SOFT_DELETED if manifest.state == "soft_deleted" else LIVE,
        ttl_s=manifest.ttl_s,
        expires_us=manifest.expires_us,
        deadline_us=manifest.deadline_us,
        retention_age_us=manifest.retention_age_us,
        retention_bytes=manifest.retention_bytes,
        closed=int(manifest.closed),
        closed_by=None if manifest.closed_by is None else msgspec.json.encode(manifest.closed_by).decode(),
        parent=None if parent is None else ids[parent],
        fork_seq=fork_seq,
        fork_origin=manifest.fork_origin,
        first_seq=manifest.first_seq,
        first_bytes=manifest.first_bytes,
        next_seq=manifest.published_seq,
        last_us=manifest.last_us,
        bytes=manifest.total_bytes,
        stream_seq=manifest.stream_seq,
        profile=manifest.profile,
        incarnation=manifest.incarnation,
        published_seq=manifest.published_seq,
        published_us=manifest.written_us,
        generation=manifest.generation,
    )

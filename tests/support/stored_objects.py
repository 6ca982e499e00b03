"""What lies in an object store, for tests: keys, manifests, and the entries of segments."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.decoded_columns import LruCache
from headrace.format.manifest import Manifest
from headrace.format.segment.reader import SegmentReader
from headrace.storage.objects import Objects
from headrace.storage.published import SegmentObject
from support.engine_rig import Rig


def keys(objects: Objects, kind: str = "") -> list[str]:
    """The keys of all objects of a kind, in order."""
    return sorted(info.key for info in objects.list(kind))


def generations(rig: Rig, name: str) -> list[int]:
    """The generations of a stream's manifest that are in the store, over all its lives; the newest first."""
    found = object_names.generations(keys(rig.engine.objects, f"manifests/{object_names.name_hash(name)}"))
    return sorted((number for numbers in found.values() for number in numbers), reverse=True)


def manifest(rig: Rig, name: str) -> Manifest:
    """The newest manifest of a stream."""
    stream = rig.engine.log.catalog.find(name)
    assert stream is not None
    key = object_names.manifest_key(name, stream.incarnation, generations(rig, name)[0])
    return manifests.decode(rig.engine.objects.get(key), key)


def placed(rig: Rig, name: str) -> list[SegmentObject]:
    """The segments of a stream, as the database lists them."""
    return rig.engine.published.following(rig.find(name).id, 0, 1 << 60)


def files(rig: Rig, name: str) -> list[str]:
    """The files of a stream's segments, where the store is a directory."""
    found = [rig.engine.objects.local_path(one.key) for one in placed(rig, name)]
    assert all(isinstance(file, Path) and file.suffix == ".parquet" for file in found)
    return [str(file) for file in found]


def spans(rig: Rig, name: str) -> list[tuple[int, int]]:
    """Where the segments of a stream begin and end."""
    return [(one.segment.first_seq, one.segment.end_seq) for one in placed(rig, name)]


def reader(rig: Rig, one: SegmentObject) -> SegmentReader:
    """A segment as it is stored, checked against its checksum."""
    data = rig.engine.objects.get(one.key)
    return SegmentReader(data, name=one.key, decoded=LruCache(1 << 20), sha256=one.segment.sha256)


def rows(rig: Rig, table: str = "wal") -> int:
    """How many rows a table has."""
    with closing(rig.engine.connect()) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").get)


def flipped(path: Path, place: int, bit: int = 0) -> None:
    """Flip one bit of a file where it lies: whoever has it open reads it, too."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


def open_files(below: Path) -> list[str]:
    """The files below a directory that this process has open, deleted ones included."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(descriptor.readlink()))
    return sorted(path for path in found if path.startswith(str(below)))

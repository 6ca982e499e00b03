"""Perform units in an executor, each on its own, and return a result for each."""

from __future__ import annotations

import errno
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace import decoding
from headrace.config import ConfigError
from headrace.errors import CorruptData, StoreUnavailable
from headrace.extract.columns import Extractor
from headrace.format.companion.layout import Companion, PartName
from headrace.format.decoded_columns import LruCache
from headrace.format.object_names import companion_key, file_name
from headrace.format.segment.reader import SegmentReader
from headrace.query.definition import Definition
from headrace.reduce.work_units import Unit
from headrace.schema.registry import Registry
from headrace.storage.objects import ObjectMissing, Objects

if TYPE_CHECKING:
    import pyarrow as pa


_REASON_LENGTH = 2_000
#: What an executor lacks; no unit is to blame for that.
_ENVIRONMENT = (ImportError, MemoryError, StoreUnavailable, ConfigError)
_ENVIRONMENT_ERRNOS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
}


class Workspace(NamedTuple):
    """Where a kernel works: the object store, and a directory of its own."""

    objects: Objects
    directory: Path

    @contextmanager
    def borrowed(self, key: str, size: int, name: str) -> Iterator[Path]:
        """An object as a local file, for a while; one in a local store is read where it is."""
        local = self.objects.local_path(key)
        if local is not None:
            self.objects.head(key)  # says so where it is missing
            yield local
            return
        path = self.directory / name
        with path.open("wb") as file:
            self.objects.download(key, size, file)
        try:
            yield path
        finally:
            path.unlink()

    def upload(self, unit: Unit, companion: Companion, parts: Sequence[PartName] = ()) -> None:
        """Make the files of a companion durable, all or some."""
        for part in parts or companion.parts:
            key = companion_key(unit.stream, unit.incarnation, companion.name, part)
            self.objects.upload(key, self.directory / file_name(companion.name, part))


Perform = Callable[[Unit, Workspace], dict[str, Any]]
Kernel = Callable[[Iterator[Any]], Iterator[Any]]


def attempt(unit: Unit) -> str:
    """A suffix that makes the object names of this attempt unique."""
    return unit.name_begins.rpartition("-")[2] + secrets.token_hex(4)


def over(perform: Perform, packs: Sequence[Sequence[bytes]], store: str) -> Kernel:
    """A kernel whose rows are numbers of packs, and which yields the result of every unit in them as JSON."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                results = [msgspec.json.encode(result(perform, unit, store)).decode() for unit in packs[number]]
                yield pa.RecordBatch.from_pydict({"result": pa.array(results, pa.string())})

    return run


def result(perform: Perform, encoded: bytes, store: str) -> dict[str, Any]:
    """Perform a unit and return its result: what was written, what is missing, or why it failed."""
    unit = decoding.decode(encoded, Unit)
    try:
        with open_workspace(store) as here:
            return {"unit": unit.unit, **perform(unit, here)}
    except Exception as reason:  # that of one unit must not be that of the others
        return {"unit": unit.unit, **failure(reason)}


def failure(reason: Exception) -> dict[str, Any]:
    """Why nothing came of a unit: its objects are gone, it failed (``error``), or its executor did (``fault``)."""
    if isinstance(reason, ObjectMissing):
        return {"gone": True}
    kind = "fault" if is_environment(reason) else "error"
    return {kind: f"{type(reason).__name__}: {reason}"[:_REASON_LENGTH]}


def is_environment(reason: Exception) -> bool:
    """Whether an exception comes from what an executor lacks, and not from the data of a unit."""
    if isinstance(reason, _ENVIRONMENT):
        return True
    return isinstance(reason, OSError) and reason.errno in _ENVIRONMENT_ERRNOS


@contextmanager
def open_workspace(store: str) -> Iterator[Workspace]:
    """A store, and a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="headrace-unit-") as directory:
        yield Workspace(opened(store), Path(directory))


@lru_cache(maxsize=4)
def opened(store: str) -> Objects:
    """The store of a URL; its credentials come from the environment of this machine."""
    return Objects.open(store)


def batches(unit: Unit, here: Workspace) -> Iterator[pa.RecordBatch]:
    """Row group by row group, in order."""
    for number, source in enumerate(unit.segments):
        with here.borrowed(source.key, source.bytes, f"{number}.parquet") as path:
            reader = SegmentReader(path, name=source.key, decoded=LruCache(0), sha256=source.sha256)
            yield from reader.batches(*_own_range(unit, number))


def _own_range(unit: Unit, number: int) -> tuple[int, int]:
    """The entries of a segment up to where the next one begins: a fork leaves its source within a segment."""
    source, following = unit.segments[number], unit.segments[number + 1 : number + 2]
    ends = unit.end_seq, source.first_seq + source.count, *(successor.first_seq for successor in following)
    return max(unit.first_seq, source.first_seq), min(ends)


_KEPT = 64


def defined(unit: Unit) -> Definition:
    """What is derived from the events of a unit."""
    return _definition(_text(unit))


def extractor(unit: Unit) -> Extractor:
    """What makes columns of them."""
    return _extractor(_text(unit))


def _text(unit: Unit) -> bytes:
    return msgspec.json.encode(unit.registry, order="sorted")


@lru_cache(maxsize=_KEPT)
def _definition(registry: bytes) -> Definition:
    definition = Definition.of(Registry.load(msgspec.json.decode(registry)))
    if definition is None:
        raise CorruptData("a stream without a search configuration has nothing to derive")
    return definition


@lru_cache(maxsize=_KEPT)
def _extractor(registry: bytes) -> Extractor:
    return Extractor(_definition(registry))


_ABSENT = "segments/absent"


def missing(modules: Sequence[str]) -> Kernel:
    """A kernel that yields the modules which cannot be imported where it runs."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        from importlib.util import find_spec

        for _ in batches:
            absent = [name for name in modules if find_spec(name) is None]
            if "pyarrow" not in absent:
                import pyarrow as pa

                yield pa.RecordBatch.from_pydict({"module": pa.array(absent, pa.string())})

    return run


def store_failure(store: str) -> Kernel:
    """A kernel that yields why the object store cannot be used where it runs, and nothing where it can."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        # In the executor, which may lack packages.
        from headrace.errors import HeadraceError
        from headrace.storage.objects import ObjectMissing

        for _ in batches:
            try:
                opened(store).head(_ABSENT)
            except ObjectMissing:
                continue
            except HeadraceError as reason:
                yield pa.RecordBatch.from_pydict({"reason": pa.array([reason.message], pa.string())})

    return run

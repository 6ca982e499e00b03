"""Directories that take turns with one object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.config import StorageConfig
from headrace.engine.history.recovery import newest
from headrace.format import object_names
from headrace.format.decoded_columns import LruCache
from headrace.format.manifest import Manifest
from headrace.format.segment.reader import SegmentReader
from headrace.storage.backup import back_up, restore
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.types import SystemClock
from support.disturbed_store import Call, disturb
from support.engine_rig import Rig


def take_over(objects: Objects) -> Node:
    """Let another node become the writer of a store."""
    node = Node(objects, SystemClock())
    assert node.claim(node.newest()) is not None
    return node


def take_over_before(objects: Objects, key: str, theirs: bytes | None) -> None:
    """Let another node become the writer just before an object is created, of which it may write its own."""

    def replace(call: Call) -> None:
        if (call.verb, call.key) == ("create", key):
            take_over(objects)
            if theirs is not None:
                objects.put(key, theirs)

    disturb(objects).before = replace


class Machines:
    """Directories that share one store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = Objects.open(str(root / "store"))

    def open(self, name: str, *, store: str = "store", **facts: Any) -> Rig:
        return Rig(
            self.root / name, storage={"object_store": str(self.root / store), **facts.pop("storage", {})}, **facts
        )

    def pass_by(self) -> None:
        """Let another node take over, and do nothing."""
        take_over(self.objects)

    def back_up(self, name: str, target: str) -> None:
        back_up(self.root / name, "elsewhere", self.root / target, SystemClock(), lambda done, total: None)

    def restore(self, source: str, name: str) -> None:
        restore(self.root / source, StorageConfig(data_dir=str(self.root / name)), lambda done, total: None)

    def manifest(self, stream: str) -> Manifest:
        (found,) = [manifest for manifest in newest(self.objects, []) if manifest.stream == stream]
        return found

    def published(self) -> dict[str, list[bytes]]:
        """Every published entry of every stream, by its life."""
        return {f"{one.stream} {one.incarnation}": self._entries(one) for one in newest(self.objects, [])}

    def _entries(self, manifest: Manifest) -> list[bytes]:
        found: list[bytes] = []
        for segment in manifest.segments:
            path = self.objects.local_path(
                object_names.segment_key(manifest.stream, manifest.incarnation, segment.name)
            )
            assert path is not None
            reader = SegmentReader(path, name=segment.name, decoded=LruCache(0), sha256=segment.sha256)
            found += [reader.cell(seq)[2] for seq in range(segment.first_seq, segment.end_seq)]
        return found

"""Objects that earlier commits put into stores, and backups that they made, read by the code of today."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from golden.write_directory import CONTACT, ORDER, PARTS, STREAM, USERS
from headrace.config import StorageConfig
from headrace.format import journal, manifest, object_names
from headrace.format.companion import layout as companion_layout
from headrace.format.companion.file_reader import FileCompanion, sources_of
from headrace.format.decoded_columns import LruCache
from headrace.format.manifest import Manifest
from headrace.format.object_names import companion_key, state_key
from headrace.format.segment import layout as segment_layout
from headrace.format.segment.reader import SegmentReader
from headrace.format.state import VERSION as STATE_VERSION
from headrace.format.state_file import StateReader
from headrace.storage import backup, database, keys
from headrace.storage.keys import KeyStore
from headrace.storage.node import EPOCHS, NODES, holder_of
from headrace.storage.objects import Objects

HERE = Path(__file__).parent
DIRECTORIES = sorted((HERE / "directories").glob("*.tar.xz"))
BACKUPS = sorted((HERE / "backups").glob("*.tar.xz"))
CACHE_BYTES = 1 << 20
#: Versions that no commit ever wrote: two changes of the manifest came at once, and so did migrations.
NEVER_WRITTEN = {"manifest": {3}, "database": {1, 9, *range(11, 15)}}
NEWEST = {
    "manifest": manifest.VERSION,
    "features": journal.VERSION,
    "entities": journal.VERSION,
    "segment": segment_layout.VERSION,
    "companion": companion_layout.VERSION,
    "state": STATE_VERSION,
    "backup": backup.VERSION,
    "keys": keys._SCHEMA_VERSION,
    "database": len(database.migrations()),
}
#: Stream → what was stored in it before its first publication.
EVENTS: dict[str, list[Any]] = defaultdict(list)
for story in PARTS.values():
    for method, path, body in story[0]:
        if method == "POST" and path.startswith(f"{STREAM}/") and not path.endswith("/_schema"):
            EVENTS[path.removeprefix("/v1/stream/")] += body if isinstance(body, list) else [body]
EVENTS["events/Order"] = PARTS["features"][0][1][2]


def extract(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as entries:
        entries.extractall(directory, filter="data")
    return directory


@pytest.fixture(scope="module", params=DIRECTORIES, ids=lambda path: path.name.partition(".")[0])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """The store of an archive, which is empty where the commit had none."""
    directory = extract(request.param, tmp_path_factory.mktemp("golden"))
    return Objects.open(str(directory / "data" / "objects"))


def newest_manifests(store: Objects) -> list[Manifest]:
    generations = object_names.generations(entry.key for entry in store.list(object_names.MANIFESTS))
    names = [object_names.generation_key(stream, numbers[0]) for stream, numbers in generations.items()]
    return [manifest.decode(store.get(key), key) for key in names]


def local_path(store: Objects, key: str) -> Path:
    path = store.local_path(key)
    assert path is not None
    return path


def test_every_manifest_and_its_segments_hold_what_was_stored(store: Objects) -> None:
    for contents in newest_manifests(store):
        bodies = []
        for segment in contents.segments:
            key = object_names.segment_key(contents.stream, contents.incarnation, segment.name)
            reader = SegmentReader(
                local_path(store, key), name=key, decoded=LruCache(CACHE_BYTES), sha256=segment.sha256
            )
            reader.verify()
            assert reader.first_seq == segment.first_seq
            assert reader.end_seq == segment.end_seq
            parts = reader.read(reader.first_seq, reader.end_seq, CACHE_BYTES, None).parts
            bodies.append((b"," if reader.info.json else b"").join(bytes(part.body) for part in parts))
        if contents.content_type == "application/json":
            events = json.loads(b"[" + b",".join(bodies) + b"]")
        else:
            events = [b"".join(bodies).decode()]
        assert len(events) == contents.published_seq - contents.first_seq > 0
        if contents.stream in EVENTS:
            assert events == EVENTS[contents.stream]
        # The second schema of this stream was published with the lens that leads to it.
        if contents.stream == "golden/orders":
            assert b"durable.lens/v1" in bytes(contents.registry[-1].document)


def test_every_companion_finds_what_was_stored(store: Objects) -> None:
    for contents in newest_manifests(store):
        for companion in contents.companions:
            paths = {
                part: local_path(store, companion_key(contents.stream, contents.incarnation, companion.name, part))
                for part in companion.parts
            }
            for part, path in paths.items():
                assert hashlib.sha256(path.read_bytes()).hexdigest() == companion.parts[part].sha256
            opened = FileCompanion(
                sources_of(companion.name, paths), name=companion.name, decoded=LruCache(CACHE_BYTES)
            )
            assert opened.info.stream == contents.stream
            assert opened.info.count == companion.count
            if contents.stream == "golden/visits":
                pages = [visit["page"] for visit in EVENTS["golden/visits"]]
                for page in set(pages):
                    assert opened.rows("page", page).tolist() == [at for at, name in enumerate(pages) if name == page]


def test_every_state_has_a_row_for_each_key(store: Objects) -> None:
    for contents in newest_manifests(store):
        for state in contents.states:
            key = state_key(contents.stream, contents.incarnation, state.name)
            reader = StateReader(local_path(store, key), key, sha256=state.sha256)
            rows = dict(reader.rows())
            assert reader.info.table == state.table
            assert reader.info.count == state.count
            assert len(rows) == state.rows
            if state.table == "Users":
                assert {tuple(msgspec.msgpack.decode(key)) for key in rows} == {("u0",), ("u1",), ("u2",)}
                assert all(set(packed) == {"", *state.lives.values()} for packed in rows.values())


def test_every_registry_of_features_holds_what_was_registered(store: Objects) -> None:
    for entry in store.list(journal.FEATURES.prefix):
        (stored,) = journal.FEATURES.decode(store.get(entry.key), entry.key)
        assert stored.version == 1
        assert stored.app == "default"
        nodes = json.loads(bytes(stored.document))["nodes"]
        assert set(nodes) == {ORDER["name"], USERS["name"]}
        assert {name: feature["op"] for name, feature in nodes["Users"]["features"].items()} == {
            name: feature["op"] for name, feature in USERS["agg"].items()
        }


def test_every_registry_of_entity_types_holds_what_was_registered(store: Objects) -> None:
    for entry in store.list(journal.ENTITIES.prefix):
        (change,) = journal.ENTITIES.decode(store.get(entry.key), entry.key)
        made = json.loads(bytes(change.document))["made"]
        assert change.number == 1
        assert change.entity_type == "contact"
        assert made["schema_version"] == CONTACT["schema_version"]
        assert json.loads(made["schema_definition"]) == CONTACT["schema_definition"]
        assert json.loads(made["reducer_config"]) == CONTACT["reducer_config"]


def test_every_lease_names_its_holder(store: Objects) -> None:
    if not any(store.list(object_names.MANIFESTS)):
        return  # no store: leases came with it
    assert {len(str(holder_of(store, number))) for number in (0, 1)} == {16}
    assert holder_of(store, 2) is None
    assert [entry.key for entry in store.list(NODES)] == [f"{NODES}/{number:016}.json" for number in (0, 1)]
    assert [entry.key for entry in store.list(EPOCHS)] == [f"{EPOCHS}/{number:016}.json" for number in (0, 1)]


@pytest.mark.parametrize("archive", BACKUPS, ids=lambda path: path.name.partition(".")[0])
def test_a_backup_of_an_earlier_commit_is_restored(archive: Path, tmp_path: Path) -> None:
    extract(archive, tmp_path)
    data = tmp_path / "restored"
    restored = backup.restore(tmp_path / "backup", StorageConfig(data_dir=str(data)), lambda done, total: None)
    assert set(restored.files) == {"headrace.db", "keys.db"}
    assert restored.objects > 0
    assert restored.problems == ()
    connection = database.open_migrated(data / "headrace.db", cache_bytes=CACHE_BYTES)
    names = {name for (name,) in connection.execute("SELECT name FROM streams")}
    connection.close()
    assert {"golden/plain", "golden/text"} <= names
    tokens = json.loads((tmp_path / "tokens.json").read_text())
    store = KeyStore(data / "keys.db")
    key = store.verify(tokens["valid"])
    assert key is not None
    assert key.user_id == "größe"
    assert key.scopes == ("read", "write")
    assert key.prefix == "golden/"
    assert key.name == "reader"
    assert key.requests_per_s is None
    assert key.bytes_per_s is None
    assert store.verify(tokens["revoked"]) is None
    assert [key.user_id for key in store.list()] == ["größe", "gone"]
    store.close()


def versions_written(directory: Path) -> dict[str, set[int]]:
    """The versions of formats in a data directory or a backup."""
    written: dict[str, set[int]] = defaultdict(set)
    for path in directory.rglob("*.json"):
        document = json.loads(path.read_text())
        if "headrace" in document:
            written[document["headrace"]].add(document["version"])
    for kind in ("segment", "companion", "state"):
        for path in (directory / "objects" / f"{kind}s").rglob("*.parquet"):
            written[kind].add(json.loads(pq.read_metadata(path).metadata[segment_layout.METADATA])["version"])
    for kind, name in (("database", "headrace.db"), ("keys", "keys.db")):
        connection = database.connect(directory / name, cache_bytes=CACHE_BYTES, readonly=True)
        written[kind].add(int(connection.pragma("user_version")))
        connection.close()
    return written


def test_every_version_that_was_ever_written_has_a_golden(tmp_path: Path) -> None:
    written: dict[str, set[int]] = defaultdict(set)
    for archive in [*DIRECTORIES, *BACKUPS]:
        directory = extract(archive, tmp_path / archive.parent.name / archive.name)
        for child in ("data", "backup"):
            if (directory / child).exists():
                for kind, versions in versions_written(directory / child).items():
                    written[kind] |= versions
    # A version is frozen, and gets its golden, when the next one comes.
    for kind, newest in NEWEST.items():
        needed = set(range(1, newest)) - NEVER_WRITTEN.get(kind, set())
        assert needed <= written[kind] <= needed | {newest}, kind
    assert written.keys() == NEWEST.keys()

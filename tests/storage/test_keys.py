from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadRequest, CorruptData, NotFound, Unavailable
from headrace.storage import database
from headrace.storage import keys as key_storage
from headrace.storage.database import NewerDatabase, sqlite_memory
from headrace.storage.keys import KeyStore
from support.readonly_database import make_read_only


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def keys(path: Path) -> Iterator[KeyStore]:
    store = KeyStore(path)
    yield store
    store.close()


def test_a_token_proves_its_key_and_no_other(keys: KeyStore) -> None:
    first, first_token = keys.create(user_id="ann", scopes=["write"], prefix="a/", name="laptop")
    second, second_token = keys.create(user_id="bob", scopes={"read", "admin"})
    assert keys.verify(first_token) == first
    assert keys.verify(second_token) == second
    assert first.user_id == "ann"
    assert first.scopes == ("write",)
    assert first.prefix == "a/"
    assert first.name == "laptop"
    assert second.scopes == ("read", "admin")


def test_a_changed_token_proves_nothing(keys: KeyStore) -> None:
    first, token = keys.create(user_id="ann", scopes=["read"])
    _, other = keys.create(user_id="bob", scopes=["admin"])
    swapped = f"hr_{first.id}_{other.split('_', 2)[2]}"
    changed = [token[:-1] + ("a" if token[-1] != "a" else "b"), token + "a", token[:-1], token.upper(), swapped]
    assert [keys.verify(text) for text in changed] == [None] * len(changed)


@pytest.mark.parametrize("token", ["", "hr", "hr_", "hr__", "hr_x_", "_", "hr_é_é", "Bearer x", "hr_" + "0" * 5000])
def test_text_that_is_no_token_proves_nothing(keys: KeyStore, token: str) -> None:
    keys.create(user_id="ann", scopes=["read"])
    assert keys.verify(token) is None


def test_a_revoked_key_opens_nothing_but_is_still_listed(keys: KeyStore) -> None:
    key, token = keys.create(user_id="ann", scopes=["read"])
    kept, _ = keys.create(user_id="bob", scopes=["read"])
    revoked = keys.revoke(key.id)
    assert keys.verify(token) is None
    assert keys.count() == 1
    assert keys.list() == [revoked, kept]
    assert revoked.revoked_us is not None
    assert keys.revoke(key.id) == revoked


def test_an_unknown_key_cannot_be_revoked(keys: KeyStore) -> None:
    with pytest.raises(NotFound):
        keys.revoke("nobody")
    assert keys.pending_notes(10) == []


def test_a_rotated_key_has_a_successor_with_its_rights_and_limits(keys: KeyStore) -> None:
    limits = {"requests_per_s": 5, "bytes_per_s": 0}
    old, old_token = keys.create(user_id="ann", scopes=["write"], prefix="a/", name="laptop", **limits)
    new, token = keys.rotate(old.id)
    assert keys.verify(old_token) == old and keys.verify(token) == new
    assert msgspec.structs.replace(new, id=old.id, created_us=old.created_us) == old
    keys.revoke(old.id)
    assert keys.verify(old_token) is None and keys.verify(token) == new
    for key_id, refusal in (("none", NotFound), (old.id, BadRequest)):
        with pytest.raises(refusal):
            keys.rotate(key_id)
        with pytest.raises(refusal):
            keys.update(key_id, name="x")


def test_limits_and_names_of_a_key_can_be_changed(keys: KeyStore, path: Path) -> None:
    key, token = keys.create(user_id="ann", scopes=["read"])
    assert key.requests_per_s is None
    assert key.bytes_per_s is None
    keys.update(key.id, requests_per_s=10)
    keys.update(key.id, bytes_per_s=0, name="slow")
    changed = keys.verify(token)
    assert changed is not None
    assert changed.requests_per_s == 10
    assert changed.bytes_per_s == 0
    assert changed.name == "slow"
    assert changed.scopes == ("read",)
    assert keys.update(key.id, requests_per_s=None).requests_per_s is None
    with closing(KeyStore(path)) as again:
        assert again.list() == keys.list()
    for field in ("requests_per_s", "bytes_per_s"):
        for limit in (-1, 2**53 + 1):
            with pytest.raises(BadRequest, match=field):
                keys.update(key.id, **{field: limit})
    notes = [msgspec.json.decode(text) for _, text in keys.pending_notes(10)]
    assert [note["what"] for note in notes] == ["key_created", *["key_updated"] * 3]
    assert notes[2]["requests_per_s"] == 10 and "requests_per_s" not in notes[0]


def test_a_file_without_limits_gets_them(path: Path) -> None:
    with closing(KeyStore(path)) as keys:
        key, token = keys.create(user_id="ann", scopes=["read"])
    with closing(database.connect(path, cache_bytes=65536)) as old:
        old.execute("DROP TABLE key_limits")
        old.pragma("user_version", 3)
    with closing(KeyStore(path)) as keys:
        assert keys.verify(token) == key
        assert keys.update(key.id, requests_per_s=1).requests_per_s == 1
    with closing(database.connect(path, cache_bytes=65536)) as migrated:
        assert migrated.pragma("user_version") == 4


def test_what_was_done_is_noted_until_it_is_told(keys: KeyStore, path: Path) -> None:
    key, token = keys.create(user_id="ann", scopes=["read"])
    for _ in range(2):
        keys.revoke(key.id)
    notes = keys.pending_notes(10)
    assert [msgspec.json.decode(document)["what"] for _, document in notes] == ["key_created", "key_revoked"]
    assert token.split("_", 2)[2] not in str(notes)
    keys.remove_notes(notes[0][0])
    other = KeyStore(path)
    assert other.pending_notes(10) == notes[1:]
    other.close()


def test_a_file_without_notes_gets_them(path: Path) -> None:
    KeyStore(path).close()
    connection = database.connect(path, cache_bytes=1 << 20)
    connection.execute("DROP TABLE notes")
    connection.pragma("user_version", 1)
    connection.close()
    store = KeyStore(path)
    store.create(user_id="ann", scopes=["read"])
    assert len(store.pending_notes(10)) == 1
    store.close()


def test_the_secret_is_nowhere_in_the_files(keys: KeyStore, path: Path) -> None:
    _, token = keys.create(user_id="ann", scopes=["read"])
    secret = token.split("_", 2)[2].encode()
    assert all(secret not in file.read_bytes() for file in path.parent.iterdir())
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in path.parent.iterdir())


def test_keys_outlive_the_process_that_made_them(path: Path) -> None:
    first = KeyStore(path)
    key, token = first.create(user_id="ann", scopes=["read"])
    first.close()
    second = KeyStore(path)
    assert second.verify(token) == key
    second.close()


def test_the_generation_moves_when_this_store_changes_keys(keys: KeyStore) -> None:
    start = keys.generation
    key, _ = keys.create(user_id="ann", scopes=["read"])
    made = keys.generation
    keys.refresh()
    assert keys.generation == made
    keys.revoke(key.id)
    assert start < made < keys.generation


def test_the_generation_moves_when_another_process_has_changed_keys(keys: KeyStore, path: Path) -> None:
    start = keys.generation
    assert _create_elsewhere(path).wait(60) == 0
    keys.refresh()
    assert keys.generation > start
    assert [key.user_id for key in keys.list()] == ["other"]


_CREATE = """
import sys, pathlib
from headrace.storage.keys import KeyStore
store = KeyStore(pathlib.Path(sys.argv[1]))
store.create(user_id="other", scopes=["read"])
store.close()
"""


def _create_elsewhere(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _CREATE, str(path)])


def test_processes_that_open_a_new_store_at_once_all_succeed(path: Path) -> None:
    workers = [_create_elsewhere(path) for _ in range(3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    store = KeyStore(path)
    assert store.count() == 3
    store.close()


def test_a_newer_file_is_refused(path: Path) -> None:
    KeyStore(path).close()
    connection = database.connect(path, cache_bytes=1 << 20)
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(NewerDatabase):
        KeyStore(path)


def test_a_damaged_file_is_named(path: Path) -> None:
    path.write_bytes(b"nonsense" * 1024)
    with pytest.raises(CorruptData, match=r"keys.db is damaged"):
        KeyStore(path)


def test_a_file_that_cannot_be_written_to_is_named_when_a_key_is_made(path: Path) -> None:
    KeyStore(path).close()
    make_read_only(path)
    store = KeyStore(path)
    assert store.list() == []
    with pytest.raises(Unavailable, match=r"keys.db cannot be used.*let this user write"):
        store.create(user_id="ann", scopes=["read"])
    store.close()


def test_an_old_file_that_cannot_be_written_to_is_named(path: Path) -> None:
    old = apsw.Connection(str(path))
    old.execute("CREATE TABLE keys (id)")
    old.close()
    make_read_only(path)
    with pytest.raises(Unavailable, match=r"keys.db cannot be used.*let this user write"):
        KeyStore(path)


def test_a_file_that_another_process_holds_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 0)
    monkeypatch.setattr(key_storage, "_OPEN_TIMEOUT_S", 0.0)
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Unavailable, match=r"keys.db cannot be used.*end the other process"):
        KeyStore(path)
    holder.close()


@pytest.mark.parametrize(
    ("field", "facts"),
    [
        ("user_id", {"user_id": ""}),
        ("user_id", {"user_id": "x" * 129}),
        ("user_id", {"user_id": "\ud800"}),
        ("name", {"name": "x" * 129}),
        ("prefix", {"prefix": "x" * 513}),
        ("scopes", {"scopes": []}),
        ("scopes", {"scopes": ["read", "root"]}),
    ],
)
def test_a_key_that_does_not_fit_is_refused_with_its_field(
    keys: KeyStore, field: str, facts: dict[str, object]
) -> None:
    with pytest.raises(BadRequest) as refusal:
        keys.create(**{"user_id": "ann", "scopes": ["read"], **facts})  # type: ignore[arg-type]
    assert refusal.value.facts["field"] == field
    assert keys.count() == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyStore]:
    store = KeyStore(tmp_path_factory.mktemp("keys") / "keys.db")
    yield store
    store.close()


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128))
def test_any_text_can_name_a_user(shared: KeyStore, user_id: str) -> None:
    key, token = shared.create(user_id=user_id, scopes=["read"])
    assert shared.verify(token) == key
    assert key.user_id == user_id


def test_sqlite_memory_counts_what_a_connection_takes(path: Path) -> None:
    before = sqlite_memory()
    store = KeyStore(path)
    during = sqlite_memory()
    store.close()
    assert during["open_connections"] == before["open_connections"] + 1
    assert during["memory_used_bytes"] > before["memory_used_bytes"]
    assert during["memory_highwater_bytes"] >= during["memory_used_bytes"]


def _old_file(path: Path) -> str:
    """A file as it was before pages had checksums, with a key of which the token is answered."""
    store = KeyStore(path)
    _, token = store.create(user_id="ann", scopes=["read"])
    rows = store._connection.execute("SELECT * FROM keys").fetchall()
    store.close()
    path.unlink()
    old = apsw.Connection(str(path))
    old.pragma("page_size", database.PAGE_BYTES)
    old.pragma("journal_mode", "wal")
    old.execute(key_storage._CREATE)
    old.executemany("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    old.pragma("user_version", 2)
    old.close()
    return token


def test_a_flipped_bit_opens_no_door(path: Path) -> None:
    store = KeyStore(path)
    _, token = store.create(user_id="ann", scopes=["read"])
    store.close()
    content = bytearray(path.read_bytes())
    content[content.index(b"annread")] ^= 2
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=r"keys.db is damaged.*checksum"):
        KeyStore(path).verify(token)


def test_an_old_file_gets_checksums(path: Path) -> None:
    token = _old_file(path)
    assert path.read_bytes()[20] == 0
    store = KeyStore(path)
    assert store.verify(token) is not None
    store.close()
    assert path.read_bytes()[20] == 8
    content = bytearray(path.read_bytes())
    content[20] = 0
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=r"keys.db is damaged"):
        KeyStore(path)


def test_an_old_file_that_another_process_has_open_stays_as_it_is(path: Path) -> None:
    token = _old_file(path)
    other = apsw.Connection(str(path))
    assert other.execute("SELECT count(*) FROM keys").get == 1
    store = KeyStore(path)
    assert store.verify(token) is not None
    other.execute("UPDATE keys SET revoked_us = 1")
    assert store.verify(token) is None
    other.close()
    store.close()
    KeyStore(path).close()
    assert path.read_bytes()[20] == 8


def test_a_change_of_keys_is_in_the_file_whose_pages_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    with closing(KeyStore(path)) as server, closing(KeyStore(path)) as command_line:
        key, token = command_line.create(user_id="u", scopes=["read"])
        assert server.verify(token) is not None
        command_line.revoke(key.id)
        # Damage in the last commit of a write-ahead log cannot be told from a crash before it.
        assert path.with_name("keys.db-wal").stat().st_size == 0
        assert server.verify(token) is None

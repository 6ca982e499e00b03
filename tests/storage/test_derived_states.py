"""The rows of states, and their files on the local disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import CorruptData
from headrace.format.object_names import range_name, state_key
from headrace.format.state import State, StateInfo
from headrace.format.state_file import write
from headrace.storage import database, state_files
from headrace.storage.database import Connection
from headrace.storage.derived import States, state_object_keys
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.state_files import StateFiles
from support.stored_objects import flipped, open_files

STREAM, LIFE = "events/E", "7"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    opened = database.connect(tmp_path / "x.db", cache_bytes=1 << 20)
    database.migrate(opened)
    yield opened
    opened.close()


def state(first_seq: int, name: str = "", table: str = "T") -> State:
    return State(
        table=table, name=name or f"n{first_seq}", first_seq=first_seq, count=10, level=0, lives={"a": "a@1"}, rows=1,
        bytes=100, sha256="00",
    )  # fmt: skip


def test_states_are_listed_by_table_and_first_event(connection: Connection) -> None:
    states = States(connection)
    for one in (state(10), state(0), state(5, table="A")):
        states.add(1, one)
    states.add(2, state(0))
    assert [(one.table, one.first_seq) for one in states.listed(1)] == [("A", 5), ("T", 0), ("T", 10)]
    assert states.has(1, "n10") and not states.has(2, "n10")


def test_retired_states_count_no_more_until_they_are_removed(connection: Connection) -> None:
    states = States(connection)
    for one in (state(0), state(10)):
        states.add(1, one)
    before = states.stamp(1)
    states.retire(1, ["n0"])
    assert [one.name for one in states.listed(1)] == ["n10"]
    assert [one.name for one in states.retired(1)] == ["n0"]
    assert states.stamp(1) != before
    states.remove(1, ["n0"])
    assert not states.retired(1)
    states.retire_all(1)
    assert not states.listed(1)
    states.drop(1)
    assert states.stamp(1)[:2] == (0, 0)


def test_keys_of_objects_are_those_of_names() -> None:
    named = state(0, range_name(0, 10, "ab"))
    assert list(state_object_keys(STREAM, LIFE, [named])) == [state_key(STREAM, LIFE, named.name)]


class Store:
    """An object store with states, and files of them."""

    def __init__(self, directory: Path, *, limit_bytes: int = 1 << 20) -> None:
        self.directory, self.limit_bytes = directory, limit_bytes
        self.objects = Objects.open(str(directory / "objects"))
        self.files = self.opened()

    def opened(self) -> StateFiles:
        return StateFiles(self.objects, self.directory / "cache", limit_bytes=self.limit_bytes)

    def put(self, first_seq: int, rows: dict[bytes, bytes]) -> State:
        info = StateInfo(
            stream=STREAM, incarnation=LIFE, table="T", first_seq=first_seq, count=10, level=0, lives={"a": "a@1"}
        )
        path, name = self.directory / f"{first_seq}.parquet", range_name(first_seq, 10, "ab")
        made = write(path, info, name, [(key, {"": b"f", "a@1": value}) for key, value in sorted(rows.items())])
        self.objects.upload(state_key(STREAM, LIFE, name), path)
        return made

    def kept(self) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in (self.directory / "cache").glob("*.sums"))


def test_a_key_is_looked_up_in_the_file_of_a_state(tmp_path: Path) -> None:
    store = Store(tmp_path)
    file = store.files.hold(STREAM, LIFE, store.put(0, {b"k": b"1", b"l": b"2"}))
    assert file.get(b"k") == {"": b"f", "a@1": b"1"}
    assert file.get(b"nobody") is None
    store.files.release(file)


def test_files_outlive_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = store.put(0, {b"k": b"1"})
    store.files.release(store.files.hold(STREAM, LIFE, made))
    (tmp_path / "cache" / "cut-short.part").touch()
    store.objects.delete([state_key(STREAM, LIFE, made.name)])
    again = store.opened()
    assert again.hold(STREAM, LIFE, made).get(b"k") == {"": b"f", "a@1": b"1"}
    assert not list((tmp_path / "cache").glob("*.part"))


def test_what_was_used_longest_ago_makes_room_and_what_is_held_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, limit_bytes=1)
    first, second = store.put(0, {b"k": b"1"}), store.put(10, {b"k": b"2"})
    held = store.files.hold(STREAM, LIFE, first)
    other = store.files.hold(STREAM, LIFE, second)
    assert store.kept() == sorted([first.sha256, second.sha256])
    store.files.release(other)
    assert store.kept() == [first.sha256]
    assert held.get(b"k") == {"": b"f", "a@1": b"1"}


def test_few_files_stay_open_and_the_others_are_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "MAX_OPEN", 2)
    store = Store(tmp_path)
    held = [store.files.hold(STREAM, LIFE, store.put(10 * number, {b"k": b"%d" % number})) for number in range(5)]
    assert store.files.opened == 2
    assert len(open_files(tmp_path / "cache")) == 2
    for number in (0, 4, 1, 0):
        assert held[number].get(b"k") == {"": b"f", "a@1": b"%d" % number}
    assert len(open_files(tmp_path / "cache")) == 2
    store.files.close_all()
    assert store.files.opened == 0
    assert open_files(tmp_path / "cache") == []
    assert held[3].get(b"k") == {"": b"f", "a@1": b"3"}
    for file in held:
        store.files.release(file)
    assert store.files.opened == 0
    assert open_files(tmp_path / "cache") == []


def test_a_state_that_is_not_there_is_missing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = store.put(0, {b"k": b"1"})
    store.objects.delete([state_key(STREAM, LIFE, made.name)])
    with pytest.raises(ObjectMissing):
        store.files.hold(STREAM, LIFE, made)
    assert not list((tmp_path / "cache").iterdir())


def test_a_damaged_state_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = store.put(0, {bytes([n]): bytes(90) for n in range(200)})
    path = store.objects.local_path(state_key(STREAM, LIFE, made.name))
    assert path is not None
    data = bytearray(path.read_bytes())
    data[len(data) // 8] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptData):
        store.files.hold(STREAM, LIFE, made)
    assert not store.kept()


def kept_file(store: Store) -> Path:
    return next((store.directory / "cache").glob("*.sums"))


def test_a_file_that_was_damaged_between_two_runs_is_made_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = store.put(0, {bytes([n]): bytes(90) for n in range(200)})
    store.files.release(store.files.hold(STREAM, LIFE, made))
    size = kept_file(store).stat().st_size
    for place in range(0, size, size // 40):
        flipped(kept_file(store), place, place % 8)
        again = store.opened()
        file = again.hold(STREAM, LIFE, made)
        assert [file.get(bytes([n])) for n in (0, 100, 199, 200)] == [{"": b"f", "a@1": bytes(90)}] * 3 + [None]
        assert again.dropped == 1
        again.release(file)
    assert store.kept() == [made.sha256]


def test_damage_of_a_file_that_is_open_is_never_an_answer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = {n.to_bytes(2, "big"): n.to_bytes(2, "big") * 20 for n in range(0, 1200, 2)}
    made = store.put(0, rows)
    path = store.directory / "cache"
    store.files.release(store.files.hold(STREAM, LIFE, made))
    outcomes = set()
    size = kept_file(store).stat().st_size
    for place in [*range(0, 120, 7), *range(8192, size, size // 60)]:
        file = store.files.hold(STREAM, LIFE, made)
        flipped(kept_file(store), place, place % 8)
        for number in range(0, 1202, 25):
            key = number.to_bytes(2, "big")
            try:
                found = file.get(key)
                assert found == ({"": b"f", "a@1": rows[key]} if key in rows else None), (place, number)
                outcomes.add("right")
            except CorruptData:
                outcomes.add("refused")
        store.files.drop(file)
        store.files.release(file)
        assert not list(path.iterdir())
        store.files.release(store.files.hold(STREAM, LIFE, made))
    assert outcomes == {"right", "refused"}


def test_a_state_whose_footer_is_damaged_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = store.put(0, {b"k": b"1"})
    path = store.objects.local_path(state_key(STREAM, LIFE, made.name))
    assert path is not None
    for place in range(path.stat().st_size):
        flipped(path, place)
        with pytest.raises(CorruptData) as refused:
            store.files.hold(STREAM, LIFE, made)
        assert refused.value.facts["object"] == state_key(STREAM, LIFE, made.name)
        flipped(path, place)


def test_files_of_earlier_versions_and_duplicates_go(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = store.put(0, {b"k": b"1"})
    store.files.release(store.files.hold(STREAM, LIFE, made))
    (tmp_path / "cache" / f"{made.sha256}.rows").touch()
    (tmp_path / "cache" / f"{made.sha256}-0.sums").touch()
    again = store.opened()
    assert again.hold(STREAM, LIFE, made).get(b"k") == {"": b"f", "a@1": b"1"}
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_damaged_file_that_others_hold_is_dropped_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = store.put(0, {b"k": b"1"})
    first, second = store.files.hold(STREAM, LIFE, made), store.files.hold(STREAM, LIFE, made)
    store.files.drop(first)
    fresh = store.files.hold(STREAM, LIFE, made)
    store.files.drop(second)
    for file in (first, second, fresh):
        store.files.release(file)
    assert store.files.dropped == 1 and store.kept() == [made.sha256]

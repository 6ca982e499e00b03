"""Cached files of states that are damaged, before a server starts or while it runs: answers stay right."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.features.past_reader import RowMoment
from headrace.errors import CorruptData
from support.entity_rig import Entities, contact
from support.feature_rig import ORDERS, USERS, Pipelines
from support.stored_objects import flipped

KEYS = [f"u{number}" for number in range(40)]
#: No row that was looked up is kept, so that every question reads the file.
SETTINGS = {"features": {"row_bytes": 1}}


def filled(rig: Pipelines) -> dict[str, dict[str, object]]:
    """Events in a state and in the tail; answers the rows."""
    rig.register(ORDERS, USERS)
    for number in range(3):
        rig.push("Order", *({"user": key, "amount": float(number)} for key in KEYS))
    rig.seal("Order")
    assert rig.work() == 1
    rig.push("Order", {"user": "u0", "amount": 1.0})
    return rows(rig)


def rows(rig: Pipelines) -> dict[str, dict[str, object]]:
    return {key: rig.get("Users", key) for key in [*KEYS, "nobody"]}


def cached(data_dir: Path) -> Path:
    (path,) = (data_dir / "cache" / "states").iterdir()
    return path


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.99])
def test_a_file_that_was_damaged_before_the_start_is_made_anew(tmp_path: Path, share: float) -> None:
    with Pipelines(tmp_path, **SETTINGS) as rig:
        right = filled(rig)
        rig.run(rig.engine.close())
        path = cached(tmp_path)
        flipped(path, int(path.stat().st_size * share), 3)
        rig.engine = rig.run(rig._open())
        assert rows(rig) == right
        assert rig.engine.state_builder.dropped == 1


def test_a_file_that_is_damaged_while_it_is_open_is_made_anew(tmp_path: Path) -> None:
    with Pipelines(tmp_path, **SETTINGS) as rig:
        right = filled(rig)
        size = cached(tmp_path).stat().st_size
        for place in range(0, size, size // 25):
            flipped(cached(tmp_path), place, place % 8)
            # What SQLite has read before is not read again.
            for generation in rig.engine.feature_reader._followers["events/Order", "Order"].generations.values():
                for file in generation.files.values():
                    file._connection.pragma("shrink_memory")
            assert rows(rig) == right, place
        assert rig.engine.state_builder.dropped > 3


def test_a_damaged_file_does_not_change_a_snapshot(tmp_path: Path) -> None:
    with Entities(tmp_path, **SETTINGS) as rig:
        rig.register_type(contact())
        ids = [rig.said(f"{number}@x.y", name=f"name {number}") for number in range(30)]
        rig.seal_type()
        assert rig.work() == 1
        rig.ready()
        right = [rig.snapshot(one) for one in ids]
        rig.run(rig.engine.close())
        path = cached(tmp_path)
        flipped(path, path.stat().st_size - 40)
        rig.engine = rig.run(rig._open())
        rig.ready()
        assert [rig.snapshot(one) for one in ids] == right
        assert rig.engine.state_builder.dropped == 1


def test_a_damaged_object_is_named(tmp_path: Path) -> None:
    with Pipelines(tmp_path, **SETTINGS) as rig:
        filled(rig)
        rig.run(rig.engine.close())
        cached(tmp_path).unlink()
        (path,) = (tmp_path / "objects" / "states").glob("*/*/*.parquet")
        flipped(path, path.stat().st_size // 2)
        rig.engine = rig.run(rig._open())
        for _ in range(2):
            with pytest.raises(CorruptData) as refused:
                rows(rig)
            assert str(refused.value.facts["object"]).endswith(path.name)


def test_a_damaged_file_does_not_change_the_past(tmp_path: Path) -> None:
    with Pipelines(tmp_path, **SETTINGS) as rig:
        filled(rig)

        def past() -> object:
            asked = [(key, rig.clock.now_us() + 1) for key in [*KEYS, "nobody"]]
            return rig.run(rig.engine.past_reader.rows("Users", [RowMoment(*one) for one in asked], None))

        right = past()
        size = cached(tmp_path).stat().st_size
        for place in range(0, size, size // 15):
            flipped(cached(tmp_path), place, place % 8)
            assert past() == right, place
        assert rig.engine.state_builder.dropped > 3

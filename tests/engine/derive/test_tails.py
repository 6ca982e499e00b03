"""Tails that follow a stream through the connection of the event loop."""

from __future__ import annotations

from pathlib import Path

from support.entity_rig import Entities, contact


def test_a_tail_whose_reader_sees_an_older_log_is_folded_by_a_thread(tmp_path: Path) -> None:
    with Entities(tmp_path, helps=True) as types:
        assert isinstance(types, Entities)
        types.register_type(contact())
        entity_id = types.said("a@example.com", name="first")
        types.ready()
        assert types.snapshot(entity_id)["name"] == "first"
        # A statement that is not finished keeps the connection at the log as it was.
        reading = types.engine._reader.execute("SELECT seq FROM wal UNION ALL SELECT 1")
        assert next(reading)
        types.said("a@example.com", name="second")
        try:
            assert types.snapshot(entity_id)["name"] == "second"
        finally:
            reading.close()

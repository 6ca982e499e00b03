"""Merging panes: what goes wrong with one unit is its result, and no failure of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headrace.pipeline.kernels import compact
from support.plain_worker import Worker
from support.spark_stories import SETTINGS, Story

if TYPE_CHECKING:
    from tests.conftest import StartServer


def written(units: dict[str, bytes], store: str) -> dict[str, dict[str, Any]]:
    """The rows of the second kernel, given what the first one has read; Spark only merges and sorts in between."""
    packs = [[encoded] for encoded in units.values()]
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(packs)))})
    read = pa.Table.from_batches(list(compact.panes(packs, store)(iter([numbers]))))
    order = [(name, "ascending") for name in compact.SORTED]
    names = {name: msgspec.json.decode(encoded)["out"].rpartition("/")[2] + "x" for name, encoded in units.items()}
    found = compact.panes_written(units, names, store)(iter(read.sort_by(order).to_batches()))
    return {row["unit"]: row for batch in found for row in batch.to_pylist()}


def test_panes_that_cannot_be_read_are_an_error_of_their_unit_alone(start_server: StartServer) -> None:
    server = start_server(**SETTINGS)
    story = Story(server.url)
    story.append("broken", 160)
    story.append("fine", 160)
    story.published()
    while Worker(server.url).work_once(jobs=("index",)):
        pass
    leased = story.logs.ask("POST", "/v1/work/lease", {"worker": "test", "jobs": ["compact"]})
    units = {unit["stream"]: unit for unit in leased["units"]}
    (path,) = (server.data_dir / "objects").rglob(f"{units['broken']['inputs'][0]['name']}.panes.parquet")
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    encoded = {unit["unit"]: msgspec.json.encode(unit) for unit in units.values()}
    rows = written(encoded, leased["store"])
    broken, fine = (rows[units[stream]["unit"]] for stream in ("broken", "fine"))
    assert broken["part"] is None and list(msgspec.json.decode(broken["failure"])) == ["error"]
    assert fine["failure"] is None and msgspec.json.decode(fine["part"])["bytes"] > 0

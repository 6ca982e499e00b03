"""A worker without Spark: it leases from a server, runs the kernels of the pipeline in this process, and commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.kernels import compact, index, verify
from headrace.pipeline.kernels.units import result
from headrace.reduce import rollup
from headrace.reduce.state import PANES
from support.log_stream import Logs

JOBS = ("index", "compact")


class Worker:
    """Works for the server at a URL."""

    def __init__(self, url: str) -> None:
        self._logs = Logs(url)

    def work_once(self, limit: int = 256, jobs: Sequence[str] = JOBS) -> list[dict[str, Any]]:
        """Do the units of one lease; answers how each ended, and nothing where nothing was due."""
        leased = self._ask("lease", {"worker": "test", "limit": limit, "jobs": list(jobs)})
        if leased["lease"] is None:
            return []
        results = [perform(unit, leased["store"]) for unit in leased["units"]]
        body = {"token": leased["lease"]["token"], "results": results}
        settled: list[dict[str, Any]] = self._ask(f"leases/{leased['lease']['id']}/commit", body)["results"]
        return settled

    def work(self, jobs: Sequence[str] = JOBS) -> int:
        """Do everything that is due; answers how many units that were, and raises for one that failed."""
        units = 0
        while settled := self.work_once(jobs=jobs):
            failed = [one for one in settled if one["outcome"] not in ("committed", "dropped", "gone")]
            assert not failed, failed
            units += len(settled)
        return units

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        return self._logs.ask("POST", f"/v1/work/{path}", body)


def perform(unit: dict[str, Any], store: str) -> dict[str, Any]:
    """What came of a unit, as JSON."""
    encoded = msgspec.json.encode(unit)
    if unit["job"] in ("index", "verify"):
        return _plain(result(index.perform if unit["job"] == "index" else verify.perform, encoded, store))
    found = _plain(result(compact.perform, encoded, store))
    if "companion" in found and unit.get("rollups"):
        found["companion"]["panes"] = _panes(unit["unit"], encoded, found["companion"]["name"], store)
    return found


def _panes(unit: str, encoded: bytes, name: str, store: str) -> dict[str, Any]:
    """The file of merged panes: what Spark does between two kernels, by the reducers themselves."""
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    read = pa.Table.from_batches(compact.panes([[encoded]], store)(iter([numbers])))
    merged = rollup.merge_panes([read.filter(pc.is_valid(read["rollup"])).select(PANES.names)])
    # A row without a rollup keeps a unit in mind that has no panes.
    together = pa.concat_tables([pa.Table.from_pylist([{}], schema=PANES), merged])
    labelled = together.append_column("unit", pa.repeat(unit, together.num_rows))
    (written,) = compact.panes_written({unit: encoded}, {unit: name}, store)(iter(labelled.to_batches()))
    part: dict[str, Any] = msgspec.json.decode(written.column("part")[0].as_py())
    return part


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)

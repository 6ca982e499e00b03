"""Feature tables for tests: an engine that is registered with, pushed to and asked, and a worker without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headrace.engine.derive.generation import NotReady
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.features.feature_reader import FeatureAnswer
from headrace.engine.features.proposals import FeatureChange
from headrace.pipeline.kernels import features, merge
from headrace.reduce.features import lanes
from headrace.reduce.work_units import JobName, Result, Settled, Unit
from headrace.schema.descriptor.registration import Registration, RegistrationResponse, read_registration
from headrace.server.routes.work import store_url
from operators.reducing import reduced
from support.engine_rig import Rig

SECOND_US = 1_000_000


def event(name: str, schema: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """An event source."""
    return {"kind": "event", "name": name, "schema": schema, **facts}


def table(name: str, upstream: str, key: Sequence[str], agg: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """A table over an event source or a derivation."""
    return {"kind": "table", "name": name, "upstreams": [upstream], "key": list(key), "agg": agg, **facts}


def op(name: str, **params: Any) -> dict[str, Any]:
    """A feature."""
    return {"op": name, "params": params}


ORDERS = event("Order", {"user": "str", "amount": "f64"})
SPENT = {"n": op("count"), "total": op("sum", field="amount")}
USERS = table("Users", "Order", ["user"], SPENT)


class Pipelines(Rig):
    """An engine with feature tables; a worker comes when it is called, unless the server helps itself."""

    jobs: tuple[JobName, ...] = ("features",)

    def __init__(self, data_dir: Path, *, helps: bool = False, **settings: Any) -> None:
        self._helps = helps
        settings.setdefault("pipeline", {"min_rows": 1})
        super().__init__(data_dir, **settings)

    async def _open(self) -> Any:
        engine = await super()._open()
        if not self._helps:
            await engine.local_worker.stop()
        return engine

    def register(self, *descriptors: dict[str, Any], **terms: Any) -> RegistrationResponse:
        """Register the whole of an app; raises where it is refused."""
        found = read_registration({"descriptors": list(descriptors), **terms})
        assert isinstance(found, Registration), found
        envelope = self.run(self.engine.features.register(FeatureChange.of(found), "tests"))
        assert not envelope.refused, envelope.errors
        return envelope

    def push(self, name: str, *events: dict[str, Any], after_s: float = 1.0) -> None:
        """Push events in one request, some time after the last."""
        self.clock.us += round(after_s * SECOND_US)
        self.append(f"events/{name}", msgspec.json.encode(list(events)))

    def answer(self, table: str, key: Any, **facts: Any) -> FeatureAnswer:
        """What a table says of a key."""

        async def ask() -> FeatureAnswer:
            serving = self.engine.feature_reader
            while True:
                try:
                    return serving.get(table, key, **facts)
                except NotReady:
                    await serving.ready(table)

        return self.run(ask())

    def get(self, table: str, key: Any, **facts: Any) -> dict[str, Any]:
        """The row of a key."""
        return self.answer(table, key, **facts).row

    def seal(self, name: str) -> None:
        """Publish what an event source has."""
        self.publish(f"events/{name}")

    def work_once(self, limit: int = 256) -> list[Settled]:
        """Perform what is due of tables, as one lease."""
        granted = self.run(self.engine.work.lease("tests", limit, self.jobs))
        if granted is None:
            return []
        lease = granted.lease
        return self.run(self._commit(lease.id, lease.token, self.performed(granted)))

    def performed(self, granted: Grant) -> list[Result]:
        """What comes of the units of a lease."""
        store = store_url(self.engine.objects, self.config.storage.object_store)
        return [perform(unit, store) for unit in granted.units]

    async def _commit(self, lease: str, token: int, results: list[Result]) -> list[Settled]:
        settled = (await self.engine.work.commit(lease, token, results)).settled
        for serving in (self.engine.feature_reader, self.engine.snapshots.state_reader):
            for task in list(serving._building.values()):
                await task
        return settled

    def work(self) -> int:
        """Perform everything that is due; answers how many units that were."""
        units = 0
        while settled := self.work_once():
            assert all(one.outcome == "committed" for one in settled), settled
            units += len(settled)
        return units

    def states(self, table: str) -> list[Any]:
        """The states of a table that count."""
        stream = self.find(self.engine.feature_reader.defined(table).stream)
        return [one for one in self.engine.feature_reader._states.listed(stream.id) if one.table == table]


def perform(unit: Unit, store: str) -> Result:
    """What comes of a unit, by the kernels of the pipeline."""
    encoded = msgspec.json.encode(unit)
    if not unit.states:
        return msgspec.convert(msgspec.to_builtins(features.perform([encoded], store)[0]), Result)
    found = merge.split_unit(unit)
    reads = [(merge.in_lanes(gathers), lanes.columns(found.alike(gathers))) for gathers in (False, True)]
    read = [reduced(_read(encoded, *one, store), merge.SORTED, one[1]) for one in reads if one[1]]
    if found.in_order or not read:
        read.append(_read(encoded, merge.in_order, [], store))
    rows = pa.concat_tables(read, promote_options="default").sort_by([(name, "ascending") for name in merge.SORTED])
    # Arrow puts nulls last, Spark first: the row that has no key comes first.
    is_null = rows["key"].is_null()
    in_order = pa.concat_tables([rows.filter(is_null), rows.filter(pa.compute.invert(is_null))]).to_batches()
    (made,) = merge.combined([encoded], store)(iter(in_order))
    return msgspec.json.decode(made.column("result")[0].as_py(), type=Result)


def _read(encoded: bytes, read: merge.Read, names: list[str], store: str) -> pa.Table:
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    kernel = merge.rows(read, [[0]], [encoded], merge.shape(names), store)
    return pa.Table.from_batches(kernel(iter([numbers])))

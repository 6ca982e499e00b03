"""The law on Spark: history folded and merged there, and a live tail, answer as one pass over all events does."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from math import isclose
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

from headrace.config import PipelineConfig
from headrace.engine.features.past_reader import RowMoment
from headrace.engine.features.training_sets import HistoryAnswer, TrainingSets
from headrace.operators.catalogue import DECLARATIONS, make_operator
from headrace.operators.parts import COLUMNS
from headrace.operators.state_bytes import pack, unpack
from headrace.pipeline import jobs
from headrace.pipeline.work import Lease
from headrace.reduce.features import lanes
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.table import pack_frame
from headrace.reduce.work_units import JobName, Result
from headrace.schema.descriptor.nodes import Event as EventNode
from headrace.schema.descriptor.nodes import EventField, Feature, FeatureVersion, Table
from headrace.server.routes.work import store_url
from headrace.storage.background_requests import HistoryRow
from operators import oracle
from operators.events import TYPES, WINDOWS, Event
from operators.law import TOLERANCE, assert_close, scale
from support.feature_rig import Pipelines, event, op, table
from support.spark_stories import SETTINGS, pipeline

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

KEYS, EVENTS = 6, 240
GAPS = (0, 0, 1, 2, 9, 10, 15, 16, 63, 64, 99, 100, 101, 999, 1000, 6400, 300_000)
SOURCE = {"k": "str", "m": "bool", **{name: {"type": kind, "required": False} for name, kind in TYPES.items()}}
#: Where all but one value have faded away there is no spread left in doubles, though a little in exact numbers.
FAINT = Fraction(1, 10**90)
CONFIG = PipelineConfig(shuffle_partitions=2, tasks=2)


def params_of(name: str, random: Random) -> dict[str, Any]:
    """Parameters of an operator within their ranges, as numbers."""
    choices: dict[str, list[Any]] = {
        "n": [1, 2, 5], "samples": [1, 4], "k": [1, 3], "q": [0.25, 0.5, 0.99], "max_categories": [2, 256],
        "categories": [None], "expected_n": [1024], "fpr": [1e-6], "sigma": [0.3, 3.0], "half_life": [50, 3000],
        "window": WINDOWS, "baseline_window": WINDOWS, "sub_window": [1, 7, 100], "where": [None],
        "buckets": [[-10.0, 0.0, 0.5, 2.0, 1000.0]], "lat_field": ["lat"], "lon_field": ["lon"],
    }  # fmt: skip
    found: dict[str, Any] = {}
    for param, known in DECLARATIONS[name].params.items():
        if param == "field":
            found[param] = random.choice([field for field, kind in TYPES.items() if kind in known.types])
        elif (value := random.choice(choices[param])) is not None:
            found[param] = value
    return found


def features(random: Random) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every operator, once with a window where it takes one, and once without where it need not."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in sorted(DECLARATIONS):
        params = params_of(name, random)
        found[f"{name}_w"] = name, params
        if "window" in params and DECLARATIONS[name].window == "optional":
            found[name] = name, {param: value for param, value in params_of(name, random).items() if param != "window"}
    return found


def told(params: dict[str, Any], where: bool) -> dict[str, Any]:
    """Parameters as they are sent."""
    spans = ("window", "baseline_window", "sub_window", "half_life")
    sent = {name: f"{value}ms" if name in spans else value for name, value in params.items()}
    return {**sent, "where": "m"} if where else sent


def row(random: Random) -> dict[str, Any]:
    numbers = [0.0, -0.0, 1, 2, 2.0, 10**9, *(random.randrange(-8000, 8000) / 8 for _ in range(4))]
    choices: dict[str, list[Any]] = {
        "x": numbers,
        "i": [random.randrange(-5, 5), 2**62, -(2**63)],
        "s": ["a", "b", "c", "", "é", "🜁"],
        "b": [True, False],
        "t": ["2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00", "2024-01-01T00:00:00.5Z"],
        "lat": [0.0, 45.5, -33.9, 60, 89.9],
        "lon": [0.0, 2.35, -0.1, 151.2, 179.9],
    }
    return {name: random.choice([*values, None]) for name, values in choices.items() if random.random() < 0.8}


@contextmanager
def told_about(*facts: Any) -> Iterator[None]:
    """What fails says which feature it is about."""
    try:
        yield
    except AssertionError as reason:
        reason.add_note(repr(facts))
        raise


class Case:
    """An engine with a table of all operators, and every event that was pushed."""

    def __init__(self, directory: Path, seed: int, spark: SparkSession) -> None:
        self.random, self.spark = Random(seed), spark
        self.pipelines = Pipelines(
            directory, storage={"seal_rows": 12}, pipeline={"min_rows": 1, "unit_bytes": 600, "fan_out": 3}
        )
        self.features = features(self.random)
        self.seen: dict[str, list[Event]] = {}
        self.count = 0

    def register(self, features: list[str]) -> None:
        """The table with some of the features, additively."""
        agg = {}
        for name in features:
            operator, params = self.features[name]
            takes_where = "where" in DECLARATIONS[operator].params
            agg[name] = op(operator, **told(params, takes_where))
        self.pipelines.register(event("E", SOURCE), table("T", "E", ["k"], agg))

    def push(self, count: int) -> None:
        """Events, a few per request."""
        for _ in range(count):
            self.pipelines.clock.us += self.random.choice(GAPS) * 1000
            at_ms = self.pipelines.clock.us // 1000
            pushed = []
            for _ in range(self.random.choice((1, 1, 3))):
                key, matched, values = f"k{self.random.randrange(KEYS)}", self.random.random() < 0.7, row(self.random)
                pushed.append({"k": key, "m": matched, **values})
                self.seen.setdefault(key, []).append(Event(at_ms, self.count, values, matched))
                self.count += 1
            self.pipelines.append("events/E", msgspec.json.encode(pushed))
            if self.random.random() < 0.1:
                self.pipelines.seal("E")

    def work(self, *wanted: JobName) -> int:
        """Everything that is due, on Spark."""
        units = 0
        engine = self.pipelines.engine
        while granted := self.pipelines.run(engine.work.lease("spark", 64, wanted or ("features",))):
            store = store_url(engine.objects, "")
            plain = tuple(msgspec.to_builtins(unit) for unit in granted.units)
            lease = Lease(granted.lease.id, granted.lease.token, 60_000, store, plain)
            results = msgspec.convert(jobs.run(self.spark, lease, CONFIG), list[Result])
            settled = self.pipelines.run(self.pipelines._commit(lease.id, lease.token, results))
            assert [one.outcome for one in settled] == ["committed"] * len(plain), settled
            units += len(plain)
        return units

    def check(self, names: list[str], wait_ms: int) -> None:
        """Every feature of every key is what one pass over its events says."""
        now_ms = self.pipelines.clock.us // 1000 + wait_ms
        moment = self.pipelines.engine.feature_reader.moment(["T"])._replace(now_ms=now_ms)
        for key, events in self.seen.items():
            answer = self.pipelines.answer("T", key, moment=moment)
            assert answer.complete
            for name in names:
                operator, params = self.features[name]
                takes_where = "where" in DECLARATIONS[operator].params
                seen = events if takes_where else [e._replace(matched=True) for e in events]
                wanted = oracle.answer(operator, params, seen, now_ms)
                if operator == "ew_zscore" and answer.row[name] is None and isinstance(wanted, Fraction | float):
                    assert abs(wanted) < FAINT
                    continue
                with told_about(operator, params, key):
                    assert_close(answer.row[name], wanted, TOLERANCE.get(operator, 1e-9), scale(operator, seen, params))


@pytest.fixture(params=[1, 2])
def case(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[Case]:
    made = Case(tmp_path / "data", request.param, spark)
    yield made
    made.pipelines.close()


def test_history_on_spark_and_a_live_tail_answer_as_one_pass_for_every_operator(case: Case) -> None:
    first = [name for number, name in enumerate(case.features) if number % 3]
    case.register(first)
    case.push(EVENTS // 2)
    case.pipelines.seal("E")
    assert case.work() > 3
    case.push(EVENTS // 4)
    case.check(first, 0)
    # The others are backfilled over what is there, and merged with their siblings.
    case.register(list(case.features))
    case.pipelines.seal("E")
    assert case.work() > 3
    case.push(EVENTS // 4)
    for wait_ms in (0, 1, 63, 100, 6400, 10**6):
        case.check(list(case.features), wait_ms)
    levels = [state.level for state in case.pipelines.states("T")]
    assert max(levels) >= 1
    case.pipelines.reopen()
    case.check(list(case.features), 10)


def test_tables_of_a_lease_are_reduced_by_catalyst_and_in_order_alike(case: Case) -> None:
    case.features = {name: case.features[name] for name in ("count_w", "mean", "n_unique_w", "var", "streak_w", "min")}
    agg = {name: op(operator, **told(params, True)) for name, (operator, params) in case.features.items()}
    chosen: dict[str, list[str]] = {
        "All": list(agg),
        "Plain": ["count_w", "min"],
        "Gathered": ["var"],
        "Ordered": ["streak_w"],
    }
    tables = [table(name, "E", ["k"], {one: agg[one] for one in names}) for name, names in chosen.items()]
    tables.append(table("Global", "E", [], agg))
    asked = [*((name, f"k{number}") for name in chosen for number in range(KEYS)), ("Global", "")]
    # Without a limit on how long a key may be idle, with one from here on, and without again.
    for limit in ({}, {"cold_after": "1s"}, {}):
        case.pipelines.register(event("E", SOURCE, **limit), *tables, force=True)
        case.push(EVENTS // 6)
        case.pipelines.seal("E")
        moment = case.pipelines.engine.feature_reader.moment([*chosen, "Global"])
        before = [case.pipelines.get(name, key, moment=moment) for name, key in asked]
        assert case.work() > 6
        for which, wanted in zip(asked, before, strict=True):
            with told_about(which, limit):
                assert_close(case.pipelines.get(*which, moment=moment), wanted, 1e-9, 1e18)
    for name in (*chosen, "Global"):
        assert max(state.level for state in case.pipelines.states(name)) >= 1


class Folded(NamedTuple):
    """An operator over values that are many, far from zero, or both; and the states of parts of them."""

    feature: Feature
    values: list[Any]
    parts: int

    def states(self) -> Iterator[Any]:
        reducer = make_operator(self.feature.op, self.feature.params, {"x": "f64", "s": "str"})
        size = len(self.values) // self.parts
        for first in range(0, len(self.values), size):
            state = None
            for at in range(first, first + size):
                state = reducer.fold(state, at, at, {"x": self.values[at], "s": self.values[at]}, True)
            yield unpack(pack(state))


FAR = [1e9 + (at * 7919 % 1000) / 1000 for at in range(6000)]
MANY = {
    "few": Folded(Feature("n_unique", {"field": "s"}), [f"v{at % 90}" for at in range(600)], 4),
    "some": Folded(Feature("n_unique", {"field": "s"}), [f"v{at}" for at in range(600)], 4),
    "many": Folded(Feature("n_unique", {"field": "s", "window": 10**9}), [f"v{at}" for at in range(9000)], 5),
    "numbers": Folded(Feature("quantile", {"field": "x", "q": 0.9}), [float(at * 37 % 200) for at in range(200)], 4),
    "sketch": Folded(Feature("quantile", {"field": "x", "q": 0.9}), [float(at * 37 % 9000) for at in range(9000)], 5),
    "mixed": Folded(Feature("quantile", {"field": "x", "q": 0.5}), [float(at * 7 % 400) for at in range(400)], 40),
    "var": Folded(Feature("var", {"field": "x"}), FAR, 6),
    "far": Folded(Feature("outlier_count", {"field": "x", "sigma": 1.5, "window": 10**9}), FAR, 6),
}


def test_sketches_and_moments_are_reduced_by_catalyst_as_operators_merge_them(spark: SparkSession) -> None:
    table = Table("T", "E", (), {name: one.feature for name, one in MANY.items()})
    nodes = {"E": EventNode("E", {"x": EventField("f64"), "s": EventField("str")}), "T": table}
    reducer = TableDefinition("T", "E", "events/E", nodes, {name: FeatureVersion(name, 0) for name in MANY}).reducer
    found, frame = lanes.assign_lanes(reducer), pack_frame((0, 0, 1, 1, False))
    batches: list[list[pa.RecordBatch]] = [[], []]
    for name, one in MANY.items():
        for state in one.states():
            for lane in found:
                batches[lane.gathers] += lanes.explode_states([lane], [b"k"], {"": [frame], name: [pack(state)]})
    rows = []
    for gathers in (False, True):
        names = lanes.columns(lane for lane in found if lane.gathers is gathers)
        fields = [f"{name} {COLUMNS[name].type}" for name in names]
        given = pa.concat_tables([pa.Table.from_batches([one]) for one in batches[gathers]], promote_options="default")
        held = spark.createDataFrame(
            given.select(["key", "lane", "pane", *names]), "key binary, lane int, pane bigint, " + ", ".join(fields)
        )
        aggregates = [functions.expr(COLUMNS[name].aggregate).alias(name) for name in names]
        rows.append(held.groupBy("key", "lane", "pane").agg(*aggregates).toArrow())
    merged = pa.concat_tables(rows, promote_options="default").sort_by(
        [(name, "ascending") for name in ("lane", "pane")]
    )
    ((key, packed),) = lanes.implode_rows(found, merged)
    assert key == b"k" and packed[""] == frame
    for name, one in MANY.items():
        reduced = make_operator(one.feature.op, one.feature.params, {"x": "f64", "s": "str"})
        own = list(one.states())
        answer = reduced.finish(unpack(packed[name]), len(one.values))
        wanted = reduced.finish(functools.reduce(reduced.merge, own, None), len(one.values))
        with told_about(name):
            match one.feature.op:
                case "n_unique" if len(set(one.values)) > 256:
                    assert isclose(answer, len(set(one.values)), rel_tol=0.05)
                case "quantile" if len(one.values) > 256:
                    rank = sum(value <= answer for value in one.values) / len(one.values)
                    assert abs(rank - one.feature.params["q"]) < 0.03
                case "outlier_count":
                    assert abs(answer - wanted) < 0.05 * len(one.values)
                case _:
                    assert isclose(answer, wanted, rel_tol=1e-9)


def test_rows_of_the_past_from_spark_are_those_that_the_server_folds(case: Case) -> None:
    some = list(case.features)
    case.register(some[::2])
    began_us = case.pipelines.clock.us
    case.push(EVENTS // 4)
    case.pipelines.seal("E")
    case.work()
    case.register(some)
    case.push(EVENTS // 4)
    engine = case.pipelines.engine
    training = TrainingSets(
        apply=engine.apply,
        sealer=engine.sealer,
        job=engine.training._job,
        past_reader=engine.past_reader,
        reader=engine._reader,
        fold_rows=-1,
        workers_first_s=lambda usual_s: usual_s,
    )
    for since_us in (began_us - 1, case.pipelines.clock.us - 1_000_000):
        span = case.pipelines.clock.us - since_us
        asked = [(f"k{case.random.randrange(KEYS + 1)}", since_us + case.random.randrange(span + 1)) for _ in range(40)]
        asked += [("k1", asked[0][1]), ("k1", asked[0][1])]
        moments = [RowMoment(*one) for one in asked]
        begun = case.pipelines.run(training.request("T", moments))
        assert isinstance(begun, HistoryRow) and begun.state == "running"
        assert case.work("history") == 1
        told = training.find("T", begun.id)
        assert told.state == "done" and told.answer is not None
        answer = msgspec.json.decode(told.answer, type=HistoryAnswer)
        expected = case.pipelines.run(engine.past_reader.rows("T", moments))
        assert answer.complete and expected.complete
        for (key, _), found, wanted in zip(asked, answer.rows, expected.rows, strict=True):
            assert found.keys() == wanted.keys()
            for name in found:
                operator, params = case.features[name]
                with told_about(operator, params, key):
                    assert_close(found[name], wanted[name], TOLERANCE.get(operator, 1e-9), 1e10)


def test_executors_that_are_other_processes_make_states(start_server: StartServer) -> None:
    server = start_server(**{**SETTINGS, "storage__seal_age_s": "0.1"})
    descriptors = [event("Order", {"user": "str"}), table("Users", "Order", ["user"], {"n": op("count")})]
    with httpx2.Client(base_url=server.url, timeout=20, trust_env=False) as http:
        assert http.post("/v1/register", json={"descriptors": descriptors}).status_code == 200
        for number in range(60):
            assert http.post("/v1/push/Order", json=[{"user": f"u{number % 7}"}] * 3).status_code == 200
        asked = {"table": "Users", "key": "u1", "explain": True}
        assert http.post("/v1/get", json=asked).json()["row"] == {"n": 27}
        until = monotonic() + 30
        while http.head("/v1/stream/events/Order").status_code != 200 or not http.get("/v1/work").json()["due"]:
            assert monotonic() < until
            sleep(0.1)
        process = pipeline(server.url, "--master", "local-cluster[2,1,1024]")
        try:
            _, said = process.communicate(timeout=240)
        finally:
            process.kill()
        assert process.returncode == 0, said
        told = http.post("/v1/get", json=asked).json()
        assert told["row"] == {"n": 27}
        assert told["explain"]["features"]["n"]["states"] and not http.get("/v1/work").json()["parked"]

"""The buckets of an answer, as they go over the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.deadline import Deadline, OutOfTime
from headrace.errors import TooManyGroups
from headrace.query.search import Search
from headrace.reduce import answer, rollup
from headrace.reduce.answer import Aggregate, Buckets, iso
from headrace.reduce.groups import GroupLimits
from reduce import oracle
from reduce.answers import buckets, decoded
from reduce.declarations import MINUTE, declared, field
from support import reference_columns as columns

TEN = 1_774_432_800_000  # 2026-03-25T10:00:00Z


def requests(**measures: Any) -> Search:
    document = {
        "primaryTimestampField": "time",
        "fields": {
            "time": field("date", "time"),
            "service": field("keyword", "service", exact=True, aggregatable=True),
            "status": field("integer", "status", exact=True, aggregatable=True),
            "latency": field("integer", "latency", aggregatable=True),
            "load": field("float", "load", aggregatable=True),
        },
        "rollups": {"requests": {"dimensions": ["service", "status"], "intervals": ["1m"], "measures": measures}},
    }
    return declared(document)


def answered(search: Search, events: list[Any], *, start: int = TEN, end: int = TEN + 60 * MINUTE, **more: Any) -> Any:
    """The buckets, of history and edges, through JSON."""
    asked = Aggregate(rollup=search.rollups["requests"], interval=MINUTE, start=start, end=end, **more)
    table = columns.table(search, events)
    history = rollup.panes(table, asked.rollup, search)
    edges = rollup.panes(table, asked.rollup, search, spans=asked.edges)
    return msgspec.json.decode(msgspec.json.encode(buckets(asked, search, history=[history], more=[edges])))


LATENCY = {"kind": "summary", "field": "latency", "histogram": "log2_v1"}
COUNT = {"kind": "count"}


def test_an_answer_is_spelled_as_its_readers_expect() -> None:
    search = requests(requests=COUNT, latency=LATENCY)
    events = [
        {"time": "2026-03-25T10:00:10Z", "service": "api", "latency": 1},
        {"time": "2026-03-25T10:01:05Z", "service": "api", "latency": 150},
        {"time": "2026-03-25T10:01:59.999Z", "service": "api", "latency": 200},
    ]
    asked = Aggregate(
        rollup=search.rollups["requests"],
        interval=MINUTE,
        start=TEN + 30_000,
        end=TEN + 150_000,
        group_by=("service",),
    )
    history = rollup.panes(columns.table(search, events), asked.rollup, search)
    assert msgspec.json.encode(buckets(asked, search, history=[history])).decode() == (
        '[{"start":"2026-03-25T10:01:00.000Z","end":"2026-03-25T10:02:00.000Z","groups":[{"key":{"service":"api"},'
        '"measures":{"latency":{"count":2,"sum":350,"min":150,"max":200,"avg":175,"p50":128,"p95":128,"p99":128,'
        '"histogram":{"128":2}},"requests":{"count":2}}}]}]'
    )


def test_edge_buckets_keep_their_pane_but_count_only_what_is_asked() -> None:
    search = requests(requests=COUNT)
    events = [{"time": TEN + second * 1000} for second in (0, 29, 30, 59, 60, 119, 120, 149, 150)]
    found = answered(search, events, start=TEN + 30_000, end=TEN + 150_000)
    assert [(bucket["start"][14:19], bucket["end"][14:19]) for bucket in found] == [
        ("00:00", "01:00"),
        ("01:00", "02:00"),
        ("02:00", "03:00"),
    ]
    assert [bucket["groups"][0]["measures"]["requests"]["count"] for bucket in found] == [2, 2, 2]


def test_a_range_within_one_pane_is_all_edge() -> None:
    found = answered(
        requests(requests=COUNT), [{"time": TEN + at} for at in (0, 5, 9, 10)], start=TEN + 5, end=TEN + 10
    )
    assert [bucket["groups"][0]["measures"] for bucket in found] == [{"requests": {"count": 2}}]


def test_groups_are_sorted_by_the_text_of_their_keys_and_absent_dimensions_are_null() -> None:
    events = [
        {"time": TEN, "service": "b"},
        {"time": TEN, "service": "a", "status": 10},
        {"time": TEN, "service": "a", "status": 9},
        {"time": TEN, "status": "x"},
        {"time": TEN, "service": ["a", "b"]},
        {"time": TEN, "service": "é"},
    ]
    search = requests(requests=COUNT)
    [bucket] = answered(search, events, group_by=("status", "service", "status"))
    assert [group["key"] for group in bucket["groups"]] == [
        {"service": "a", "status": 10},
        {"service": "a", "status": 9},
        {"service": "b", "status": None},
        {"service": "é", "status": None},
        {"service": None, "status": None},
    ]
    [bucket] = answered(search, events)
    assert [(group["key"], group["measures"]["requests"]["count"]) for group in bucket["groups"]] == [({}, 5)]


def test_an_event_that_lacks_a_measure_counts_for_the_others() -> None:
    search = requests(requests=COUNT, latency=LATENCY, load={"kind": "summary", "field": "load"})
    events = [{"time": TEN, "latency": 0}, {"time": TEN, "latency": "many"}, {"time": TEN, "latency": [1, 2]}]
    [bucket] = answered(search, events)
    nothing = dict.fromkeys(("min", "max", "avg", "p50", "p95", "p99"))
    assert bucket["groups"][0]["measures"] == {
        "requests": {"count": 3},
        "latency": {
            "count": 1,
            "sum": 0,
            "min": 0,
            "max": 0,
            "avg": 0,
            "p50": 1,
            "p95": 1,
            "p99": 1,
            "histogram": {"1": 1},
        },
        "load": {"count": 0, "sum": 0, **nothing},
    }
    [bucket] = answered(search, events[1:])
    assert bucket["groups"][0]["measures"]["latency"] == {"count": 0, "sum": 0, **nothing, "histogram": {}}


def test_only_what_is_asked_for_is_answered_and_empty_buckets_are_left_out() -> None:
    search = requests(requests=COUNT, latency=LATENCY)
    found = answered(search, [{"time": TEN}, {"time": TEN + 5 * MINUTE}], measures=("requests",))
    assert [bucket["start"][11:16] for bucket in found] == ["10:00", "10:05"]
    assert [list(bucket["groups"][0]["measures"]) for bucket in found] == [["requests"], ["requests"]]
    assert answered(search, []) == []


def test_percentiles_are_the_least_label_with_enough_at_or_below_it() -> None:
    values = [1] * 50 + [2] * 45 + [4] * 4 + [8]
    [bucket] = answered(requests(latency=LATENCY), [{"time": TEN, "latency": value} for value in values])
    found = bucket["groups"][0]["measures"]["latency"]
    assert found["p50"] == 1
    assert found["p95"] == 2
    assert found["p99"] == 4
    assert found["histogram"] == {"1": 50, "2": 45, "4": 4, "8": 1}


def test_integers_are_summed_exactly_however_great() -> None:
    values = [2**63 - 1] * 5 + [-(2**63), 1]
    [bucket] = answered(requests(latency=LATENCY), [{"time": TEN, "latency": value} for value in values])
    found = bucket["groups"][0]["measures"]["latency"]
    assert found["sum"] == sum(values)
    assert found["histogram"] == {"1": 1, str(2**62): 5, str(2**63): 1}


def test_events_that_no_column_holds_are_counted_from_their_documents() -> None:
    search = requests(requests=COUNT, latency=LATENCY, middle={"kind": "quantiles", "field": "latency"})
    asked = Aggregate(rollup=search.rollups["requests"], interval=MINUTE, start=TEN, end=TEN + MINUTE)
    events = [{"time": TEN, "latency": 10**400}, {"time": 2**70, "latency": 1}, {"time": TEN, "service": "\ud800"}]
    history = rollup.panes(columns.table(search, [{"time": TEN, "latency": 3}]), asked.rollup, search)
    [bucket] = buckets(asked, search, history=[history], documents=events)
    found = bucket["groups"][0]["measures"]
    assert found["requests"] == {"count": 3}
    assert found["latency"]["sum"] == 10**400 + 3
    assert found["latency"]["min"] == 3
    assert found["latency"]["max"] == 10**400
    assert found["latency"]["avg"] is None
    assert found["middle"]["count"] == 1
    assert b'"sum":1000' in msgspec.json.encode(bucket)


def test_a_sum_beyond_the_range_of_doubles_is_null() -> None:
    search = requests(load={"kind": "summary", "field": "load"})
    [bucket] = answered(search, [{"time": TEN, "load": 1.5e308}] * 2)
    found = bucket["groups"][0]["measures"]["load"]
    assert found["sum"] is None
    assert found["avg"] is None
    assert found["max"] == 1.5e308
    assert found["count"] == 2


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (TEN + 1, "2026-03-25T10:00:00.001Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "+010000-01-01T00:00:00.000Z"),
        (-62_167_219_200_000, "0000-01-01T00:00:00.000Z"),
        (-62_167_219_200_001, "-000001-12-31T23:59:59.999Z"),
        (8_640_000_000_000_000, "+275760-09-13T00:00:00.000Z"),
        (-8_640_000_000_000_000, "-271821-04-20T00:00:00.000Z"),
    ],
)
def test_a_moment_of_any_year_has_a_text(millis: int, text: str) -> None:
    assert iso(millis) == text


# -- limits


@pytest.mark.parametrize("how", ["history", "more", "documents"])
def test_more_groups_than_one_answer_holds_are_refused(how: str) -> None:
    search = requests(requests=COUNT, latency=LATENCY)
    events = [{"time": TEN + at % 2 * MINUTE, "service": f"s{at // 2}", "latency": at} for at in range(12)]
    asked = Aggregate(
        rollup=search.rollups["requests"], interval=MINUTE, start=TEN, end=TEN + 60 * MINUTE, group_by=("service",)
    )
    given = events if how == "documents" else [rollup.panes(columns.table(search, events), asked.rollup, search)]
    parts: Any = {how: given}
    groups = [
        group for bucket in buckets(asked, search, limits=GroupLimits(12, 10**6), **parts) for group in bucket["groups"]
    ]
    assert len(groups) == 12
    with pytest.raises(TooManyGroups, match="more than 11 groups") as refused:
        buckets(asked, search, limits=GroupLimits(11, 10**6), **parts)
    assert refused.value.facts == {"field": "group_by", "limit": 11}


def test_events_in_panes_and_events_in_none_share_the_limit() -> None:
    search = requests(requests=COUNT)
    asked = Aggregate(
        rollup=search.rollups["requests"], interval=MINUTE, start=TEN, end=TEN + 60 * MINUTE, group_by=("service",)
    )
    events = [{"time": TEN, "service": name} for name in "abc"]
    history = [rollup.panes(columns.table(search, events[:2]), asked.rollup, search)]
    for odd, most in ((events[1:], 3), (events[:2], 2)):
        buckets(asked, search, history=history, documents=odd, limits=GroupLimits(most, 10**6))
        with pytest.raises(TooManyGroups):
            buckets(asked, search, history=history, documents=odd, limits=GroupLimits(most - 1, 10**6))


def test_groups_that_take_too_much_memory_are_refused() -> None:
    search = requests(requests=COUNT)
    asked = Aggregate(
        rollup=search.rollups["requests"], interval=MINUTE, start=TEN, end=TEN + 60 * MINUTE, group_by=("service",)
    )
    events = [{"time": TEN, "service": f"{at}" * 200} for at in range(50)]
    more = [rollup.panes(columns.table(search, events), asked.rollup, search)]
    with pytest.raises(TooManyGroups, match="more than 10000 bytes"):
        buckets(asked, search, more=more, limits=GroupLimits(1000, 10_000))
    buckets(asked, search, more=more, limits=GroupLimits(1000, 100_000))


def test_states_are_merged_before_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "_PENDING_ROWS", 4)
    monkeypatch.setattr(answer, "_DOCUMENTS", 2)
    search = requests(requests=COUNT, latency=LATENCY)
    asked = Aggregate(rollup=search.rollups["requests"], interval=MINUTE, start=TEN, end=TEN + 60 * MINUTE)
    events = [{"time": TEN + at * 1000, "service": f"s{at % 3}", "latency": at} for at in range(90)]
    tables = [rollup.panes(columns.table(search, events[at : at + 5]), asked.rollup, search) for at in range(0, 60, 5)]
    found = buckets(asked, search, more=tables, documents=events[60:], limits=GroupLimits(2, 10**6))
    assert found == oracle.buckets(asked.rollup, search, events, interval=MINUTE, start=TEN, end=TEN + 60 * MINUTE)


def test_states_that_take_much_memory_are_merged_however_few() -> None:
    search = requests(spread={"kind": "quantiles", "field": "load"})
    asked = Aggregate(
        rollup=search.rollups["requests"], interval=MINUTE, start=TEN, end=TEN + 60 * MINUTE, group_by=("service",)
    )
    made = Buckets(asked, search, GroupLimits(1000, 20_000), Deadline(600))
    for service in "abcdefghij":
        events = [{"time": TEN, "service": service, "load": at} for at in range(400)]
        panes = rollup.panes(columns.table(search, events), asked.rollup, search)
        assert panes.column("sketch")[0].as_buffer().size > 1000
        if service < "f":
            made.add(panes)
    with pytest.raises(TooManyGroups, match="more than 20000 bytes"):
        for _ in range(20):
            made.add(panes.set_column(3, "key", pa.array([f'["{_}",null]'])))


# -- time


class Looks(Deadline):
    """A deadline that passes when it was looked at so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(600)
        self._left = times

    def check(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OutOfTime


def test_groups_for_which_there_is_no_time_are_left_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "_FINISHED_ROWS", 3)
    search = requests(requests=COUNT, latency=LATENCY)
    asked = Aggregate(
        rollup=search.rollups["requests"], interval=MINUTE, start=TEN, end=TEN + 60 * MINUTE, group_by=("service",)
    )
    events = [{"time": TEN + at * MINUTE, "service": name} for at in range(2) for name in "abcdef"]
    panes = rollup.panes(columns.table(search, events), asked.rollup, search)
    whole = buckets(asked, search, more=[panes])
    sizes = []
    for looks in range(9):
        made = Buckets(asked, search, GroupLimits(1000, 10**6), Looks(looks))
        made.add(panes)
        finished = made.finish()
        found = [(at["start"], group) for at in decoded(finished.buckets) for group in at["groups"]]
        assert found == [(at["start"], group) for at in whole for group in at["groups"]][: len(found)]
        assert finished.is_complete == (looks == 8)
        sizes.append(len(found))
    assert sizes == [0, 1, 2, 4, 5, 7, 8, 10, 12]

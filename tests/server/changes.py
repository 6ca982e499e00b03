"""A change of a pipeline for tests: how it is made, whether it needs force, what is told of it, what rows are then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from server.pipelines import Payload, Pipeline

Descriptors = dict[str, Payload]

#: The rows of the key that all events have, before any change.
USERS = {"count": 3, "total": 6.0, "whole": 6}
LARGE = {"large": 2}


class Change(NamedTuple):
    """A change, whether it needs force, what the diff tells of it, and the rows that differ afterwards.

    ``before`` makes what there is another than usual.
    """

    name: str
    make: Callable[[Pipeline, Descriptors], None]
    destructive: bool
    told: Callable[[Pipeline], Payload]
    rows: Callable[[Pipeline], dict[str, Payload | None]] = lambda p: {}
    before: Callable[[Pipeline, Descriptors], None] = lambda p, given: None


def node(which: str) -> Callable[[Pipeline], str]:
    return lambda p: str(getattr(p, which))


def set_at(which: str, *way: str, to: Any) -> Callable[[Pipeline, Descriptors], None]:
    """Give a member of a node a value."""

    def make(pipeline: Pipeline, given: Descriptors) -> None:
        place: Any = given[node(which)(pipeline)]
        for name in way[:-1]:
            place = place[name]
        place[way[-1]] = to

    return make


def drop(which: str, *way: str) -> Callable[[Pipeline, Descriptors], None]:
    """Take a member of a node away, or the node."""

    def make(pipeline: Pipeline, given: Descriptors) -> None:
        place: Any = given
        for name in (node(which)(pipeline), *way)[:-1]:
            place = place[name]
        del place[(node(which)(pipeline), *way)[-1]]

    return make


def changed(which: str, **told: Any) -> Callable[[Pipeline], Payload]:
    """One node changes."""
    return lambda p: {"changed": [{"name": node(which)(p), **told}]}


def changes(**each: Payload) -> Callable[[Pipeline], Payload]:
    """Several nodes change."""
    return lambda p: {"changed": sorted(({"name": getattr(p, n), **t} for n, t in each.items()), key=_name)}


def _name(item: Payload) -> str:
    return str(item["name"])


def rows(**each: Payload | None) -> Callable[[Pipeline], dict[str, Payload | None]]:
    return lambda p: {str(getattr(p, which)): row for which, row in each.items()}


def add_event(pipeline: Pipeline, given: Descriptors) -> None:
    given["new"] = {"kind": "event", "name": f"New{pipeline.event}", "schema": {"x": "str"}}


def add_table(pipeline: Pipeline, given: Descriptors) -> None:
    given["new"] = {**copy.deepcopy(given[pipeline.table]), "name": f"New{pipeline.table}"}


def add_derivation(pipeline: Pipeline, given: Descriptors) -> None:
    given["new"] = {**copy.deepcopy(given[pipeline.derived]), "name": f"New{pipeline.derived}"}


def rename_field(pipeline: Pipeline, given: Descriptors) -> None:
    schema = given[pipeline.event]["schema"]
    schema["value"] = schema.pop("amount")
    given[pipeline.table]["agg"]["total"]["params"]["field"] = "value"
    given[pipeline.derived]["ops"][0]["expr"] = "(value > 1.0)"


def rename_event(pipeline: Pipeline, given: Descriptors) -> None:
    given[pipeline.event]["name"] = f"Other{pipeline.event}"
    for name in (pipeline.derived, pipeline.table):
        given[name]["upstreams"] = [f"Other{pipeline.event}"]


def remove_event(pipeline: Pipeline, given: Descriptors) -> None:
    """Something else stays, as a payload is not empty."""
    given.clear()
    given["rest"] = {"kind": "event", "name": f"Rest{pipeline.event}", "schema": {"x": "str"}}


def remove_derivation(pipeline: Pipeline, given: Descriptors) -> None:
    del given[pipeline.derived], given[pipeline.over_derived]


def kind_of_derived(pipeline: Pipeline, given: Descriptors) -> None:
    given[pipeline.derived] = {"kind": "event", "name": pipeline.derived, "schema": {"user": "str"}}


def kind_of_table(pipeline: Pipeline, given: Descriptors) -> None:
    given[pipeline.table] = {**given[pipeline.derived], "name": pipeline.table}


def remove_whole(pipeline: Pipeline, given: Descriptors) -> None:
    del given[pipeline.event]["schema"]["n"], given[pipeline.table]["agg"]["whole"]


def replace_whole(pipeline: Pipeline, given: Descriptors) -> None:
    del given[pipeline.event]["schema"]["n"]
    given[pipeline.table]["agg"]["whole"]["params"]["field"] = "amount"


def steps(*conditions: str) -> list[Payload]:
    return [{"op": "filter", "expr": condition} for condition in conditions]


OTHER_KEY = "incompatible type of the key"
CASCADES = "remove event source that others are over"
EVERYTHING = ("derived", "event", "over_derived", "table")
GONE = rows(table=None, over_derived=None)
ZEROED = rows(table={**USERS, "total": None})
SUM = {"field": "amount", "window": "1h"}


def feature(name: str, before: Payload, after: Payload, *, op: str = "sum") -> Payload:
    """A sum that becomes another, or another operator."""
    return {"name": name, "from": {"op": "sum", "params": before}, "to": {"op": op, "params": after}}

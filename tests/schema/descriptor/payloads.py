"""Descriptors as they are sent, and nodes as they are kept."""

from __future__ import annotations

from typing import Any

from headrace.schema.descriptor.nodes import Node
from headrace.schema.descriptor.registration import Registration, read_registration
from headrace.schema.descriptor.validate import validate
from headrace.schema.problem import RequestProblem

Descriptor = dict[str, Any]

SCHEMA: dict[str, Any] = {"user": "str", "amount": "f64", "n": "i64", "ok": "bool"}


def event(name: str = "Txn", schema: dict[str, Any] | None = None, **settings: Any) -> Descriptor:
    return {"kind": "event", "name": name, "schema": dict(SCHEMA if schema is None else schema), **settings}


def derivation(name: str, upstream: str, *ops: dict[str, Any]) -> Descriptor:
    return {"kind": "derivation", "name": name, "upstreams": [upstream], "output_kind": "event", "ops": list(ops)}


def table(
    name: str = "User", upstream: str = "Txn", key: Any = ("user",), ops: Any = (), **features: Descriptor
) -> Descriptor:
    agg = features or {"n_events": op("count"), "total": op("sum", field="amount")}
    steps = {"ops": list(ops)} if ops else {}
    return {"kind": "table", "name": name, "key": list(key), "upstreams": [upstream], "agg": agg, **steps}


def op(name: str, **params: Any) -> Descriptor:
    return {"op": name, "params": params}


def filtered(expr: str) -> Descriptor:
    return {"op": "filter", "expr": expr}


def nodes(*descriptors: Descriptor) -> dict[str, Node]:
    """The nodes of a payload without any problem."""
    found = read_registration({"descriptors": list(descriptors)})
    assert isinstance(found, Registration), found
    assert validate(found.nodes, found.nodes) == []
    return found.nodes


def problems(*descriptors: Any, **members: Any) -> list[RequestProblem]:
    """Everything the first stage that finds anything says."""
    found = read_registration({"descriptors": list(descriptors), **members})
    return validate(found.nodes, found.nodes) if isinstance(found, Registration) else found


def told(*descriptors: Any, **members: Any) -> list[tuple[str, str]]:
    """The codes and paths of problems."""
    return [(problem.code, problem.path) for problem in problems(*descriptors, **members)]

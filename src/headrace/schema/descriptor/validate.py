"""The stages that need all nodes: order, then each descriptor, then types; the first that finds anything says all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.schema.descriptor.nodes import Node, Table
from headrace.schema.descriptor.order import unordered, upstream
from headrace.schema.descriptor.problem import Finding, Problem, joined
from headrace.schema.descriptor.propagate import propagated
from headrace.schema.descriptor.unfit import Unfit

_FIRST = "duplicate_name"


def validate(nodes: Mapping[str, Node], given: Mapping[str, Node]) -> list[Problem]:
    """All problems of the first stage that finds any; ``given`` are the nodes of the payload, in its order.

    A node that is not given is named ``registry.<name>`` in paths.
    """
    repeated = [problem for problem in _noted(given) if problem.code == _FIRST]
    problems = [*repeated, *_placed(unordered(nodes), given)]
    if not problems:
        problems = [*_noted(given), *_placed(_on_tables(nodes), given)]
    return problems or _placed(propagated(nodes), given)


def _noted(given: Mapping[str, Node]) -> list[Problem]:
    return [problem for node in given.values() if isinstance(node, Unfit) for problem in node.problems]


def _placed(findings: Iterable[Finding], given: Mapping[str, Node]) -> list[Problem]:
    places = {name: f"descriptors[{number}]" for number, name in enumerate(given)}
    return [
        Problem(code, joined(places.get(name, f"registry.{name}"), rest), message)
        for name, code, rest, message in findings
    ]


def _on_tables(nodes: Mapping[str, Node]) -> Iterable[Finding]:
    """Nodes that follow from a table."""
    for name, node in nodes.items():
        before = nodes.get(upstream(node) or "")
        if isinstance(before, Table) or (isinstance(before, Unfit) and before.of == "table"):
            reason = f"{before.name!r} is a table, and rows come from events and derivations"
            yield Finding(name, "aggregation_on_table_not_supported", "upstreams", reason)

"""The lives of features: which go on, which begin, and with which event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.engine.features.registry import Current
from headrace.schema.descriptor.diff import Diff
from headrace.schema.descriptor.nodes import Event, Life, Node, Table

Lives = dict[str, dict[str, Life]]


class ReadableRange(NamedTuple):
    """The events of a source that a feature can be folded from, and the next one."""

    first_seq: int = 0
    next_seq: int = 0


def root_of(nodes: Mapping[str, Node], name: str) -> str:
    """The event source that a node leads back to."""
    node = nodes[name]
    while not isinstance(node, Event):
        node = nodes[node.upstream]
    return node.name


def decide(
    base: Current,
    nodes: Mapping[str, Node],
    diff: Diff,
    readable_range: Callable[[str], ReadableRange],
    *,
    backfill: bool | None,
    name: Callable[[str], str],
) -> tuple[Lives, list[dict[str, Any]]]:
    """The lives of all features after a change, and what became of those that do not simply go on.

    What is new is born with the first event that can be read, what was cleared with the next one; ``backfill`` says
    otherwise for all of them.
    """
    versions: Lives = {}
    effects: list[dict[str, Any]] = []
    for table, node in nodes.items():
        if not isinstance(node, Table):
            continue
        readable = readable_range(root_of(nodes, table))
        versions[table] = {}
        for feature in node.features:
            version, fate = base.lives.get(table, {}).get(feature), diff.fates.get(table, {}).get(feature, "kept")
            if version is not None and fate == "kept":
                versions[table][feature] = version
                continue
            reborn = (version is not None and fate == "zeroed") if backfill is None else not backfill
            birth = readable.next_seq if reborn else readable.first_seq
            versions[table][feature] = Life(name(feature), birth)
            effects.append(_born(table, feature, "reborn" if fate == "zeroed" else "new", birth, backfilled=not reborn))
    gone = ((table, feature) for table, features in base.lives.items() for feature in features)
    cleared = [{"table": t, "feature": f, "state": "cleared"} for t, f in gone if f not in versions.get(t, {})]
    return versions, effects + cleared


def _born(table: str, feature: str, state: str, birth: int, *, backfilled: bool) -> dict[str, Any]:
    born = "first_retained" if backfilled else "now"
    return {"table": table, "feature": feature, "state": state, "born": born, "seq": birth}

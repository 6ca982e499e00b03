"""The way through a trace that took longest: what a span did itself, and its longest child, down to the leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tree(Protocol):
    """Spans and their children, by key."""

    @property
    def spans(self) -> Mapping[str, dict[str, Any]]:
        """The spans."""

    @property
    def children(self) -> Mapping[str, Sequence[str]]:
        """The keys of the children of each."""


def critical(tree: Tree, root: str) -> list[str]:
    """Keys from a root on; siblings that overlap do not add up."""
    order = [root]
    for key in order:
        order.extend(tree.children[key])
    weights: dict[str, float] = {}
    for key in reversed(order):
        below = max((weights[child] for child in tree.children[key]), default=0.0)
        weights[key] = _alone(tree, key) + below
    found = [root]
    while children := tree.children[found[-1]]:
        found.append(max(children, key=weights.__getitem__))
    return found


def _alone(tree: Tree, key: str) -> float:
    """How long a span took without any of its children, in nanoseconds."""
    start, end = _interval(tree.spans[key])
    covered, until = 0, start
    for first, last in sorted(_interval(tree.spans[child]) for child in tree.children[key]):
        ends = min(last, end)
        covered += max(0, ends - max(first, until))
        until = max(until, ends)
    return max(0, end - start) - covered


def _interval(span: dict[str, Any]) -> tuple[int, int]:
    return int(span["startUnixNano"]), int(span["endUnixNano"])

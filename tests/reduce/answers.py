"""Answers of rollups from panes and documents that are at hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.deadline import Deadline
from headrace.query.search import Search
from headrace.reduce.answer import Aggregate, Buckets
from headrace.reduce.groups import GroupLimits

LIMITS = GroupLimits(1_000_000, 2**40)


def buckets(
    asked: Aggregate,
    search: Search,
    *,
    history: Sequence[pa.Table] = (),
    more: Sequence[pa.Table] = (),
    documents: Iterable[Any] = (),
    limits: GroupLimits = LIMITS,
) -> list[dict[str, Any]]:
    """The buckets of all of these."""
    made = Buckets(asked, search, limits, Deadline(600))
    for panes in history:
        made.add_history(panes)
    for panes in more:
        made.add(panes)
    for document in documents:
        made.add_document(document)
    finished = made.finish()
    assert finished.is_complete
    return decoded(finished.buckets)


def decoded(buckets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Buckets as a client reads them, integers of any size."""
    found: list[dict[str, Any]] = json.loads(msgspec.json.encode(buckets))
    return found

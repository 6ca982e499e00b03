"""Answers of rollups from panes and documents that are at hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.query.search import Search
from headrace.reduce.answer import Aggregate, Buckets
from headrace.reduce.limits import GroupLimits

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
    made = Buckets(asked, search, limits)
    for panes in history:
        made.add_history(panes)
    for panes in more:
        made.add(panes)
    for document in documents:
        made.add_document(document)
    return made.finish()

"""Cutting bodies of append requests into entries, natively where they are plain enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.format.segment.columns import column, pieces

Payload = bytes | msgspec.Raw
#: Cuts any JSON body.
Split = Callable[[bytes], Sequence[Payload]]

_OPEN, _CLOSE, _COMMA, _QUOTE = b'{},"'


def cut(bodies: Sequence[bytes], counts: Sequence[int], split: Split) -> Any:
    """The entries of JSON bodies, each of which holds so many joined by commas, as a column of text."""
    count = sum(counts)
    # Streams hold events of one kind: where the first are not plain, the others are not worth a look.
    if _starts(bodies[0], counts[0]) is not None:
        text = b",".join(bodies)
        starts = _starts(text, count)
        if starts is not None:
            return _between(text, starts, np.append(starts[1:] - 1, len(text)))
    entries = list(chain.from_iterable(map(split, bodies)))
    if len(entries) != count:
        raise ValueError(f"bodies of {count} entries hold {len(entries)}")
    return pieces(pa.string(), entries)


def _starts(text: bytes, count: int) -> Any:
    """Where entries begin, if all are objects with no braces inside and nothing but commas between; else None.

    Valid JSON is cut rightly, whatever is in its strings. All braces being used up by ``{`` at the start, ``},{`` and
    ``}`` at the end, no object can be inside another, nor can an entry be anything else: behind the end of an object
    there is another one. So there is one entry more than there are ``},{`` outside strings; and as there is one entry
    more than there are ``},{`` at all, none is inside a string.
    """
    marks = np.frombuffer(text, np.uint8)
    starts = np.flatnonzero(marks == _OPEN)
    if len(starts) != count or starts[0] or marks[-1] != _CLOSE or np.count_nonzero(marks == _CLOSE) != count:
        return None
    is_plain = (marks[starts[1:] - 1] == _COMMA).all() and (marks[starts[1:] - 2] == _CLOSE).all()
    return starts if is_plain else None


def cut_keys(lists: Sequence[bytes | msgspec.Raw], count: int) -> Any:
    """The strings of JSON lists, so many in all, as a column of text; None where there is anything else in them.

    Where nothing is escaped, every quotation mark begins or ends a string.
    """
    text = b",".join(lists)
    quotes = np.flatnonzero(np.frombuffer(text, np.uint8) == _QUOTE)
    if len(quotes) != 2 * count or b"\\" in text:
        return None
    return _between(text, quotes[::2] + 1, quotes[1::2])


def _between(text: bytes, starts: Any, ends: Any) -> Any:
    """What lies between these places, as a column of text."""
    count = len(starts)
    bounds = np.empty(2 * count, np.int32)
    bounds[::2], bounds[1::2] = starts, ends
    with_gaps = column(pa.string(), 2 * count - 1, bounds, text)
    return with_gaps.take(pa.arange(0, 2 * count - 1, 2))

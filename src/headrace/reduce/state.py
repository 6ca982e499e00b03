"""The state of a measure: a product of small monoids, the same for all kinds, as a value and as columns.

=============================  ============================  =========================
component                      two merge to                  of
=============================  ============================  =========================
count                          their sum, at most 2^63 - 1   every kind
sum, min, max                  sum, least, greatest          floats
sum_int, min_int, max_int      sum, least, greatest          integers, exactly
histogram: exponent -> count   sums by exponent              summaries that ask for one
sketch: bytes of DataSketches  the union                     quantiles, distinct
sketch: bytes of an operator   its merge                     operators
=============================  ============================  =========================

An absent component is neutral, so a state without any is the identity.

The state of an operator lies where sketches lie. It says which operator it is of, so that states merge wherever
sketches do, and several one after the other are the state of all: Spark only has to put them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from headrace.operators import sketches
from headrace.operators.catalogue import OPERATORS
from headrace.operators.operator import Operator
from headrace.operators.state_bytes import pack, unpack

MAX_COUNT = 2**63 - 1

#: What a state belongs to: ``key`` is the JSON array of the dimension values in the order of the rollup.
KEYS = pa.schema(
    [
        ("rollup", pa.string()),
        ("interval", pa.int64()),
        ("pane", pa.int64()),
        ("key", pa.string()),
        ("measure", pa.string()),
    ]
)
STATE = pa.schema(
    [
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("sum_int", pa.decimal128(38, 0)),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("min_int", pa.int64()),
        ("max_int", pa.int64()),
        ("histogram", pa.map_(pa.int32(), pa.int64())),
        ("sketch", pa.binary()),
    ]
)
PANES = pa.schema([*KEYS, *STATE])

T = TypeVar("T")


class State(msgspec.Struct, frozen=True, gc=False):
    """What a measure keeps of some events; integers may have any size here."""

    count: int | None = None
    sum: float | None = None
    sum_int: int | None = None
    min: float | None = None
    max: float | None = None
    min_int: int | None = None
    max_int: int | None = None
    histogram: dict[int, int] | None = None
    sketch: bytes | None = None


def merge_states(left: State, right: State) -> State:
    """The state of the events of both; associative and commutative, up to rounding and the error of sketches."""
    return State(
        count=_merge_present(_add_counts, left.count, right.count),
        sum=_merge_present(float.__add__, left.sum, right.sum),
        sum_int=_merge_present(int.__add__, left.sum_int, right.sum_int),
        min=_merge_present(min, left.min, right.min),
        max=_merge_present(max, left.max, right.max),
        min_int=_merge_present(min, left.min_int, right.min_int),
        max_int=_merge_present(max, left.max_int, right.max_int),
        histogram=_merge_present(_merge_histograms, left.histogram, right.histogram),
        sketch=_merge_present(_merge_two_sketches, left.sketch, right.sketch),
    )


def _merge_present(merge: Callable[[T, T], T], left: T | None, right: T | None) -> T | None:
    if left is None or right is None:
        return right if left is None else left
    return merge(left, right)


def _add_counts(left: int, right: int) -> int:
    return min(left + right, MAX_COUNT)


def _merge_histograms(left: dict[int, int], right: dict[int, int]) -> dict[int, int]:
    return {at: _add_counts(left.get(at, 0), right.get(at, 0)) for at in sorted({*left, *right})}


def _merge_two_sketches(left: bytes, right: bytes) -> bytes:
    return merge_sketches([left, right])


#: How a packed state begins: as no sketch and no text does.
_MARK = b"\xc1"
_SIZE = Struct("<I")
_ENCODE = msgspec.msgpack.Encoder(order="sorted").encode
_DECODE = msgspec.msgpack.Decoder(tuple[str, bytes, bytes]).decode
_KEPT = 256


def pack_operator_state(name: str, params: dict[str, Any], state: Any) -> bytes:
    """The state of an operator with its name and parameters."""
    body = _ENCODE((name, _ENCODE(params), pack(state)))
    return _MARK + _SIZE.pack(len(body)) + body


def merge_sketches(parts: Sequence[bytes]) -> bytes:
    """One sketch, or one packed state, for all the events of several."""
    if parts[0][:1] != _MARK:
        return sketches.union(parts)
    entries = [_DECODE(body) for part in parts for body in _bodies(part)]
    if len(entries) == 1:
        return parts[0]
    name, params, _ = entries[0]
    merged = _operator(name, params).merge_all([unpack(state) for _, _, state in entries])
    return pack_operator_state(name, msgspec.msgpack.decode(params), merged)


def unpack_operator_state(packed: bytes) -> Any:
    """The state of an operator that was packed."""
    _, _, state = _DECODE(_bodies(merge_sketches([packed]))[0])
    return unpack(state)


def merge_operator_states(panes: pa.Table) -> pa.Table:
    """Panes whose states of operators were put one after the other, each as one state."""
    column = panes.column("sketch").to_pylist()
    places = [at for at, packed in enumerate(column) if packed is not None and packed[:1] == _MARK]
    if not places:
        return panes
    for at in places:
        column[at] = merge_sketches([column[at]])
    number = panes.schema.get_field_index("sketch")
    return panes.set_column(number, panes.schema.field(number), pa.array(column, pa.binary()))


def _bodies(packed: bytes) -> list[bytes]:
    """The states that lie one after the other."""
    bodies, at = [], 0
    while at < len(packed):
        (size,) = _SIZE.unpack_from(packed, at + 1)
        at += 1 + _SIZE.size
        bodies.append(packed[at : at + size])
        at += size
    return bodies


@lru_cache(maxsize=_KEPT)
def _operator(name: str, params: bytes) -> Operator:
    """An operator that merges; which types its fields have does not matter for that."""
    return OPERATORS[name](msgspec.msgpack.decode(params), {})

"""Events that a lens does not carry: built from the old schema, and shown only when they were tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import msgspec

from headrace.deadline import check_deadline
from headrace.schema.containment.check import Oracle
from headrace.schema.lens import ops as kinds
from headrace.schema.lens.forward import Steps, forward, run
from headrace.schema.lens.ops import Op
from headrace.schema.lens.samples import documents
from headrace.schema.lens.values import LensFailure, Raw
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root

TRIED, TRIED_BYTES = 2_000, 2_000_000
"""How many events are tried, and how much of them."""


def counter_example(old: Any, new: Any, ops: tuple[Op, ...], oracle: Oracle) -> Any:
    """An event that is valid under the old schema and not carried to the new one, or UNSET."""
    try:
        steps = forward(ops)
    except ValueError:  # An op without a default does not run at all.
        return msgspec.UNSET
    before, after = oracle(old), oracle(new)
    names = [*sorted({*_op_names(ops), *_member_names(new)}), "other"]
    left = TRIED_BYTES
    for event in islice(documents(shape_of(Root(old).source), names), TRIED):
        check_deadline()
        spelled = msgspec.json.encode(event)
        if before(event) and not _carried(steps, spelled, after):
            return event
        left -= len(spelled)
        if left < 0:
            break
    return msgspec.UNSET


def _carried(steps: Steps, event: bytes, valid: Callable[[Any], bool]) -> bool:
    holder = [Raw(event)]
    try:
        run(steps, holder, 0)
    except LensFailure:
        return False
    return valid(msgspec.json.decode(msgspec.json.encode(holder[0])))


def _op_names(ops: tuple[Op, ...]) -> Iterator[str]:
    """The names that ops speak of."""
    for op in ops:
        for field in ("path", "source", "target", "host"):
            yield from getattr(op, field, ())
        if isinstance(op, kinds.Hoist | kinds.Plunge):
            yield op.member
        if isinstance(op, kinds.In | kinds.Map):
            yield from _op_names(op.ops)


def _member_names(schema: Any) -> Iterator[str]:
    """The names that a schema speaks of, at any depth."""
    if isinstance(schema, list):
        yield from chain.from_iterable(map(_member_names, schema))
    elif isinstance(schema, dict):
        if isinstance(members := schema.get("properties"), dict):
            yield from members
        yield from chain.from_iterable(map(_member_names, schema.values()))

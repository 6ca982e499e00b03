"""Evolutions tried on events: what a stream may hold, and what becomes of each event alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

import msgspec

from headrace.schema.document import Validator
from headrace.schema.lens.forward import forward, run
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.proof import sample_documents
from headrace.schema.lens.values import LensFailure, Raw
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root
from schema.sketches import NAMES, Guess


def lens_document(ops: list[dict[str, Any]], stream: str = "s") -> dict[str, Any]:
    """The lens from the first version of a stream to the second."""
    return {"apiVersion": "durable.lens/v1", "schema": stream, "from": 1, "to": 2, "ops": ops}


def events(random: Random, schema: Any) -> Iterator[Any]:
    """Events that a stream with this schema may hold."""
    valid, guess = Validator(schema).accepts, Guess(random, schema)
    likely = [guess.value(schema) for _ in range(8)]
    edges = islice(sample_documents(shape_of(Root(schema).source), NAMES), 8)
    return filter(valid, [*likely, *map(guess.changed, likely), *edges])


def brute_force(lenses: Sequence[Lens], schema: Any, event: Any) -> str:
    """What becomes of one event: it fits, or what it fails at."""
    holder: list[Any] = [Raw(msgspec.json.encode(event))]
    try:
        for lens in lenses:
            run(forward(lens.ops), holder, 0)
    except LensFailure:
        return "lens"
    return "fits" if Validator(schema).accepts(msgspec.json.decode(msgspec.json.encode(holder[0]))) else "schema"

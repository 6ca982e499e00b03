"""How an answer came about: from which event on each feature speaks, from which states, and how long the tail is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.derive.generation import Generation
from headrace.engine.log.stream import Stream
from headrace.format.state.layout import State
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.states.coverage import history


def explained(
    defined: TableDefinition,
    generation: Generation,
    stream: Stream,
    through: int,
    listed: Sequence[State],
    wanted: Sequence[str],
) -> dict[str, Any]:
    """What an answer up to an event comes from, feature by feature."""
    through = max(through, generation.position)
    tail, first_seq = generation.base.start, stream.head.first_seq
    features = {}
    for name in wanted:
        life = defined.lives[name]
        held, _ = history(life, listed, first_seq)
        start = held[0].first_seq if held else min(first_seq, tail)
        features[name] = {
            "life": life.id,
            "born": stream.offset_at(life.birth),
            "since": stream.offset_at(max(life.birth, start)),
            "states": [state.name for state in held],
            "tail_events": max(0, through - max(tail, life.birth)),
            "complete": generation.is_folded(name, life.id),
        }
    return {
        "table": defined.table,
        "tail_from": stream.offset_at(tail),
        "through": stream.offset_at(through),
        "features": features,
    }

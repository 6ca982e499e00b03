"""What a change would do to features and streams, as things stand now; the commit decides anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.engine.features.births import Reach, decide
from headrace.engine.features.evolving import evolved
from headrace.engine.features.proposing import Proposal
from headrace.engine.log.stream import Stream
from headrace.schema.descriptor.nodes import Event

Effects = list[dict[str, Any]]


def preview(proposal: Proposal, streams: Mapping[str, Stream]) -> tuple[Effects, Effects]:
    """The features that would not simply go on, and the streams that would change."""
    told: Effects = []
    reaches: dict[str, Reach] = {}
    for name, event in proposal.nodes.items():
        if not isinstance(event, Event):
            continue
        stream = streams.get(name)
        if stream is None or stream.head.registry is None:
            told.append({"event": name, "change": "created", "schema_version": 1})
            continue
        head = stream.head
        made = evolved(stream.head.registry, event, head.next_seq)
        reaches[name] = Reach(max(head.first_seq, made.registry.readable_from), head.next_seq)
        if made.effect != "kept":
            told.append({"event": name, "change": made.effect, "schema_version": made.registry.current_version})
    told += [{"event": name, "change": "deleted"} for name in streams if not _is_event(proposal, name)]
    _, features = decide(
        proposal.base,
        proposal.nodes,
        proposal.diff,
        lambda name: reaches.get(name, Reach()),
        backfill=proposal.change.backfill,
        name=lambda feature: feature,
    )
    return features, told


def _is_event(proposal: Proposal, name: str) -> bool:
    return isinstance(proposal.nodes.get(name), Event)

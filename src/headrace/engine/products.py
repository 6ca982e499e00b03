"""What features and entities bring into the layers below them, as tables: hooks, journals, rewriters of segments.

The log and its history know these tables, and no product by name. Commands that recover or verify a store need them
without a running engine.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.entities.entity_hook import EntityHook
from headrace.engine.entities.entity_hook import Rules as EntityRules
from headrace.engine.entities.entity_journal import EntityJournal
from headrace.engine.entities.erasure.segments import SegmentEraser
from headrace.engine.features.feature_journal import FeatureJournal
from headrace.engine.features.source import Rules as SourceRules
from headrace.engine.features.source import Source
from headrace.engine.history.journal import Journal
from headrace.engine.history.publication import MakeRewriter
from headrace.engine.log.append_hook import AppendHooks, StreamManager
from headrace.storage.database import Connection
from headrace.storage.streams import StreamRow

#: Takes erased observations out of segments.
SEGMENT_REWRITER: MakeRewriter = SegmentEraser
#: What is published beside streams, in the order in which it is published and recovered.
JOURNALS: tuple[Journal[Any], ...] = (FeatureJournal(), EntityJournal())


def append_hooks(connection: Connection, *, most_keys: int) -> AppendHooks:
    """What event sources and entity types do to entries; ``most_keys`` is how many keys an event source remembers."""

    def load_source(row: StreamRow) -> Source:
        return Source(SourceRules.load(row.managed), most_keys)

    def load_entity_type(row: StreamRow) -> EntityHook:
        return EntityHook.load(connection, EntityRules.load(row.managed).entity_type)

    return AppendHooks(
        {
            "event": StreamManager(load_source),
            # Observations are kept for ever, and so are the keys that tell them apart.
            "entity": StreamManager(load_entity_type, is_retained=False),
        }
    )

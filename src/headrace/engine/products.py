"""Tables by which products register with the layers below: hooks, journals, rewriters of segments, and jobs.

The log and its history know these tables, and no product by name. Commands that recover or verify a store need them
without a running engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.config import PipelineConfig
from headrace.engine.derive.job import JobTable
from headrace.engine.derive.state_job import StateJob, StateKind
from headrace.engine.entities.enhancement.candidates import FragmentDefinitions
from headrace.engine.entities.entity_hook import EntityHook
from headrace.engine.entities.entity_journal import EntityJournal
from headrace.engine.entities.entity_type import ENTITIES, EntityRules
from headrace.engine.entities.erasure.segment_erasure import EraseJob, SegmentEraser
from headrace.engine.entities.read.snapshots import TypeDefinitions
from headrace.engine.features.definitions import definitions_of_rows
from headrace.engine.features.feature_journal import FeatureJournal
from headrace.engine.features.registry import Current
from headrace.engine.features.source import EventSource, MakeSource, SourceRules
from headrace.engine.features.training_sets import HistoryJob
from headrace.engine.history.journal import Journal
from headrace.engine.history.publication import MakeRewriter
from headrace.engine.log.catalog import AppendHooks, StreamManager
from headrace.engine.search.companion_coverage import SearchDefinitions
from headrace.engine.search.index_job import IndexJob
from headrace.engine.verification.verify_job import VerifyJob
from headrace.storage.database import Connection
from headrace.storage.streams import StreamRow

#: Takes erased observations out of segments.
SEGMENT_REWRITER: MakeRewriter = SegmentEraser
#: What is published beside streams, in the order in which it is published and recovered.
JOURNALS: tuple[Journal[Any], ...] = (FeatureJournal(), EntityJournal())


def append_hooks(connection: Connection, make_source: MakeSource) -> AppendHooks:
    """Make the table of hooks."""

    def load_source(row: StreamRow) -> EventSource:
        return make_source(SourceRules.load(row.managed))

    def load_entity_type(row: StreamRow) -> EntityHook:
        return EntityHook.load(connection, EntityRules.load(row.managed).entity_type)

    return AppendHooks(
        {
            "event": StreamManager(load_source),
            # Observations are kept for ever, and so are the keys that tell them apart.
            "entity": StreamManager(load_entity_type, is_retained=False),
        }
    )


class Jobs(NamedTuple):
    """Everything that can be derived, as a table, and the jobs of it that others speak to."""

    table: JobTable
    verify: VerifyJob
    histories: HistoryJob
    states: StateJob


def create_jobs(config: PipelineConfig, *, definitions: SearchDefinitions, features: Callable[[], Current]) -> Jobs:
    """The jobs, in the order in which they are leased: those that requests wait for come first."""
    kinds = [
        StateKind("features", "", lambda connection: definitions_of_rows(features(), connection), is_managed=False),
        StateKind("snapshots", ENTITIES, TypeDefinitions.read),
        StateKind("enhance", ENTITIES, FragmentDefinitions.read),
    ]
    verify, histories, states = VerifyJob(config), HistoryJob(), StateJob(config, kinds)
    table = JobTable([verify, histories, EraseJob(), states, IndexJob(config, definitions)])
    return Jobs(table, verify, histories, states)

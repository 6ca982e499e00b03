"""Builds the parts of a running system, and starts and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import Config, MiB
from headrace.engine.derive.lease_scheduler import LeaseScheduler
from headrace.engine.derive.local_worker import LocalWorker, StateDemand
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.entities.enhancement.enhancement import Enhancement
from headrace.engine.entities.entity_store import EntityStore
from headrace.engine.entities.erasure.erasures import EntityErasure, listed_files
from headrace.engine.entities.read.entity_list import EntityList
from headrace.engine.entities.read.snapshots import Snapshots
from headrace.engine.entities.read.source_reader import SourceReader
from headrace.engine.entities.types.entity_types import EntityTypes
from headrace.engine.entities.write.relations import EntityRelations
from headrace.engine.features.definitions import LiveDefinitions
from headrace.engine.features.feature_reader import FeatureReader
from headrace.engine.features.features import Features
from headrace.engine.features.past_reader import PastReader
from headrace.engine.features.source import EventSource
from headrace.engine.features.training_sets import TrainingSets
from headrace.engine.history.recovery import Recovered
from headrace.engine.history.sealer import Sealer
from headrace.engine.log.batch import Batch
from headrace.engine.log.catalog import AppendHooks, Catalog
from headrace.engine.log.lifecycle import apply
from headrace.engine.log.log import Counters, Log, Tail
from headrace.engine.log.retention import Sweeper
from headrace.engine.log.tiers import Tiers
from headrace.engine.memory_account import Account
from headrace.engine.object_caches import ObjectCaches, load_modules
from headrace.engine.products import JOURNALS, SEGMENT_REWRITER, append_hooks, create_jobs
from headrace.engine.registry.profiles import Profiles
from headrace.engine.registry.registry_change import RegistryChanges
from headrace.engine.registry.schemas import Schemas
from headrace.engine.runtime.event_loop import Slices
from headrace.engine.runtime.gates import ComputeThreads, Gates
from headrace.engine.search.companion_coverage import CompanionCoverage, SearchDefinitions
from headrace.engine.search.extraction import TailExtractor
from headrace.engine.search.index_status import IndexStatusReader
from headrace.engine.startup import OpenDatabase, open_database, reread_journals, take_over_store
from headrace.engine.touch.touches import Touches
from headrace.engine.verification.first_schema import FirstSchemaProofs
from headrace.engine.verification.verifier import Verifier
from headrace.extract.erasure import Masks
from headrace.storage import database
from headrace.storage.derived import Companions, States
from headrace.storage.journals import EntityChanges, FeatureRegistry
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal
from headrace.types import Clock, SystemClock

#: A row group is decoded ahead for so much room among the decoded ones, so that readers do not crowd each other out.
_AHEAD_BYTES, _MAX_AHEAD = 16 * MiB, 4
#: What is left of the working time of a request when rows of the past are answered.
_PAST_TIME_SHARE = 0.9


class Engine:
    """The running system. Open it on an event loop, and close it there."""

    #: Whether answers are computed from companions, which is looked up at the start.
    _has_companions = False

    def __init__(self, config: Config, clock: Clock, opened: OpenDatabase, vfs: str | None = None) -> None:
        """``opened`` is the database, and ``vfs`` the file system for further connections to it."""
        self.config = config
        self.clock = clock
        self.counters = Counters()
        self._vfs = vfs
        self._opened, self.writer, self._reader = opened, opened.writer, opened.reader
        #: Opens a connection that only reads, for a thread, which closes it.
        self.connect = opened.connect
        self._masks: Masks = {}
        self.gates = Gates(config.limits)
        self.computing = ComputeThreads(self.gates, config.limits.arriving_bytes)
        self.recovered: Recovered | None = None
        self._make_source = partial(EventSource, max_dedupe_keys=config.features.dedupe_keys, clock=clock)
        hooks = append_hooks(self._reader, self._make_source)
        definitions = SearchDefinitions()
        self._open_storage()
        self._create_log(hooks)
        self._create_registries()
        self._create_sealer()
        self._create_search(definitions)
        self._create_jobs(definitions)
        self._create_features()
        self._create_entities()
        self._create_local_worker()
        self.touches = Touches(
            log=self.log, tiers=self.tiers, apply=self.apply, reader=self._reader, slices=self.slices
        )
        self.sweeper = Sweeper(
            writer=self.writer,
            log=self.log,
            streams=self.streams,
            wal=self.wal,
            published=self.published,
            hooks=hooks,
            retain_from=self._feature_demand.retain_from,
        )
        self.account = self._create_account()

    @classmethod
    async def open(
        cls,
        config: Config,
        clock: Clock | None = None,
        vfs: str | None = None,
        *,
        accept_log_damage: bool = False,
    ) -> Engine:
        """Recover the log and start the writer; ``vfs`` names another file system for SQLite."""
        clock = clock or SystemClock()
        engine = cls(config, clock, open_database(config, clock, vfs=vfs, accept_log_damage=accept_log_damage), vfs)
        try:
            with database.using(Path(engine._reader.filename)):
                await asyncio.to_thread(engine._recover)
                engine._has_companions = Companions(engine._reader).exist()
                engine.work.restore_workers()
        except BaseException:
            engine._release()
            raise
        engine.writer.start()
        engine.work.start()
        engine.sealer.start()
        engine.verifier.start()
        engine.training.start()
        engine.touches.start()
        engine.local_worker.start()
        engine.enhancement.start()
        engine.erasure.start()
        engine.sweeper.start()
        return engine

    async def close(self) -> None:
        """Persist state in memory, complete accepted operations, and close the files."""
        await self.sweeper.stop()
        self.gates.index.open()
        try:
            with database.using(Path(self._reader.filename)):
                await self._stop_working()
        finally:
            await self.writer.stop()
            self.tiers.close()
            self.caches.close()
            self._opened.release()

    async def _stop_working(self) -> None:
        for part in (
            self.extraction,
            self.erasure,
            self.enhancement.queue,
            self.local_worker,
            self.touches,
            self.training,
            self.feature_reader,
            self.snapshots,
            self.enhancement,
            self.verifier,
            self.work,
            self.sealer,
        ):
            await part.stop()
        await self.sweep()

    def _recover(self) -> None:
        """Update the database from the object store, and load stored state; in a thread, before start."""
        takeover = take_over_store(objects=self.objects, node=self.node, streams=self.streams, writer=self.writer)
        self.recovered = takeover.recovered
        self.sealer.read_leases.prepare(after_takeover=takeover.recovered is not None)
        if takeover.trouble is not None:
            self.sealer.trouble = takeover.trouble
        self.work.prepare(self.writer.before_start)
        self.features.load()
        reread = reread_journals(
            streams=self.streams,
            writer=self.writer,
            catalog=self.log.catalog,
            connect=self.connect,
            segments=self.caches.segments,
        )
        self.erasure.prepare(self.writer.before_start, recovered=self.recovered is not None or reread)
        if self.streams.has_published():
            self.caches.segments()  # what reads them takes a while to load, and the first reader need not wait for it

    def _release(self) -> None:
        """Close all files; for a server that was opened and not started."""
        self.tiers.close()
        self.writer.close()
        self._opened.release()

    def _open_storage(self) -> None:
        """The tables of the database, the object store and its local caches."""
        storage = self.config.storage
        self.streams, self.wal, self.published = Streams(self._reader), Wal(self._reader), Published(self._reader)
        self.objects = Objects.open(
            storage.object_store or str(Path(storage.data_dir) / "objects"),
            timeout_s=storage.store_timeout_s,
            mode=storage.object_permissions,
        )
        self.node = Node(self.objects, self.clock)
        self.caches = ObjectCaches(config=self.config, objects=self.objects, masks=self._masks, vfs=self._vfs)

    def _create_log(self, hooks: AppendHooks) -> None:
        limits, ahead = self.config.limits, self.config.storage.decoded_bytes // _AHEAD_BYTES
        self.tiers = Tiers(self.wal, self.published, self.caches.segments, max(1, min(_MAX_AHEAD, ahead)))
        self.slices = Slices()
        self.tail = Tail(limits.waiters, self.slices)
        self._registries = Registries(self._reader)
        catalog = Catalog(
            streams=self.streams,
            registries=self._registries,
            hooks=hooks,
            clock=self.clock,
            wal_names=self.writer.wal_names,
            capacity=limits.cached_streams,
        )
        self.log = Log(
            writer=self.writer,
            catalog=catalog,
            streams=self.streams,
            tiers=self.tiers,
            tail=self.tail,
            counters=self.counters,
            clock=self.clock,
        )

    def _create_registries(self) -> None:
        """What changes the schemas and profiles of streams, the features, and the entity types."""
        changes = self.registry_changes = RegistryChanges(
            writer=self.writer,
            reader=self._reader,
            computing=self.computing,
            timeout_s=self.config.server.resolver_timeout_s,
        )
        self.schemas = Schemas(changes, self._registries)
        self.profiles = Profiles(changes, self.schemas)
        self.features = Features(
            registry_changes=changes,
            log=self.log,
            registry=FeatureRegistry(self._reader),
            make_source=self._make_source,
        )
        self.schemas.impact_on.append(self.features.impact_on)
        self.types = EntityTypes(
            registry_changes=changes, log=self.log, reader=self._reader, connect=self.connect, clock=self.clock
        )

    def _create_sealer(self) -> None:
        self.sealer = Sealer(
            log=self.log,
            writer=self.writer,
            streams=self.streams,
            published=self.published,
            reader=self._reader,
            connect=self.connect,
            objects=self.objects,
            node=self.node,
            segments=self.caches.segments,
            close_removed=self.caches.forget_objects,
            journals=JOURNALS,
            make_rewriter=SEGMENT_REWRITER,
            clock=self.clock,
            config=self.config.storage,
            columns_share=self.caches.columns_share,
        )

    def _create_search(self, definitions: SearchDefinitions) -> None:
        self.coverage = CompanionCoverage(self._reader, definitions)
        self.indexes = IndexStatusReader(self._reader, self.streams, self.coverage)
        self.extraction = TailExtractor(self.log, lambda: self.caches.opened_archive, self.caches.archive)

    def _create_jobs(self, definitions: SearchDefinitions) -> None:
        """What leases everything that can be derived, and what verifies it."""
        pipeline = self.config.pipeline
        jobs = create_jobs(pipeline, definitions=definitions, features=lambda: self.features.current)
        self._state_job, self._history_job = jobs.states, jobs.histories
        self.work = LeaseScheduler(
            apply=self.apply,
            reader=self._reader,
            connect=self.connect,
            objects=self.objects,
            clock=self.clock,
            config=pipeline,
            jobs=jobs.table,
        )
        self.verifier = Verifier(
            apply=self.apply,
            writer=self.writer,
            log=self.log,
            work=self.work,
            job=jobs.verify,
            reader=self._reader,
            connect=self.connect,
            segments=self.caches.segments,
            gate=self.gates.index,
        )
        self.first_schemas = FirstSchemaProofs(self.verifier)

    def _create_features(self) -> None:
        """Readers of feature tables: at present, as of the past, and for training."""
        settings = self.config.features
        self.state_builder = StateBuilder(
            objects=self.objects,
            directory=Path(self.config.storage.data_dir) / "cache" / "states",
            connect=self.connect,
            segments=self.caches.segments,
            gate=self.gates.index,
            cache_bytes=settings.state_cache_bytes,
            row_bytes=settings.row_bytes,
        )
        self.feature_reader = FeatureReader(
            log=self.log,
            wal=Wal(self._reader),
            states=States(self._reader),
            current=LiveDefinitions(lambda: self.features.current, self.log.catalog),
            state_builder=self.state_builder,
            clock=self.clock,
            config=settings,
        )
        self.past_reader = PastReader(
            log=self.log,
            feature_reader=self.feature_reader,
            connect=self.connect,
            segments=self.caches.segments,
            timeout_s=self.config.server.resolver_timeout_s * _PAST_TIME_SHARE,
        )
        self.training = TrainingSets(
            apply=self.apply,
            sealer=self.sealer,
            job=self._history_job,
            past_reader=self.past_reader,
            reader=self._reader,
            fold_rows=settings.fold_rows,
            workers_first_s=partial(self.work.workers_first_s, is_awaited=True),
        )
        self._feature_demand = StateDemand(self.feature_reader, self.published, self.clock, settings)
        self.log.on_append.append(self.feature_reader.appended)
        self._state_job.listeners.append(self.feature_reader.states_changed)

    def _create_entities(self) -> None:
        """The services that store, read, enhance and erase entities."""
        self.entity_store = EntityStore(
            writer=self.writer, log=self.log, types=self.types, reader=self._reader, clock=self.clock
        )
        self.source_reader = SourceReader(
            reader=self._reader, catalog=self.log.catalog, connect=self.connect, segments=self.caches.segments
        )
        settings = self.config.features
        self.snapshots = Snapshots(
            log=self.log,
            reader=self._reader,
            connect=self.connect,
            segments=self.caches.segments,
            state_builder=self.state_builder,
            newest_change=EntityChanges(self._reader).newest,
            fold_rows=settings.fold_rows,
            row_bytes=settings.row_bytes // 4,
        )
        self._state_job.listeners.append(self.snapshots.state_reader.states_changed)
        self.entity_list = EntityList(self.snapshots, self._reader)
        self.entity_relations = EntityRelations(
            writer=self.writer, log=self.log, stream_of=self.snapshots.stream, reader=self._reader
        )
        self.enhancement = Enhancement(
            types=self.types,
            entity_store=self.entity_store,
            log=self.log,
            work=self.work,
            state_job=self._state_job,
            reader=self._reader,
            connect=self.connect,
            segments=self.caches.segments,
            state_builder=self.state_builder,
            apply=self.apply,
            clock=self.clock,
            fold_rows=settings.fold_rows,
        )
        self.erasure = self._create_erasure()

    def _create_erasure(self) -> EntityErasure:
        return EntityErasure(
            writer=self.writer,
            log=self.log,
            sealer=self.sealer,
            snapshots=self.snapshots,
            state_readers=(self.enhancement.candidates.state_reader,),
            reader=self._reader,
            connect=self.connect,
            segments=self.caches.segments,
            prune=self._prune,
            apply=self.apply,
            database=Path(self.config.storage.data_dir) / "headrace.db",
            clock=self.clock,
            masks=self._masks,
            forget_events=self._forget_events,
        )

    def _create_local_worker(self) -> None:
        """The local worker, which folds states where no other worker does."""
        readers = self.snapshots.state_reader, self.enhancement.candidates.state_reader
        settings = self.config.features
        demands = [StateDemand(each, self.published, self.clock, settings) for each in readers]
        self.local_worker = LocalWorker(
            work=self.work,
            demands=[self._feature_demand, *demands],
            builder=self.state_builder,
            log=self.log,
            reader=self._reader,
            connect=self.connect,
            segments=self.caches.segments,
            objects=self.objects,
            clock=self.clock,
            gate=self.gates.index,
        )

    def _create_account(self) -> Account:
        return Account(
            settings=self.config.features,
            writer=self.writer,
            log=self.log,
            tiers=self.tiers,
            touches=self.touches,
            caches=self.caches,
            state_builder=self.state_builder,
            entity_rows=self.snapshots.rows,
            features=self.feature_reader,
            entities=(self.snapshots.state_reader, self.enhancement.candidates.state_reader),
            release_pages=self.release_pages,
        )

    def _forget_events(self) -> None:
        """Drop cached events: some are not to be read any more."""
        self.tiers.forget()
        self.caches.forget_events()

    def _prune(self) -> int:
        """Drop cached events, and files of objects that nothing lists; returns how many are in use."""
        connection = self.connect()
        try:
            segments, companion_parts, states = listed_files(connection)
        finally:
            connection.close()
        return self.state_builder.files.prune(states) + self.caches.prune(
            segments=segments, companion_parts=companion_parts
        )

    def warm_up(self) -> None:
        """Load what only some requests need, so that the first of them need not wait for it; for a thread."""
        load_modules()
        if self._has_companions:
            self.caches.archive()

    def release_pages(self) -> None:
        """Drop the pages of the database that the event loop has read."""
        self._reader.release_memory()
        self.tiers.forget()

    async def apply(self, perform: Callable[[Batch], Any], *, is_chore: bool = False) -> Any:
        """Run a function inside a commit, on the writer's thread, and return its result."""
        return await apply(self.writer, perform, is_chore=is_chore)

    async def probe(self) -> None:
        """Prove that the log can grow: a write that takes a page, and gives it back in the same commit."""
        await self.apply(lambda batch: batch.wal.probe())

    def held_bytes(self) -> int:
        """Bytes of the database that are in use: pages freed by retention are used again before it grows."""
        pragma = self._reader.pragma
        return (int(pragma("page_count")) - int(pragma("freelist_count"))) * int(pragma("page_size"))

    async def sweep(self) -> None:
        """Run expiry and retention once."""
        await self.sweeper.sweep()

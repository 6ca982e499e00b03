"""Where the parts meet: opens them, and owns their lifetimes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import Config, MiB
from headrace.engine.derive.job import JobTable
from headrace.engine.derive.lease_scheduler import LeaseScheduler
from headrace.engine.derive.local_worker import LocalWorker
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_demand import StateDemand
from headrace.engine.derive.state_job import StateJob, StateKind
from headrace.engine.entities.enhancement import enhancement
from headrace.engine.entities.enhancement.candidates import Fragments
from headrace.engine.entities.entity_hook import ENTITIES
from headrace.engine.entities.erasure import erasures
from headrace.engine.entities.erasure.erase_job import EraseJob
from headrace.engine.entities.read.definitions import Types
from headrace.engine.entities.read.listing import Listing
from headrace.engine.entities.read.snapshots import Snapshots
from headrace.engine.entities.read.sourcing import Sourcing
from headrace.engine.entities.types.verbs import EntityTypes
from headrace.engine.entities.write.aliasing import Aliasing
from headrace.engine.entities.write.stores import Stores
from headrace.engine.features.features import Features
from headrace.engine.features.histories import HistoryJob
from headrace.engine.features.registry import EVENTS
from headrace.engine.features.tables import Ground, Tables
from headrace.engine.history.journal import Journal
from headrace.engine.history.recovery import Recovered
from headrace.engine.history.sealer import SealContext, Sealer
from headrace.engine.history.takeover import take_over
from headrace.engine.log.append_hook import AppendHooks
from headrace.engine.log.batch import Batch
from headrace.engine.log.catalog import Catalog
from headrace.engine.log.lifecycle import StreamChange, run_change
from headrace.engine.log.log import Log
from headrace.engine.log.retention import Sweeper
from headrace.engine.log.tail import Tail
from headrace.engine.log.tiers import Tiers
from headrace.engine.log.writer import Writer
from headrace.engine.memory_account import Account
from headrace.engine.products import JOURNALS, SEGMENT_REWRITER, append_hooks
from headrace.engine.registry.profiles import Profiles
from headrace.engine.registry.schemas import Schemas
from headrace.engine.runtime import auto_tune
from headrace.engine.runtime.compute import ComputeThreads
from headrace.engine.runtime.counters import Counters
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.slices import Slices
from headrace.engine.search.companion_coverage import CompanionCoverage
from headrace.engine.search.definitions import Definitions
from headrace.engine.search.extraction import Extraction
from headrace.engine.search.index_job import IndexJob
from headrace.engine.search.index_status import Indexes
from headrace.engine.touch.touches import Touches
from headrace.engine.verification.verifier import Verifier
from headrace.engine.verification.verify_job import VerifyJob
from headrace.engine.warm_up import load_modules
from headrace.extract.erasure_mask import Masks
from headrace.storage import database, log_damage
from headrace.storage.derived import Companions
from headrace.storage.entity_types import EntityChanges
from headrace.storage.feature_registry import FeatureRegistry
from headrace.storage.lock import DirectoryLock, make_directory
from headrace.storage.node import Node
from headrace.storage.objects import Objects, StoreUnavailable
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal
from headrace.types import Clock, SystemClock

if TYPE_CHECKING:
    from headrace.engine.search.archive import Archive
    from headrace.storage.segments import Segments

log = logging.getLogger("headrace.engine")

#: A row group is decoded ahead for so much room among the decoded ones, so that readers do not crowd each other out.
_AHEAD_BYTES, _MOST_AHEAD = 16 * MiB, 4


class Engine:
    """The running system. Open it on an event loop, and close it there."""

    #: Whether answers are computed from companions, which is looked up at the start.
    _has_companions = False

    def __init__(self, config: Config, clock: Clock, vfs: str | None = None, accept_log_damage: bool = False) -> None:
        self.config = config
        self.clock = clock
        self.counters = Counters()
        self._masks: Masks = {}
        self.gates = Gates(config.limits)
        self.computing = ComputeThreads(self.gates, config.limits.arriving_bytes)
        data_dir = Path(config.storage.data_dir)
        make_directory(data_dir, config.storage.directory_permissions)
        self._open_database(data_dir, vfs, accept_log_damage)
        self.streams, self.wal, self.published = Streams(self._reader), Wal(self._reader), Published(self._reader)
        self.objects = Objects.open(
            config.storage.object_store or str(data_dir / "objects"),
            timeout_s=config.storage.store_timeout_s,
            mode=config.storage.object_permissions,
        )
        self.node = Node(self.objects, clock)
        ahead = max(1, min(_MOST_AHEAD, config.storage.decoded_bytes // _AHEAD_BYTES))
        self.tiers = Tiers(self.wal, self.published, self._open_segments, ahead)
        self.slices = Slices()
        self.tail = Tail(config.limits.waiters, self.slices)
        registries = Registries(self._reader)
        most_keys = config.features.dedupe_keys
        hooks = append_hooks(self._reader, most_keys=most_keys)
        catalog = Catalog(
            self.streams, registries, hooks, clock, self.writer.logged, capacity=config.limits.cached_streams
        )
        self.schemas = Schemas(self.writer, registries, self.computing, config.server.resolver_timeout_s)
        self.profiles = Profiles(self.writer, self.schemas)
        self.log = Log(self.writer, catalog, self.streams, self.tiers, self.tail, self.counters, clock)
        patience_s = config.server.resolver_timeout_s
        feature_registry = FeatureRegistry(self._reader)
        self.features = Features(
            self.writer, self.log, feature_registry, self.computing, patience_s=patience_s, most_keys=most_keys
        )
        self._stand_entities(patience_s)
        self.sealer = self._hire_sealer(vfs)
        definitions = Definitions()
        self.coverage = CompanionCoverage(self._reader, definitions)
        self.indexes = Indexes(self._reader, self.streams, self.coverage)
        self._create_work(definitions)
        self._keep_states()
        self.touches = Touches(self.log, self.tiers, self.apply, self._reader, self.slices)
        self.sweeper = self._make_sweeper(hooks)
        self.recovered: Recovered | None = None
        self._opening = threading.RLock()
        self._segments: Segments | None = None
        self._archive: Archive | None = None
        self._vfs = vfs
        self.extraction = Extraction(self.log, lambda: self._archive, self.open_archive)
        self.account = Account(self)

    def _open_database(self, data_dir: Path, vfs: str | None, accept_log_damage: bool) -> None:
        """Lock the directory, and open its database for the writer and for the event loop."""
        self._lock = DirectoryLock(data_dir)
        path, storage = data_dir / "headrace.db", self.config.storage
        database.limit_memory(auto_tune.sqlite_bytes(self.config))
        try:
            _check_files(path, self._lock, accept_log_damage)
            self.writer = Writer(path, self.config, self.clock, vfs)
            self._lock.mark()
            self._reader = database.connect(path, cache_bytes=storage.cache_bytes // 4, readonly=True, vfs=vfs)
        except BaseException:
            self._lock.release()
            raise

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
        engine = cls(config, clock or SystemClock(), vfs, accept_log_damage)
        try:
            with database.using(Path(engine._reader.filename)):
                await asyncio.to_thread(engine._stand_up)
                engine._has_companions = Companions(engine._reader).are_there()
                engine.work.restore_workers()
        except BaseException:
            engine._let_go()
            raise
        engine.writer.start()
        engine.work.start()
        engine.sealer.start()
        engine.verifier.start()
        engine.tables.start()
        engine.touches.start()
        engine.local_worker.start()
        engine.enhancement.start()
        engine.erasing.start()
        engine.sweeper.start()
        return engine

    async def close(self) -> None:
        """Persist what lives in memory, answer what was accepted, and let go of the files."""
        await self.sweeper.stop()
        self.gates.index.open()
        try:
            with database.using(Path(self._reader.filename)):
                await self._stop_working()
        finally:
            await self.writer.stop()
            self.tiers.close()
            if self._archive is not None:
                self._archive.close()
            self._reader.close()
            self._lock.release()

    async def _stop_working(self) -> None:
        for part in (
            self.extraction,
            self.erasing,
            self.enhancement.queue,
            self.local_worker,
            self.touches,
            self.tables,
            self.snapshots,
            self.enhancement,
            self.verifier,
            self.work,
            self.sealer,
        ):
            await part.stop()
        await self.sweep()

    def _stand_up(self) -> None:
        """Become the writer of the object store, with everything that was published there meanwhile."""
        try:
            self.recovered = take_over(
                self.objects, self.node, self.streams, self.writer.before_start, journals=JOURNALS
            )
        except StoreUnavailable as reason:
            if not self.streams.meta("epoch_end") or reason.facts.get("behind"):
                raise
            message = "the object store does not answer; appends are taken, and published once it does: %s"
            log.warning(message, reason.message)
            self.sealer.trouble = reason.message
        if self.recovered is not None:
            log.info("what the object store knew better was taken over: %s", self.recovered)
        self.work.prepare(self.writer.before_start)
        self.features.load()
        due = [journal for journal in JOURNALS if self.streams.meta(journal.reread_key)]
        for journal in due:
            self._reread(journal)
        self.erasing.prepare(self.writer.before_start, recovered=self.recovered is not None or bool(due))
        if self.streams.has_published():
            self._open_segments()  # what reads them takes a while to load, and the first reader need not wait for it

    def _reread(self, journal: Journal[Any]) -> None:
        """Read events again that a recovery has brought, for what it could not bring."""
        connection = self.connect()
        try:
            self.writer.before_start(
                lambda batch: journal.reread(batch, self.log.catalog.find, connection, self._open_segments)
            )
        finally:
            connection.close()

    def _let_go(self) -> None:
        """Close what was opened, where nothing has been started yet."""
        self.tiers.close()
        self.writer.close()
        self._reader.close()
        self._lock.release()

    def _open_segments(self) -> Segments:
        """The segments at hand; opened when the first is needed."""
        with self._opening:
            if self._segments is None:
                from headrace.format.segment.heap import keep_freed_pages
                from headrace.storage.segments import Segments

                keep_freed_pages()
                storage = self.config.storage
                self._segments = Segments(
                    self.objects,
                    Path(storage.data_dir) / "cache",
                    limit_bytes=storage.segment_cache_bytes,
                    decoded_bytes=storage.decoded_bytes,
                    footer_bytes=auto_tune.footer_bytes(self.config),
                    masks=self._masks,
                )
            return self._segments

    def _stand_entities(self, patience_s: float) -> None:
        """What changes entity types, stores entities and reads their sources."""
        known = self.writer, self.log, self._reader, self.connect, self.clock, self.computing
        self.types = EntityTypes(*known, patience_s=patience_s)
        self.stores = Stores(self.writer, self.log, self.types, self._reader, self.clock)
        self.sourcing = Sourcing(self._reader, self.log.catalog, self.connect, self._open_segments)

    def _hire_sealer(self, vfs: str | None) -> Sealer:
        context = SealContext(
            objects=self.objects,
            node=self.node,
            segments=self._open_segments,
            clock=self.clock,
            config=self.config.storage,
            vfs=vfs,
            close_removed=self._close_removed,
            journals=JOURNALS,
            make_rewriter=SEGMENT_REWRITER,
        )
        return Sealer(
            log=self.log,
            writer=self.writer,
            streams=self.streams,
            published=self.published,
            reader=self._reader,
            context=context,
            connect=self.connect,
            clock=self.clock,
            config=self.config.storage,
            columns_share=self._columns_share,
        )

    def _make_sweeper(self, hooks: AppendHooks) -> Sweeper:
        return Sweeper(
            writer=self.writer,
            log=self.log,
            streams=self.streams,
            wal=self.wal,
            published=self.published,
            hooks=hooks,
            held_from=self.tables.needs.held_from,
        )

    def _create_work(self, definitions: Definitions) -> None:
        """What leases everything that can be derived, in the order of the table: someone waits for what comes first."""
        pipeline = self.config.pipeline
        kinds = [
            StateKind("features", EVENTS, lambda _: self.features.current),
            StateKind("snapshots", ENTITIES, Types.read),
            StateKind("enhance", ENTITIES, Fragments.read),
        ]
        self._verify_job, self._history_job = VerifyJob(pipeline), HistoryJob()
        self._state_job = StateJob(pipeline, kinds)
        index_job = IndexJob(pipeline, definitions)
        self.work = LeaseScheduler(
            apply=self.apply,
            reader=self._reader,
            connect=self.connect,
            objects=self.objects,
            clock=self.clock,
            config=pipeline,
            jobs=JobTable([self._verify_job, self._history_job, EraseJob(), self._state_job, index_job]),
        )
        self.verifier = Verifier(
            apply=self.apply,
            writer=self.writer,
            log=self.log,
            work=self.work,
            job=self._verify_job,
            reader=self._reader,
            connect=self.connect,
            segments=self._open_segments,
            gate=self.gates.index,
        )

    def _keep_states(self) -> None:
        """What is folded of streams, and who does it where no worker comes."""
        settings = self.config.features
        self.bench = StateBuilder(
            self.objects,
            Path(self.config.storage.data_dir) / "cache" / "states",
            self.connect,
            self._open_segments,
            self.gates.index,
            cache_bytes=settings.state_cache_bytes,
            row_bytes=settings.row_bytes,
        )
        work = self.features, self.log, self.sealer, self._state_job, self._history_job, self.apply
        self.tables = Tables(
            Ground(*work, self._reader, self.connect, self._open_segments, self.bench, self.clock), self.config
        )
        self.serving, self.pasts, self.training = self.tables.serving, self.tables.pasts, self.tables.training
        self._stand_snapshots()
        self.erasing = self._stand_erasing()
        readers = self.snapshots.serving, self.enhancement.candidates.serving
        self.local_worker = LocalWorker(
            work=self.work,
            demands=[self.tables.needs, *(StateDemand(each, self.published, self.clock, settings) for each in readers)],
            builder=self.bench,
            log=self.log,
            reader=self._reader,
            connect=self.connect,
            segments=self._open_segments,
            objects=self.objects,
            clock=self.clock,
            gate=self.gates.index,
        )

    def _stand_snapshots(self) -> None:
        settings, changes = self.config.features, EntityChanges(self._reader)
        self.snapshots = Snapshots(
            self.log,
            self._reader,
            self.connect,
            self._open_segments,
            self.bench,
            changes.newest,
            fold_rows=settings.fold_rows,
            row_bytes=settings.row_bytes // 4,
        )
        self._state_job.listeners.append(self.snapshots.serving.states_changed)
        self.listing = Listing(self.snapshots, self._reader)
        self.aliasing = Aliasing(self.writer, self.log, self.snapshots.stream, self._reader)
        stored = self._reader, self.connect, self._open_segments, self.bench
        ground = enhancement.Ground(
            self.types, self.stores, self.log, self.work, self._state_job, *stored, self.apply, self.clock
        )
        self.enhancement = enhancement.Enhancement(ground, settings.fold_rows)

    def _stand_erasing(self) -> erasures.Erasing:
        known = self.writer, self.log, self.sealer, self.snapshots, (self.enhancement.candidates.serving,)
        stored = self._reader, self.connect, self._open_segments, self._prune, self.apply
        path = Path(self.config.storage.data_dir) / "headrace.db"
        return erasures.Erasing(erasures.Ground(*known, *stored, path, self.clock, self._masks, self._forget))

    def _forget(self) -> None:
        """Let go of what is kept of events: some are not to be read any more."""
        self.tiers.forget()
        if self._archive is not None:
            self._archive.forget()

    def _close_removed(self, keys: Collection[str]) -> None:
        """Close the files of objects that were removed."""
        if self._segments is not None:
            self._segments.forget(keys)
        if self._archive is not None:
            self._archive.files.forget(keys)

    def _prune(self) -> int:
        """Let go of what is kept of events, and of files of objects that nothing lists; answers how many are in use."""
        connection = self.connect()
        try:
            segments, parts, states = erasures.listed_files(connection)
        finally:
            connection.close()
        used = self._open_segments().prune(segments) + self.bench.files.prune(states)
        archive = self.open_archive()
        archive.forget()
        return used + archive.files.prune(parts)

    def open_archive(self) -> Archive:
        """What answers are computed from; opened when the first is asked for."""
        with self._opening:
            if self._archive is None:
                from headrace.engine.search.archive import Archive

                self._archive = Archive(self.config, self.objects, self._open_segments, self._vfs)
            return self._archive

    def warm_up(self) -> None:
        """Load what only some requests need, so that the first of them need not wait for it; for a thread."""
        load_modules()
        if self._has_companions:
            self.open_archive()

    def _columns_share(self) -> float:
        """How much of the room for columns of events without companions is taken, from 0 to 1."""
        return 0.0 if self._archive is None else self._archive.blocks.used_share

    @property
    def segments(self) -> Segments | None:
        """The segments at hand; None while nobody has needed any."""
        return self._segments

    @property
    def archive(self) -> Archive | None:
        """What answers are computed from; None while nobody has asked."""
        return self._archive

    def connect(self) -> database.Connection:
        """A connection that only reads, for a thread, which closes it."""
        path, cache_bytes = Path(self.config.storage.data_dir) / "headrace.db", self.config.storage.cache_bytes // 8
        return database.connect(path, cache_bytes=cache_bytes, readonly=True, vfs=self._vfs)

    def release_pages(self) -> None:
        """Let go of the pages of the database that the event loop has read."""
        self._reader.release_memory()
        self.tiers.forget()

    async def apply(self, perform: Callable[[Batch], Any], *, is_chore: bool = False) -> Any:
        """Run a function inside a commit, on the writer's thread, and answer what it returned."""
        return (await run_change(self.writer, _ChoreCall if is_chore else _Call, perform)).found

    async def probe(self) -> None:
        """Prove that the log can grow: a write that takes a page, and gives it back in the same commit."""
        await self.apply(lambda batch: batch.wal.probe())

    def held_bytes(self) -> int:
        """Bytes of the database that are in use: pages freed by retention are used again before it grows."""
        pragma = self._reader.pragma
        return (int(pragma("page_count")) - int(pragma("freelist_count"))) * int(pragma("page_size"))

    async def sweep(self) -> None:
        """Do once what time does to streams."""
        await self.sweeper.sweep()


class _Call(StreamChange):
    """A function to run inside a commit."""

    def __init__(self, function: Callable[[Batch], Any], done: Callable[[Any], None]) -> None:
        super().__init__(done, size=200)
        self.function = function
        self.found: Any = None

    def perform(self, batch: Batch) -> None:
        batch.flush()
        self.found = self.function(batch)


class _ChoreCall(_Call):
    """A function that no client has asked for."""

    is_chore = True


def _check_files(path: Path, lock: DirectoryLock, accept_log_damage: bool) -> None:
    """Refuse a database that is gone, or that SQLite would open without commits that were acknowledged."""
    log_damage.refuse_lost_database(path, lock)
    if accept_log_damage or log_damage.is_accepting(path):
        log_damage.accept_log_damage(path, log_damage.mark_restored)
    log_damage.refuse_log_damage(path)

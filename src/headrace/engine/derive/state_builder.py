"""Builds generations in the background: one thread fetches states and folds events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.engine.derive.column_slices import MIN_COLUMN_EVENTS, ColumnsOf, TailMark
from headrace.engine.derive.generation import Generation
from headrace.engine.derive.tails import Follower, fold_through
from headrace.engine.history.stored_events import EventsMoved
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.background import BackgroundThread
from headrace.engine.runtime.gates import Gate
from headrace.errors import Unavailable
from headrace.format.decoded_columns import LruCache
from headrace.reduce.states.coverage import Base
from headrace.reduce.states.definition import Definition, NotColumnar, Shapes
from headrace.storage.database import Connection
from headrace.storage.objects import Objects
from headrace.storage.state_files import StateFile, StateFiles

if TYPE_CHECKING:
    from headrace.reduce.states.pending_events import Block
    from headrace.storage.segments import Segments

Returned = TypeVar("Returned")

_TRIES = 5


class StateBuilder:
    """The thread that fetches states and folds events, with its connection and its caches."""

    def __init__(
        self,
        *,
        objects: Objects,
        directory: Path,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        gate: Gate,
        cache_bytes: int,
        row_bytes: int,
    ) -> None:
        self.segments = segments
        self._gate = gate
        self._objects, self._directory, self._cache_bytes = objects, directory, cache_bytes
        self._files: StateFiles | None = None
        self._opening = threading.Lock()
        #: Rows of states that were looked up last.
        self.rows = LruCache(row_bytes)
        self._thread = BackgroundThread("states", connect)

    @property
    def files(self) -> StateFiles:
        """The files of states; a server without any has no directory for them."""
        with self._opening:
            if self._files is None:
                self._files = StateFiles(self._objects, self._directory, limit_bytes=self._cache_bytes)
            return self._files

    @property
    def open_files(self) -> int:
        """How many files of states are open."""
        return 0 if self._files is None else self._files.opened

    @property
    def dropped(self) -> int:
        """How many damaged files of states were dropped."""
        return 0 if self._files is None else self._files.dropped

    async def stop(self) -> None:
        """Stop folding, and close the thread and its connection."""
        await self._thread.stop()

    def should_continue(self) -> bool:
        """Whether the thread was not stopped."""
        return not self._thread.stopping.is_set()

    async def run_in_thread(self, work: Callable[[], Returned]) -> Returned:
        """Run a function in the thread and return what it returns."""
        return await self._thread.run(work)

    async def hold_files(self, stream: Stream, base: Base) -> dict[str, StateFile]:
        """The files of all states of a base, held open until they are released."""
        return await self.run_in_thread(lambda: self._hold_files(stream, base))

    async def build(
        self,
        follower: Follower,
        stream: Stream,
        head: Head,
        defined: Definition,
        base: Base,
        *,
        hot_rows: int,
        pauses: bool,
    ) -> Generation:
        """A generation folded up to a head; with ``pauses`` the thread pauses in between, as no request waits."""
        shapes, columns_of = follower.shapes(head), follower.columns_of

        def build_and_fold() -> Generation:
            made = Generation(defined, base, self._hold_files(stream, base), self.rows, hot_rows=hot_rows)
            try:
                self._fold(stream, head, shapes, [made], columns_of, pauses=pauses)
            except BaseException:
                self.release(made.files.values())
                raise
            return made

        if not pauses:
            return await self.run_in_thread(build_and_fold)
        async with self._gate:
            return await self.run_in_thread(build_and_fold)

    async def fold(self, follower: Follower, stream: Stream, head: Head) -> None:
        """Fold tails in the thread: buffered events for a time slice, or without those all events up to a head."""
        shapes, blocks = follower.shapes(head), follower.pending_blocks()
        if await self._fold_columns(follower, shapes, blocks):
            return
        follower.busy = True
        await follower.wait_for_holds()
        tails = list(follower.generations.values())
        if blocks:
            await self.run_in_thread(lambda: follower.fold_buffered(shapes, tails, blocks, self.should_continue))
            return
        columns_of = follower.columns_of
        await self.run_in_thread(lambda: self._fold(stream, head, shapes, tails, columns_of, pauses=False))
        follower.drop_pending()

    async def _fold_columns(self, follower: Follower, shapes: Shapes, blocks: Sequence[Block]) -> bool:
        """Fold buffered events as columns; False where they are too few, or no columns.

        Tails can be read while their rows are made; they are busy for the moment in which these are added.
        """
        if follower.columns_of is None or sum(len(block.times_us) for block in blocks) < MIN_COLUMN_EVENTS:
            return False
        if follower.is_full:  # events are folded when there is room
            follower.busy = True
            await self.run_in_thread(lambda: follower.merge_rows(self.should_continue))
            return True
        tails = list(map(TailMark.of, follower.generations.values()))
        follower.is_preparing = True
        try:
            made = await self.run_in_thread(lambda: follower.prepare_rows(shapes, tails, blocks, self.should_continue))
        except NotColumnar:
            return False
        finally:
            follower.is_preparing, follower.busy = False, True
        await follower.wait_for_holds()
        follower.add_new_rows(made)
        return True

    def release(self, files: Iterable[StateFile]) -> None:
        """Release files that no generation uses any more."""
        for file in files:
            self.files.release(file)

    def connection(self) -> Connection:
        """The database connection of the thread."""
        return self._thread.connection

    def _hold_files(self, stream: Stream, base: Base) -> dict[str, StateFile]:
        files: dict[str, StateFile] = {}
        try:
            for state in base.states:
                files[state.name] = self.files.hold(stream.name, stream.incarnation, state)
        except BaseException:
            self.release(files.values())
            raise
        return files

    def _fold(
        self,
        stream: Stream,
        head: Head,
        shapes: Shapes,
        tails: Iterable[Generation],
        columns_of: ColumnsOf | None,
        *,
        pauses: bool,
    ) -> None:
        connection, should_continue = self.connection(), self.should_continue
        for _ in range(_TRIES):
            try:
                fold_through(
                    connection,
                    self.segments,
                    stream,
                    head,
                    shapes,
                    tails,
                    columns_of=columns_of,
                    should_continue=should_continue,
                    pauses=pauses,
                )
                return
            except EventsMoved:
                head = stream.head  # retention has moved on, or events from the log into segments
        raise Unavailable(f"the events of {stream.name} keep moving", reason="moving")

"""Takeover: before a node becomes the writer of a store, it finds out what its directory has missed.

The database notes the lease under which it writes. Where the store has a newer one, another node has been the writer
since, or this one with a later copy of the directory; a directory that was restored from a backup says so itself. Such
a directory is brought up to what was published meanwhile, or does not start. Where it holds entries that would be
dropped by that, it is refused before it takes over, so that the present writer goes on undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import ConfigError, StorageConfig
from headrace.engine.history.journal import Journal
from headrace.engine.history.recovery import (
    LEASE,
    Deletions,
    Recovered,
    ReportProgress,
    count_diverged_entries,
    newest,
    recover,
)
from headrace.engine.log.batch import Batch, commit_alone
from headrace.errors import Fenced, StoreUnavailable
from headrace.format import object_names
from headrace.storage import database
from headrace.storage.lock import DirectoryLock, make_directory
from headrace.storage.log_damage import RESTORED
from headrace.storage.node import Node, holder_of, lease_key
from headrace.storage.objects import Objects
from headrace.storage.streams import DELETED, Streams
from headrace.types import Clock

#: Runs a function inside a commit of its own.
Commit = Callable[[Callable[[Batch], None]], None]

_NODE = "node"
_NAMED = 5
#: How often a store is judged anew where another node was faster.
_TRIES = 5


def take_over(
    objects: Objects,
    node: Node,
    streams: Streams,
    commit: Commit,
    *,
    journals: Sequence[Journal[Any]],
    on_progress: ReportProgress | None = None,
) -> Recovered | None:
    """Become the writer of the store, with everything that was published there; None where nothing was missed.

    Raises StoreUnavailable where the store does not answer: a late claim may make up for that, unless the error says
    that the directory is ``behind``.
    """
    node.held = streams.meta(LEASE, -1)
    for _ in range(_TRIES):
        last = node.newest()
        missed = _has_missed(objects, node, streams, last)
        try:
            if missed and streams.every(0, 1):
                _refuse_to_drop(objects, streams)
            if (number := node.claim(last)) is not None:
                return _catch_up(objects, node, number, missed, commit, journals, on_progress)
        except StoreUnavailable as reason:
            if missed:
                raise _is_behind(reason) from reason
            raise
    raise Fenced("other nodes take over this object store again and again; start one of them alone")


def _catch_up(
    objects: Objects,
    node: Node,
    number: int,
    missed: bool,
    commit: Commit,
    journals: Sequence[Journal[Any]],
    on_progress: ReportProgress | None,
) -> Recovered | None:
    """Note the lease under which the database writes from now on, once it has everything that it missed."""
    recoveries: list[Recovered] = []

    def perform(batch: Batch) -> None:
        if missed:
            # Another copy of this directory may have used the epochs that were reserved for it.
            batch.streams.set_meta("epoch_end", 0)
            batch.streams.set_meta("spare_epoch", -1)
        reserve_epochs(node, batch)
        if missed:
            recoveries.append(recover(objects, batch, journals, lambda again: reserve_epochs(node, again), on_progress))
        batch.streams.set_meta(LEASE, number)
        batch.streams.set_meta(_NODE, _fingerprint(node.identity))
        batch.streams.set_meta(RESTORED, 0)

    commit(perform)
    return recoveries[0] if recoveries else None


def recover_directory(
    storage: StorageConfig, clock: Clock, *, journals: Sequence[Journal[Any]], on_progress: ReportProgress | None = None
) -> Recovered:
    """Make the log of a data directory that has none, from an object store; leaves nothing behind where that fails."""
    directory = Path(storage.data_dir)
    mode = storage.object_permissions
    objects = Objects.open(storage.object_store, timeout_s=storage.store_timeout_s, mode=mode)
    make_directory(directory, storage.directory_permissions)
    lock, path = DirectoryLock(directory), directory / "headrace.db"
    try:
        connection = database.connect(path, cache_bytes=storage.cache_bytes)
        try:
            database.migrate(connection)
            commit = partial(commit_alone, connection, clock)
            recovered = take_over(
                objects, Node(objects, clock), Streams(connection), commit, journals=journals, on_progress=on_progress
            )
        except BaseException:
            for left in directory.glob("headrace.db*"):
                left.unlink()
            raise
        finally:
            connection.close()
    finally:
        lock.release()
    return recovered or Recovered()


def reserve_epochs(node: Node, batch: Batch) -> None:
    """A block to go on with, and one to spare."""
    streams = batch.streams
    if not streams.meta("epoch_end"):
        block, used = node.reserve_epochs(), streams.meta("next_epoch")
        while block.stop <= used:  # epochs from before there were blocks
            block = node.reserve_epochs()
        streams.set_meta("next_epoch", max(block.start, used))
        streams.set_meta("epoch_end", block.stop)
    if streams.meta("spare_epoch", -1) < 0:
        streams.set_meta("spare_epoch", node.reserve_epochs().start)


def _has_missed(objects: Objects, node: Node, streams: Streams, last: int | None) -> bool:
    """Whether the store may know more than the database, where ``last`` is its newest lease.

    Refuses a store that belongs to others.
    """
    held, is_restored = node.held, bool(streams.meta(RESTORED))
    holder = None if held < 0 else holder_of(objects, held)
    if holder is not None and _fingerprint(holder) == streams.meta(_NODE):
        return last != held or is_restored
    if streams.has_published():
        unlike = "" if held < 0 else f", or {lease_key(held)} is damaged: it is not the lease that this directory wrote"
        raise _other_store(f"this directory has published its streams elsewhere{unlike}")
    if streams.every(0, 1) and next(iter(objects.list(object_names.MANIFESTS)), None) is not None:
        raise _other_store("this directory has streams of its own, and the store has those of another node")
    return last is not None or held >= 0 or is_restored


def _refuse_to_drop(objects: Objects, streams: Streams) -> None:
    """Raises Fenced, naming them, where streams have entries here that others have taken the place of.

    Forks of which the source was deleted meanwhile are among them.
    """
    lost = {fork.name: fork.next_seq - fork.first_seq for fork in Deletions(objects).stranded_forks(streams)}
    for manifest in newest(objects, []):
        row = streams.by_name(manifest.stream)
        if row is not None and row.state != DELETED and (entries := count_diverged_entries(row, manifest)):
            lost[row.name] = entries
    if lost:
        named = ", ".join(f"{name!r} ({entries})" for name, entries in sorted(lost.items())[:_NAMED])
        raise Fenced(
            f"another node has gone on with this object store, and {sum(lost.values())} entries are in this directory "
            f"alone: {named}. Keep the directory, and start with an empty one to go on from the store",
            streams=len(lost),
            entries=sum(lost.values()),
        )


def _is_behind(reason: StoreUnavailable) -> StoreUnavailable:
    return StoreUnavailable(
        f"this directory lacks what was published to its object store, which does not answer any more: "
        f"{reason.message}. Try again once it does",
        behind=True,
    )


def _other_store(why: str) -> ConfigError:
    return ConfigError(f"storage.object_store names another store: {why}", field="storage.object_store")


def _fingerprint(identity: str) -> int:
    """A node's identity as a number that SQLite can keep."""
    return int(identity, 16) >> 1

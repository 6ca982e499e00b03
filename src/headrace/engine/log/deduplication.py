"""Storing an event once: decided in the commit, by the key of the event, for as long as its source remembers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.dedupe import Dedupe, FirstEvent

if TYPE_CHECKING:
    from headrace.engine.log.append_hook import AppendHook
    from headrace.engine.log.batch import Batch
    from headrace.engine.log.stream import Head, Stream


def assign_seqs(batch: Batch, stream: Stream, head: Head, keys: list[str | None], at_us: int) -> list[int]:
    """The sequence number of each entry: the next ones in order, and for a key that is known that of its first."""
    assert head.registry is not None and head.registry.hook is not None
    seq_by_key = find_remembered(batch, stream.id, head, head.registry.hook, keys, at_us)
    seqs: list[int] = []
    due = head.next_seq
    for key in keys:
        first = due if key is None else seq_by_key.setdefault(key, due)
        if first == due:
            due += 1
            if key is not None:
                batch.firsts[stream.id, key] = FirstEvent(first, at_us)
        seqs.append(first)
    return seqs


def find_remembered(
    batch: Batch, stream: int, head: Head, hook: AppendHook, keys: list[str | None], at_us: int
) -> dict[str, int]:
    """The keys that are remembered at a moment, and the events that had them first."""
    distinct_keys = [key for key in dict.fromkeys(keys) if key is not None]
    firsts = {key: batch.firsts[stream, key] for key in distinct_keys if (stream, key) in batch.firsts}
    missing_keys = [key for key in distinct_keys if key not in firsts]
    if missing_keys:
        firsts |= Dedupe(batch.connection).find(stream, missing_keys)
    since, since_us = dedupe_horizon(hook, head.next_seq, at_us)
    return {key: first.seq for key, first in firsts.items() if first.seq >= since and first.at_us > since_us}


def dedupe_horizon(hook: AppendHook, next_seq: int, now_us: int) -> tuple[int, int]:
    """From which event, and after which moment, keys are remembered."""
    return max(hook.dedupe_since, next_seq - hook.most_keys), now_us - hook.window_us

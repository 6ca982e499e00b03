"""Expiry while reading: events that are too old are in no answer, even before they are removed.

Removal from disk follows later, in whole requests and segments, and where features need it only after folding. An event
keeps the lifetime under which it was appended, later events never have a shorter one, and append times never go back:
so the expired events of a stream are always its first ones.
"""

from __future__ import annotations

import msgspec

from headrace import decoding
from headrace.engine.log import read as reading
from headrace.engine.log.stream import Head, ReadableStart, Stream
from headrace.engine.log.tiers import Tiers
from headrace.types import Steps


class _ManagedRules(msgspec.Struct):
    kept: Steps = ()


def lifetime_steps(managed: str) -> Steps:
    """The lifetimes in the stored rules of a managed stream, each with its first event; empty where it has none."""
    return decoding.decode(managed, _ManagedRules).kept if managed else ()


def expires(stream: Stream, head: Head) -> bool:
    """Whether some of its events will not be readable one day."""
    return _lifetimes(stream, head) is not None


def readable_head(tiers: Tiers, stream: Stream, head: Head, now_us: int) -> Head:
    """The head as readers may see it: it begins with the first event that has not expired.

    Raises NeedsFetch where append times lie in a segment that is not in memory.
    """
    lifetimes = _lifetimes(stream, head)
    if lifetimes is None:
        return head
    first = _first_unexpired(tiers, stream, head, lifetimes, now_us)
    if first <= head.first_seq:
        return head
    readable = head.copy()
    readable.first_seq = first
    return readable


def _lifetimes(stream: Stream, head: Head) -> Steps | None:
    """How long events live, in microseconds, by the first event for which it holds; None where none expires."""
    hook = None if head.registry is None else head.registry.hook
    if hook is None or hook.lifetimes_ms is None:
        age_us = stream.retention_age_us
        return None if age_us is None else ((0, age_us),)
    if all(kept_ms is None for _, kept_ms in hook.lifetimes_ms):
        return None
    return tuple((since, None if kept_ms is None else kept_ms * 1000) for since, kept_ms in hook.lifetimes_ms)


def _first_unexpired(tiers: Tiers, stream: Stream, head: Head, lifetimes: Steps, now_us: int) -> int:
    longest_us = lifetimes[-1][1]
    if longest_us is not None and head.last_us < now_us - longest_us:
        return head.next_seq
    start = stream.readable_start
    if start is None or start.lifetimes != lifetimes or (start.until_us is not None and now_us > start.until_us):
        start = stream.readable_start = _find_start(tiers, stream, head, lifetimes, now_us)
    return start.seq


def _find_start(tiers: Tiers, stream: Stream, head: Head, lifetimes: Steps, now_us: int) -> ReadableStart:
    ends = [*(since for since, _ in lifetimes[1:]), head.next_seq]
    for (since, lifetime_us), end in zip(lifetimes, ends, strict=True):
        if end <= head.first_seq:
            continue
        if lifetime_us is None:
            return ReadableStart(max(since, head.first_seq), None, lifetimes)
        first = reading.first_since(tiers, stream, head, now_us - lifetime_us)
        if first is not None and first.seq < end:
            # Where it lies before the step it has expired under a shorter lifetime, and the step's own first event
            # was appended no earlier.
            return ReadableStart(max(first.seq, since), first.append_us + lifetime_us, lifetimes)
    return ReadableStart(head.next_seq, now_us, lifetimes)

"""The events that are searched: made block by block from numbers alone, so that everyone can count what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Events are made so many at a time; all counts are multiples of an array.
BLOCK = 10_000
ARRAY = 100
#: The first event happens at the beginning of an hour, the others follow so far apart: a million in ten days.
START_MS = 1_777_593_600_000
STEP_MS = 864
HOUR_MS = 3_600_000

SERVICES = [f"svc-{number:02d}" for number in range(48)]
LEVELS = ["debug", "error", "info", "warn"]
STATUSES = [200, 201, 304, 404, 500, 503]
WORDS = 20_000
TITLE_WORDS, MESSAGE_WORDS = 5, 15
#: An event as it is sent, on average.
EVENT_BYTES = 290

_LEVEL_SHARES, _STATUS_SHARES = [0.5, 0.05, 0.35, 0.1], [0.6, 0.1, 0.1, 0.1, 0.06, 0.04]
_SCATTER = np.uint64(0x9E3779B97F4A7C15)
_SYLLABLES = [first + last for first in "bdfgklmnprstvz" for last in "aeiou"]

Column = NDArray[Any]


class Block(NamedTuple):
    """Events in columns: services, levels, statuses and words are places in the lists above."""

    at: Column
    service: Column
    level: Column
    request: Column
    status: Column
    ms: Column
    title: Column
    message: Column


def block(number: int) -> Block:
    """The events of one block."""
    chance = np.random.default_rng([20, number])
    numbers = np.arange(number * BLOCK, (number + 1) * BLOCK)
    texts = [
        np.searchsorted(_odds(), chance.random((BLOCK, words))).astype(np.int16)
        for words in (TITLE_WORDS, MESSAGE_WORDS)
    ]
    return Block(
        at=START_MS + numbers * STEP_MS,
        service=chance.integers(0, len(SERVICES), BLOCK),
        level=chance.choice(len(LEVELS), BLOCK, p=_LEVEL_SHARES),
        request=numbers.astype(np.uint64) * _SCATTER,
        status=chance.choice(len(STATUSES), BLOCK, p=_STATUS_SHARES),
        ms=np.round(np.exp2(chance.uniform(-1, 12, BLOCK)), 2),
        title=texts[0],
        message=texts[1],
    )


def blocks(first: int, count: int) -> Iterator[Block]:
    """Events numbered from `first`."""
    for number in range(first // BLOCK, -(-(first + count) // BLOCK)):
        start = number * BLOCK
        wanted = slice(max(0, first - start), first + count - start)
        yield Block(*(column[wanted] for column in block(number)))


def encoded(events: Block) -> list[bytes]:
    """Events as JSON."""
    words = vocabulary()
    times = np.datetime_as_string(events.at.astype("datetime64[ms]"), timezone="UTC")
    columns = [column.tolist() for column in (events.service, events.level, events.request, events.status, events.ms)]
    texts = [
        [" ".join([words[place] for place in row]) for row in column.tolist()]
        for column in (events.title, events.message)
    ]
    return [
        (
            f'{{"at":"{at}","service":"{SERVICES[service]}","level":"{LEVELS[level]}","request":"{request:016x}",'
            f'"status":{STATUSES[status]},"ms":{ms},"title":"{title}","message":"{message}"}}'
        ).encode()
        for at, service, level, request, status, ms, title, message in zip(times, *columns, *texts, strict=True)
    ]


def arrays(first: int, count: int) -> Iterator[bytes]:
    """The same events as JSON arrays of a hundred."""
    for events in map(encoded, blocks(first, count)):
        for start in range(0, len(events), ARRAY):
            yield b"[" + b",".join(events[start : start + ARRAY]) + b"]"


def whole(count: int) -> Block:
    """The first events in one block."""
    return Block(*(np.concatenate(columns) for columns in zip(*blocks(0, count), strict=True)))


def request_name(number: int) -> str:
    """The value of `request` that only the event of this number has."""
    return f"{number * int(_SCATTER) % 2**64:016x}"


@cache
def vocabulary() -> list[str]:
    """All words, the most frequent first."""
    size = len(_SYLLABLES)
    spelled = (number * 7919 % size**3 for number in range(WORDS))
    return [_SYLLABLES[n // size**2] + _SYLLABLES[n // size % size] + _SYLLABLES[n % size] for n in spelled]


@cache
def _odds() -> Column:
    """By Zipf: how likely a word is among those up to it."""
    shares = 1 / np.arange(1, WORDS + 1)
    return np.cumsum(shares / shares.sum())[:-1]

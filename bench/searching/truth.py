"""What answers must say, counted in the events themselves; servers that say otherwise are in trouble."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.requests import stream_path
from bench.searching import data
from bench.searching.asking import Caller
from bench.searching.questions import AGGREGATES, SEARCHES, Ask, Question, some
from bench.searching.shape import STREAM

#: As many hits as every server gives at once; where there are fewer, their number is that of all matches.
MOST_HITS = 500
_ENOUGH = 400
_CLOSE = 1e-9

Flags = NDArray[Any]


def troubles(caller: Caller, events: data.Block) -> dict[str, str]:
    """What is wrong, by the kind of question."""
    checks = [(name, {**question, "size": MOST_HITS}, expected) for name, question, expected in _searches(events)]
    if _counts_all(caller):
        counting = {"size": 1, "track_total_hits": True}
        checks += [(name, {**question, **counting}, expected) for name, question, expected in _frequent(events)]
    found: dict[str, str] = {}
    for name, question, expected in checks:
        found[name] = found.get(name, "") + _wrong_search(caller, question, expected)
    return found | {name: _wrong_aggregate(caller, events, ask) for name, ask in AGGREGATES.items()}


def _wrong_search(caller: Caller, question: Question, expected: int) -> str:
    """What is wrong with an answer; nothing where there was no time for all of it."""
    answer = caller.on_stream("_search", question)
    if answer.status == 408:
        return ""
    told = answer.json()
    total = told["total"]["value"] if "track_total_hits" in question else len(told["hits"])
    return "" if total == expected else f"{question['q']} has {total:,} matches, and {expected:,} events match. "


def _counts_all(caller: Caller) -> bool:
    """Whether a server tells how many matches there are, where it is asked to."""
    asked = {"q": "level:error", "size": 0, "track_total_hits": True}
    return caller.ask("POST", f"{stream_path(STREAM)}/_search", asked).status == 200


def _searches(events: data.Block) -> Iterator[tuple[str, Question, int]]:
    """Questions with few enough matches, and how many."""
    number = len(events.at) // 3
    yield "a needle", {"q": f"request:{data.request_name(number)}"}, 1
    yield "prefix", {"q": "request:9e3*"}, _sum(_begins(events, "9e3"))
    mixed = _begins(events, "5c") & (events.service == 7)
    yield "exact", {"q": f"service:{data.SERVICES[7]} request:5c*"}, _sum(mixed)
    slow = (events.service == 9) & (events.ms >= 3600.25)
    query = f"service:{data.SERVICES[9]} ms:>=3600.25"
    yield "exact and range, newest first", {"q": query, "sort": ["at:desc"]}, _sum(slow)
    mixed = _begins(events, "7d") & (events.service == 11)
    yield "sorted by a number", {"q": f"service:{data.SERVICES[11]} request:7d*", "sort": ["ms:desc"]}, _sum(mixed)
    words = data.vocabulary()
    yield from _few("one text term", ((f"message:{words[rank]}", _has(events, rank)) for rank in count(1000, 500)))
    pairs = ((f'message:"{words[rank]} {words[rank + 1]}"', _phrase(events, rank, rank + 1)) for rank in count(8))
    yield from _few("phrase", pairs)
    both = (
        (f"{words[rank]} {words[rank + 1]}", _anywhere(events, rank) & _anywhere(events, rank + 1))
        for rank in count(60, 5)
    )
    yield from _few("two bare terms", both)


def _few(name: str, candidates: Iterator[tuple[str, Flags]]) -> Iterator[tuple[str, Question, int]]:
    """The first question that has few enough matches."""
    query, matches = next(one for one in candidates if _sum(one[1]) <= _ENOUGH)
    yield name, {"q": query}, _sum(matches)


def _frequent(events: data.Block) -> Iterator[tuple[str, Question, int]]:
    """The very questions of a series, where they have many matches."""
    words = {word: rank for rank, word in enumerate(data.vocabulary())}
    for name in ("exact", "phrase", "one text term", "two bare terms"):
        question = next(some(SEARCHES[name], len(events.at)))
        field, _, value = question["q"].rpartition(":")
        if name == "exact":
            matches = events.service == data.SERVICES.index(value)
        elif name == "phrase":
            matches = _phrase(events, *(words[word] for word in value.strip('"').split()))
        elif field:
            matches = _has(events, words[value])
        else:
            first, second = (_anywhere(events, words[word]) for word in value.split())
            matches = first & second
        yield name, question, _sum(matches)


def _wrong_aggregate(caller: Caller, events: data.Block, ask: Ask) -> str:
    question = next(some(ask, len(events.at)))
    least = float(question["q"].removeprefix("ms:>=")) if "q" in question else 0.0
    expected = _groups(events, events.ms >= least, bool(question.get("group_by")))
    answer = caller.on_stream("_aggregate", question)
    told = expected if answer.status == 408 else _told(answer.json())
    if told.keys() == expected.keys() and all(_alike(told[key], expected[key]) for key in told):
        return ""
    return f"{question}: {len(told):,} groups that are not the {len(expected):,} of the events. "


def _groups(events: data.Block, chosen: Flags, dimensions: bool) -> dict[Any, tuple[int, float]]:
    """How many events each group has, and how long they took together."""
    hours = events.at // data.HOUR_MS
    codes = hours * 100
    if dimensions:
        codes = codes + 10 * events.level + events.status + 11
    places, index = np.unique(codes[chosen], return_inverse=True)
    sizes, sums = np.bincount(index), np.bincount(index, weights=events.ms[chosen])
    return {
        (place // 100, *_names(place % 100)): (size, total)
        for place, size, total in zip(places.tolist(), sizes.tolist(), sums.tolist(), strict=True)
    }


def _names(code: int) -> tuple[Any, ...]:
    return (data.LEVELS[code // 10 - 1], data.STATUSES[code % 10 - 1]) if code else ()


def _told(answer: dict[str, Any]) -> dict[Any, tuple[int, float]]:
    return {
        (_hour(bucket["start"]), *map(_plain, group["key"].values())): (
            group["measures"]["requests"]["count"],
            group["measures"]["latency"]["sum"],
        )
        for bucket in answer["buckets"]
        for group in bucket["groups"]
    }


def _hour(text: str) -> int:
    return int(np.datetime64(text.removesuffix("Z"), "h").astype(int))


def _plain(value: Any) -> Any:
    """Prisma spells every dimension as a text."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _alike(told: tuple[int, float], expected: tuple[int, float]) -> bool:
    return told[0] == expected[0] and math.isclose(told[1], expected[1], rel_tol=_CLOSE)


def _begins(events: data.Block, digits: str) -> Flags:
    matches: Flags = (events.request >> np.uint64(64 - 4 * len(digits))) == int(digits, 16)
    return matches


def _has(events: data.Block, rank: int) -> Flags:
    matches: Flags = (events.message == rank).any(axis=1)
    return matches


def _anywhere(events: data.Block, rank: int) -> Flags:
    matches: Flags = _has(events, rank) | (events.title == rank).any(axis=1)
    return matches


def _phrase(events: data.Block, first: int, second: int) -> Flags:
    found = np.zeros(len(events.at), np.bool_)
    for before, after in pairwise(events.message.T):
        found |= (before == first) & (after == second)
    return found


def _sum(matches: Flags) -> int:
    return int(matches.sum())

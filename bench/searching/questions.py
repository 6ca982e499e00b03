"""What is asked: searches and aggregates of several kinds, each question of a kind with other values than the last."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from bench.searching import data
from bench.searching.asking import REPETITIONS
from bench.searching.shape import ROLLUP

Question = dict[str, Any]
Ask = Callable[[random.Random, int], Question]

SIZE = 50
#: Hexadecimal digits of a prefix: one event in 4,096 has it.
PREFIX_DIGITS = 3
#: Words by their rank: among the first are those that every other event has.
_OFTEN, _SELDOM = range(5, 60), range(20, 120)


def exact(choose: random.Random, _events: int) -> Question:
    """One service of 48."""
    return _search(f"service:{choose.choice(data.SERVICES)}")


def prefix(choose: random.Random, _events: int) -> Question:
    """The beginning of a request."""
    return _search(f"request:{choose.randrange(16**PREFIX_DIGITS):0{PREFIX_DIGITS}x}*")


def needle(choose: random.Random, events: int) -> Question:
    """A value that one event has."""
    return _search(f"request:{data.request_name(choose.randrange(events))}")


def range_by_time(choose: random.Random, _events: int) -> Question:
    """One service and slow ones of it, the newest first."""
    least = choose.randrange(500_00, 3000_00) / 100
    return _search(f"service:{choose.choice(data.SERVICES)} ms:>={least}", sort=["at:desc"])


def by_number(choose: random.Random, _events: int) -> Question:
    """One service, the slowest first."""
    return _search(f"service:{choose.choice(data.SERVICES)}", sort=["ms:desc"])


def phrase(choose: random.Random, _events: int) -> Question:
    """Two frequent words, one after the other."""
    return _search(f'message:"{" ".join(_words(choose, _OFTEN, 2))}"')


def term(choose: random.Random, _events: int) -> Question:
    """One word of a text."""
    return _search(f"message:{_words(choose, _SELDOM, 1)[0]}")


def bare(choose: random.Random, _events: int) -> Question:
    """Two words anywhere in the texts."""
    return _search(" ".join(_words(choose, _OFTEN, 2)))


def by_hour(choose: random.Random, events: int) -> Question:
    """Everything by the hour; what ends later is another question with the same answer."""
    start, end = whole_range(events)
    return {"rollup": ROLLUP, "interval": "1h", "from": start, "to": end + choose.randrange(64) * data.HOUR_MS}


def by_dimensions(choose: random.Random, events: int) -> Question:
    """The same for every level and status."""
    return {**by_hour(choose, events), "group_by": ["level", "status"]}


def by_hour_within(choose: random.Random, events: int) -> Question:
    """Those that took longer than something, by the hour."""
    return {**by_hour(choose, events), "q": f"ms:>={choose.randrange(100_00, 1000_00) / 100}"}


SEARCHES: dict[str, Ask] = {
    "exact": exact,
    "prefix": prefix,
    "a needle": needle,
    "exact and range, newest first": range_by_time,
    "sorted by a number": by_number,
    "phrase": phrase,
    "one text term": term,
    "two bare terms": bare,
}
AGGREGATES: dict[str, Ask] = {
    "by hour": by_hour,
    "by hour and two dimensions": by_dimensions,
    "by hour with a range q": by_hour_within,
}


def some(ask: Ask, events: int) -> Iterator[Question]:
    """Enough different questions of a kind for a series; the same ones in every run."""
    choose, known = random.Random(ask.__name__), list[Question]()
    while len(known) <= REPETITIONS:
        question = ask(choose, events)
        if question not in known:
            known.append(question)
            yield question


def whole_range(events: int) -> tuple[int, int]:
    """Whole hours from the first event to the last."""
    hours = -(-events * data.STEP_MS // data.HOUR_MS)
    return data.START_MS, data.START_MS + hours * data.HOUR_MS


def _words(choose: random.Random, ranks: range, count: int) -> list[str]:
    return [data.vocabulary()[rank] for rank in choose.sample(ranks, count)]


def _search(q: str, **more: Any) -> Question:
    return {"q": q, "size": SIZE, **more}

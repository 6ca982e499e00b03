"""Which event has which key, and which keys are asked for: by chance, and the same in every run."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator


def assigned(keys: int, batch: int) -> Iterator[list[int]]:
    """The keys of events, `batch` at a time, without end."""
    numbers, choose = range(keys), random.Random(3)
    while True:
        yield choose.choices(numbers, k=batch)


def probed(keys: int, count: int) -> list[int]:
    """Some of the keys."""
    return random.Random(4).sample(range(keys), count)


def held(keys: int, batch: int, requests: int, wanted: list[int]) -> list[int]:
    """How many events each of the wanted keys has, after so many requests."""
    counted = Counter(itertools.chain.from_iterable(itertools.islice(assigned(keys, batch), requests)))
    return [counted[key] for key in wanted]

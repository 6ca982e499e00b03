"""Items are read ahead by a bounded number, errors come through, and the thread ends with the block."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.client.importer.prefetch import prefetch


def test_items_come_in_order() -> None:
    with prefetch(iter(range(100)), 3) as items:
        assert list(items) == list(range(100))


def test_no_more_is_read_than_is_allowed() -> None:
    made, is_full = [], threading.Event()

    def make() -> Iterator[int]:
        for number in range(10):
            made.append(number)
            if number == 2:
                is_full.set()
            yield number

    with prefetch(make(), 3):
        assert is_full.wait(10)
    assert made == [0, 1, 2]


def test_an_error_of_the_items_is_that_of_who_takes_them() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise OSError("the file is gone")

    with prefetch(make(), 3) as items:
        assert next(items) == 1
        with pytest.raises(OSError, match="the file is gone"):
            next(items)


def test_the_thread_ends_where_items_are_left() -> None:
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt), prefetch(iter(range(1_000_000)), 2) as items:
        next(items)
        raise KeyboardInterrupt
    assert threading.active_count() == threads

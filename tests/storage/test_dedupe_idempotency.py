"""Answers of requests with keys: found again as they were, and forgotten once they are old or too many."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage import database
from headrace.storage.database import Connection
from headrace.storage.dedupe import Idempotency, StoredAnswer


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    opened = database.connect(tmp_path / "x.db", cache_bytes=1 << 20)
    database.migrate(opened)
    yield opened
    opened.close()


@pytest.fixture
def records(connection: Connection) -> Idempotency:
    return Idempotency(connection)


@pytest.mark.parametrize("answer", [b"", b"{}", b"the same again " * 1000, os.urandom(5000)])
def test_an_answer_is_found_as_it_was_by_its_user_and_key(records: Idempotency, answer: bytes) -> None:
    records.save("ann", "k", StoredAnswer(b"digest", answer), 5)
    assert records.find("ann", "k") == StoredAnswer(b"digest", answer)
    assert records.find("ben", "k") is None and records.find("ann", "l") is None


def test_the_text_of_a_key_is_not_stored_and_older_rows_that_have_it_are_found(
    records: Idempotency, connection: Connection
) -> None:
    records.save("ann", "k", StoredAnswer(b"digest", b""), 5)
    stored = connection.execute("SELECT key FROM idempotency").get
    assert stored.startswith("sha256:") and records.find("ann", stored) is None
    connection.execute("UPDATE idempotency SET key = 'k'")
    assert records.find("ann", "k") == StoredAnswer(b"digest", b"")


def kept(records: Idempotency) -> list[int]:
    return [number for number in range(10) if records.find("u", str(number)) is not None]


@pytest.fixture
def ten(records: Idempotency) -> Idempotency:
    for number in range(10):
        records.save("u", str(number), StoredAnswer(b"d", os.urandom(1000)), number)
    return records


def test_old_answers_are_forgotten(ten: Idempotency) -> None:
    assert ten.forget(4, 100, 1 << 20, 100) == 4
    assert kept(ten) == [4, 5, 6, 7, 8, 9]


def test_so_many_answers_and_bytes_are_kept_the_newest_ones(ten: Idempotency) -> None:
    assert ten.forget(0, 7, 1 << 20, 100) == 3
    assert kept(ten) == [3, 4, 5, 6, 7, 8, 9]
    assert ten.forget(0, 100, 4_500, 100) == 3
    assert kept(ten) == [6, 7, 8, 9]
    assert ten.forget(0, 100, 4_500, 100) == 0


def test_no_more_are_forgotten_at_once_than_asked_for(ten: Idempotency) -> None:
    assert [ten.forget(9, 100, 1 << 20, 4) for _ in range(3)] == [4, 4, 1]

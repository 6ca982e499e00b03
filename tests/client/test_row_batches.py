"""Rows are cut into batches, and the server's answers say which rows are appended."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import row_batches
from headrace.client.answers import Answer
from headrace.client.row_batches import Chunk, RefusedRow, RowAppends, cut_batches
from headrace.errors import BadRequest, TooLarge

SIZES = st.lists(st.integers(0, 12), max_size=60)


@given(sizes=SIZES, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_batches_depend_on_the_rows_and_not_on_the_chunks(sizes: list[int], cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_batches, "BATCH_ROWS", 7)
        patch.setattr(row_batches, "BATCH_BYTES", 30)
        texts = [str(number % 10) * (size + 1) for number, size in enumerate(sizes)]
        edges = sorted({0, len(texts), *(cut for cut in cuts if cut <= len(texts))})
        chunks = [_chunk(texts, first, end) for first, end in itertools.pairwise(edges)]
        batches = [batch.rows.to_pylist() for batch in cut_batches(iter(chunks), lambda bad: None)]
        whole = [
            batch.rows.to_pylist() for batch in cut_batches(iter([_chunk(texts, 0, len(texts))]), lambda bad: None)
        ]
    assert [text for batch in batches for text in batch] == texts
    assert batches == whole
    for batch in batches:
        assert len(batch) <= 7
        assert len(batch) == 1 or sum(len(text) + 1 for text in batch) <= 30


def _chunk(texts: list[str], first: int, end: int) -> Chunk:
    return Chunk("file", pa.array(range(first + 1, end + 1), pa.int64()), pa.array(texts[first:end], pa.string()), [])


@given(cuts=st.lists(st.integers(1, 40), max_size=4))
def test_rows_of_batches_know_their_files(cuts: list[int]) -> None:
    edges = sorted({0, 40, *cuts})
    chunks = [
        Chunk(f"file{first}", pa.array(range(first, end), pa.int64()), pa.array(["x"] * (end - first), pa.string()), [])
        for first, end in itertools.pairwise(edges)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_batches, "BATCH_ROWS", 9)
        batches = list(cut_batches(iter(chunks), lambda bad: None))
    located = [batch.locate(index) for batch in batches for index in range(len(batch.rows))]
    assert located == [(f"file{max(edge for edge in edges if edge <= n)}", n) for n in range(40)]


def _appends(count: int, *, refused: list[RefusedRow] | None = None, seen: list[int] | None = None) -> RowAppends:
    texts = [str(number) for number in range(count)]
    return RowAppends(
        "s",
        "p",
        cut_batches(iter([_chunk(texts, 0, count)]), lambda bad: None),
        on_refused=([] if refused is None else refused).append,
        on_rows=([] if seen is None else seen).append,
    )


def _taken(seq: int, *, status: int = 200) -> Answer:
    return Answer(status, {"stream-next-offset": f"o{seq}", "producer-seq": str(seq)})


def _refusal(*failures: tuple[int, str]) -> BadRequest:
    return BadRequest(
        "no", failures=[{"index": index, "pointer": pointer, "reason": "wrong"} for index, pointer in failures]
    )


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batches, "BATCH_ROWS", 3)


def test_batches_are_the_requests_of_one_producer() -> None:
    seen: list[int] = []
    appends = _appends(7, seen=seen)
    bodies = []
    for seq in range(3):
        request = appends.next_request()
        assert request is not None
        assert request.headers["producer-seq"] == str(seq)
        assert not request.changes, "it may be repeated after any failure"
        bodies.append(request.body)
        appends.accept(_taken(seq))
    assert appends.next_request() is None
    assert bodies == [b"[0,1,2]", b"[3,4,5]", b"[6]"]
    assert (appends.appended, appends.already_there, appends.next_offset, seen) == (7, 0, "o2", [3, 3, 1])


def test_batches_that_the_server_has_are_not_sent() -> None:
    appends = _appends(7)
    appends.next_request()
    appends.accept(_taken(1, status=204))
    request = appends.next_request()
    assert request is not None and request.headers["producer-seq"] == "2"
    appends.accept(_taken(2))
    assert (appends.appended, appends.already_there) == (1, 6)


def test_rows_that_are_refused_are_left_out_and_named() -> None:
    refused: list[RefusedRow] = []
    appends = _appends(7, refused=refused)
    appends.next_request()
    appends.refuse(_refusal((1, "/a"), (1, "/b")))
    request = appends.next_request()
    assert request is not None and request.body == b"[0,2]" and request.headers["producer-seq"] == "0"
    appends.refuse(_refusal((1, "")))
    request = appends.next_request()
    assert request is not None and request.body == b"[0]"
    assert [(row.number, row.text, row.failures) for row in refused] == [
        (2, "1", [("/a", "wrong"), ("/b", "wrong")]),
        (3, "2", [("", "wrong")]),
    ]


def test_a_batch_of_which_nothing_is_left_must_be_the_last() -> None:
    appends = _appends(4)
    appends.next_request()
    appends.accept(_taken(0))
    appends.next_request()
    appends.refuse(_refusal((0, "")))
    assert appends.next_request() is None
    appends = _appends(4)
    appends.next_request()
    with pytest.raises(BadRequest, match="none of 3 rows from row 1 of file on fits"):
        appends.refuse(_refusal((0, ""), (1, ""), (2, "")))


def test_other_refusals_are_raised() -> None:
    appends = _appends(4)
    appends.next_request()
    with pytest.raises(BadRequest, match=r"^no$"):
        appends.refuse(BadRequest("no"))
    with pytest.raises(TooLarge, match=r"limits\.body_bytes"):
        appends.refuse(TooLarge("too large"))

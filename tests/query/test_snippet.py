from __future__ import annotations

from typing import Any

import pytest

from headrace.query.snippet import LENGTH, snippets
from headrace.query.syntax import parse
from query.declarations import SEARCH


def shown(query: str, **document: Any) -> dict[str, str]:
    return snippets(parse(query), SEARCH, document)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("message:disk", "the <em>Disk</em> is full, disks fail"),
        ("message:disk*", "the <em>Disk</em> is full, <em>disks</em> fail"),
        ('message:"is full"', "the Disk <em>is</em> <em>full</em>, disks fail"),
        ('message:"full dis*"', "the Disk is <em>full</em>, <em>disks</em> fail"),
        ("message:full message:the", "<em>the</em> Disk is <em>full</em>, disks fail"),
        ("contains:message:isk", "the D<em>isk</em> is full, d<em>isk</em>s fail"),
        ("contains:message:disk message:disk*", "the <em>Disk</em> is full, <em>disks</em> fail"),
        ("fail", "the Disk is full, disks <em>fail</em>"),
    ],
)
def test_what_was_asked_for_is_marked(query: str, wanted: str) -> None:
    assert shown(query, message="the Disk is full, disks fail") == {"message": wanted}


def test_what_does_not_answer_is_not_marked() -> None:
    text = "the disk is full"
    assert shown('message:"disk full"', message=text) == {}
    assert shown("-message:disk", message=text) == {}
    assert shown("has:message status:5", message=text) == {}
    assert shown("message:disk-pear", message=text) == {}
    assert shown("message:disk", message=5) == shown("message:disk") == {}


def test_markup_of_the_text_is_escaped() -> None:
    found = shown('contains:message:"<b>"', message='<b>1</b> & "2"')
    assert found == {"message": '<em>&lt;b&gt;</em>1&lt;/b&gt; &amp; "2"'}


def test_of_several_values_the_one_with_most_marks_is_shown() -> None:
    assert shown("message:a", message=["x a", "a a a", "b"]) == {"message": "<em>a</em> <em>a</em> <em>a</em>"}


def test_keywords_are_marked_whole_or_where_they_begin() -> None:
    assert shown("service:API", service="api") == {"service": "<em>api</em>"}
    assert shown("service:AP*", service=["x", "Api"]) == {"service": "<em>Ap</em>i"}
    assert shown("contains:path:a", path="/a/A/a") == {"path": "/<em>a</em>/A/<em>a</em>"}
    assert shown("x", request="x", why="y x") == {"request": "<em>x</em>", "why": "y <em>x</em>"}


def test_a_long_text_is_cut_around_the_first_mark() -> None:
    text = "before " * 40 + "needle " + "after " * 60
    piece = shown("message:needle", message=text)["message"]
    assert piece.startswith("…before") and piece.endswith("after…") and "<em>needle</em>" in piece
    assert len(piece) <= LENGTH + len("……<em></em>")
    assert piece.strip("…").replace("<em>", "").replace("</em>", "") in text


def test_a_mark_is_never_cut() -> None:
    word = "x" * 500
    assert shown(f"message:{word}", message=f"{'a' * 100}.{word}.b")["message"].count(word) == 1

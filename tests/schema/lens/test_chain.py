"""Lenses in a row, over whole bodies: both ways, which entry failed, and what comes back untouched."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.lens.chain import LensChain
from headrace.schema.lens.values import LensFailure
from schema.lens.oracle import load, spell
from schema.lens.strategies import Case, Manner, cases
from schema.lens.wire import add, convert, each, lens, plunge, remove, rename, wrap

CHAIN = LensChain(
    {
        1: lens(rename("/a", "/b"), version=1),
        2: lens(version=2),
        3: lens({"op": "add", "path": "/c", "schema": True}, version=3),
        4: lens(convert("/b", {"x": "X", "y": "Y"}), version=4),
    },
    {4: {"properties": {"c": {"default": 0}}}},
)


@pytest.mark.parametrize(
    ("joined", "source", "target", "expected"),
    [
        (b'{"a":"x"}', 1, 5, b'{"b":"X","c":0}'),
        (b'{"a":"x"},{"a":"y"}', 1, 2, b'{"b":"x"},{"b":"y"}'),
        (b'{"b":"x"}', 2, 4, b'{"b":"x","c":0}'),
        (b'{"b":"X","c":1}', 5, 1, b'{"a":"x"}'),
        (b'{"b":"X","c":1}', 5, 4, b'{"b":"x","c":1}'),
        (b'{"a" : "x"} , {"a":"y" }', 1, 5, b'{"b":"X","c":0},{"b":"Y","c":0}'),
        (b"", 1, 5, b""),
    ],
)
def test_a_body_goes_from_any_version_to_any_other(joined: bytes, source: int, target: int, expected: bytes) -> None:
    assert CHAIN.promote(joined, source, target) == expected


@pytest.mark.parametrize(("source", "target"), [(1, 1), (5, 5), (2, 3), (3, 2), (7, 7)])
def test_a_body_stays_the_same_object_where_no_op_is_on_the_way(source: int, target: int) -> None:
    joined = b'{"a" : 1.0 } ,\t[ 2]'
    assert CHAIN.promote(joined, source, target) is joined


def test_a_failure_names_the_entry_the_lens_the_op_and_the_pointer() -> None:
    with pytest.raises(LensFailure) as caught:
        CHAIN.promote(b'{"a":"x"},{"a":"z"},{}', 1, 5)
    failed = caught.value
    assert failed.entry == 1
    assert failed.version == 4
    assert failed.op == (0,)
    assert failed.where == "/b"
    assert str(failed) == "lens 4, /ops/0: the table has no entry for 'z' (/b)"


def test_a_failure_on_the_way_back_names_the_lens_that_it_undoes() -> None:
    with pytest.raises(LensFailure) as caught:
        CHAIN.promote(b'{"b":"X"},{"b":"Z"}', 5, 1)
    assert caught.value.entry == 1
    assert caught.value.version == 4


def test_the_first_entry_that_fails_is_named() -> None:
    with pytest.raises(LensFailure) as caught:
        CHAIN.promote(b'{"a":"x"},{"a":"z"},{"b":"x"}', 1, 5)
    assert caught.value.entry == 1


@pytest.mark.parametrize("entry", [b"[1]", b"7", b'"text"', b"null"])
def test_entries_that_are_no_objects_fail_like_others(entry: bytes) -> None:
    with pytest.raises(LensFailure) as caught:
        CHAIN.promote(b'{"a":"x"},' + entry, 1, 5)
    assert caught.value.entry == 1
    assert caught.value.version == 1


def test_entries_of_all_kinds_pass_a_lens_that_takes_them() -> None:
    chain = LensChain({1: lens(wrap(""))}, {})
    joined = b'{"a":1.0} ,[ 1] , "x" ,null,1e5, true'
    assert chain.promote(joined, 1, 2) == b'[{"a":1.0}],[[ 1]],["x"],[null],[1e5],[true]'
    assert chain.promote(b'[{"a":1.0}],[[ 1]],["x"]', 2, 1) == b'{"a":1.0},[ 1],"x"'


def test_a_break_in_the_chain_is_a_failure_whichever_way_one_comes() -> None:
    chain = LensChain({1: lens(), 3: lens(version=3)}, {})
    for source, target in [(1, 4), (4, 1), (2, 3)]:
        with pytest.raises(LensFailure, match="no lens leads from version 2 to version 3"):
            chain.promote(b"{}", source, target)
    assert chain.promote(b"{}", 3, 4) == b"{}"


@pytest.mark.parametrize("opening", ["[", '{"k":'])
def test_bodies_of_any_depth_are_promoted(opening: str) -> None:
    deep = opening * 20_000 + "7" + {"[": "]", '{"k":': "}"}[opening] * 20_000
    joined = f'{{"a":"x","d":{deep}}}, {{ "d" : {deep} , "a":"y"}}'.encode()
    assert CHAIN.promote(joined, 1, 5) == (f'{{"d":{deep},"b":"X","c":0}},{{"d":{deep},"b":"Y","c":0}}'.encode())


def test_a_body_that_was_taken_is_promoted_from_further_down_the_stack() -> None:
    deep = b'{"a":"x","d":' + b"[" * 900 + b"]" * 900 + b"}"

    def down(frames: int) -> bytes:
        return CHAIN.promote(deep, 1, 2) if not frames else down(frames - 1)

    assert down(200).endswith(b',"b":"x"}')


def test_events_share_nothing_that_can_change() -> None:
    chain = LensChain({1: lens(add("/h", {"l": []}), plunge("/a", "/h", "a"), each("/h/l", remove("/x")))}, {})
    assert chain.promote(b'{"a":1},{"a":2}', 1, 2) == b'{"h":{"l":[],"a":1}},{"h":{"l":[],"a":2}}'
    assert chain.promote(b'{"a":3}', 1, 2) == b'{"h":{"l":[],"a":3}}'


def test_a_chain_may_be_used_by_threads() -> None:
    chain = LensChain({1: lens(rename("/a", "/b")), 2: lens(wrap("/b"), version=2)}, {})
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: chain.promote(b'{"a":%d}' % n, 1, 3), range(200))
    assert list(answers) == [b'{"b":[%d]}' % n for n in range(200)]


@settings(max_examples=1_000)
@given(cases(Manner.LOOSE, lenses=3), st.integers(0, 3))
def test_a_chain_is_its_lenses_one_after_the_other(case: Case, style: int) -> None:
    chain = LensChain(case.lenses, {1: case.schema})
    for version in range(1, case.latest + 1):
        joined = b",".join(spell(document, style) for document in case.documents[version - 1])
        assert load(b"[" + chain.promote(joined, version, case.latest) + b"]") == case.documents[-1]

"""Promotion: what each op does, what it refuses, and what keeps its bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.entries import split_at_commas
from headrace.schema.lens.forward import forward, run
from headrace.schema.lens.ops import Add
from headrace.schema.lens.values import LensFailure, Raw, _members, encode_value
from schema.lens.oracle import Refused, load, promoted, spell
from schema.lens.strategies import Case, Manner, cases
from schema.lens.wire import (
    add,
    convert,
    copy,
    each,
    head,
    hoist,
    lens,
    plunge,
    remove,
    rename,
    through,
    within,
    wrap,
)


def promote(document: str, *ops: dict[str, Any]) -> str:
    return through(forward(lens(*ops).ops), document.encode()).decode()


def failure(document: str, *ops: dict[str, Any]) -> tuple[tuple[int, ...], str, str]:
    with pytest.raises(LensFailure) as caught:
        promote(document, *ops)
    return caught.value.op, caught.value.where, caught.value.reason


@pytest.mark.parametrize(
    ("before", "op", "after"),
    [
        ('{"a":1,"b":2}', rename("/a", "/c"), '{"b":2,"c":1}'),
        ('{"a":1,"b":2}', rename("/a", "/b"), '{"b":1}'),
        ('{"a":{"b":1,"c":2}}', rename("/a/b", "/a"), '{"a":1}'),
        ('{"a":[1,2,3]}', rename("/a/0", "/b"), '{"a":[2,3],"b":1}'),
        ('{"a":[1,2,3]}', rename("/a/0", "/a/1"), '{"a":[1,3]}'),
        ('{"a/b":1,"~":{}}', rename("/a~1b", "/~0/x"), '{"~":{"x":1}}'),
        ('{"a":[1,{"x":2}]}', copy("/a/1", "/b"), '{"a":[1,{"x":2}],"b":{"x":2}}'),
        ('{"a":{"x":1}}', copy("/a", "/a/y"), '{"a":{"x":1,"y":{"x":1}}}'),
        ('{"a":1}', copy("", "/all"), '{"a":1,"all":{"a":1}}'),
        ("{}", add("/a", None), '{"a":null}'),
        ('{"a":{}}', add("/a/b", {"c": []}), '{"a":{"b":{"c":[]}}}'),
        ('{"a":5}', add("/a", 0, overwrite=True), '{"a":0}'),
        ('{"a":[5,6]}', add("/a/1", 0, overwrite=True), '{"a":[5,0]}'),
        ('{"a":null,"b":1}', remove("/a"), '{"b":1}'),
        ('{"a":[1,2]}', remove("/a/0"), '{"a":[2]}'),
        ('{"h":{"n":1,"m":2}}', hoist("/h", "n", "/n"), '{"h":{"m":2},"n":1}'),
        ('{"h":{"n":1}}', hoist("/h", "n", "/n", removeFromHost=False), '{"h":{"n":1},"n":1}'),
        ('{"h":{"n":1,"m":2}}', hoist("/h", "n", "/h"), '{"h":1}'),
        ('{"h":{"0":1}}', hoist("/h", "0", "/n"), '{"h":{},"n":1}'),
        ('{"a":1}', plunge("/a", "/h", "n"), '{"h":{"n":1}}'),
        ('{"a":1}', plunge("/a", "/x/y", "n"), '{"x":{"y":{"n":1}}}'),
        ('{"a":1,"h":{"m":2}}', plunge("/a", "/h", "n"), '{"h":{"m":2,"n":1}}'),
        ('{"a":1}', plunge("/a", "/h", "n", removeFromSource=False), '{"a":1,"h":{"n":1}}'),
        ('{"a":1}', plunge("/a", "", "b"), '{"b":1}'),
        ('{"a":null}', wrap("/a"), '{"a":[null]}'),
        ("7", wrap(""), "[7]"),
        ('{"a":[[1],2]}', head("/a"), '{"a":[1]}'),
        ("[7,8]", head(""), "7"),
        ('{"a":"x"}', convert("/a", {"x": "X"}), '{"a":"X"}'),
        ('"x"', convert("", {"x": "X"}), '"X"'),
        ('{"a":{"b":1}}', within("/a", rename("/b", "/c")), '{"a":{"c":1}}'),
        ('{"a":{"b":1}}', within("/a", rename("/b", "")), '{"a":1}'),
        ('{"a":1}', within("", rename("/a", "/b")), '{"b":1}'),
        ('{"a":[{"b":1},{"b":2}]}', each("/a", rename("/b", "/c")), '{"a":[{"c":1},{"c":2}]}'),
        ('{"a":["x","y"]}', each("/a", convert("", {"x": "1", "y": "2"})), '{"a":["1","2"]}'),
        ('{"a":[{"id":1},{"id":2}]}', each("/a", hoist("", "id", "")), '{"a":[1,2]}'),
        ('{"a":[[{"b":[1]}]]}', each("/a", each("", within("", head("/b")))), '{"a":[[{"b":1}]]}'),
        ('[{"a":1},{"a":2}]', each("", remove("/a")), "[{},{}]"),
    ],
)
def test_an_op_does_what_it_says(before: str, op: dict[str, Any], after: str) -> None:
    assert promote(before, op) == after


@pytest.mark.parametrize(
    ("before", "op", "where", "reason"),
    [
        ('{"b":1}', rename("/a", "/b"), "/a", "there is no value"),
        ('{"a":1}', rename("/a", "/b/c"), "/b/c", "there is nothing to put a value into"),
        ('{"a":1,"b":2}', rename("/a", "/b/c"), "/b/c", "there is nothing to put a value into"),
        ('{"a":1,"b":[2]}', rename("/a", "/b/1"), "/b/1", "there is nothing to put a value into"),
        ('{"a":1,"b":[2]}', rename("/a", "/b/-"), "/b/-", "there is nothing to put a value into"),
        ('{"a":[1]}', copy("/a/01", "/b"), "/a/01", "there is no value"),
        ('{"a":null}', add("/a", 0), "/a", "there is a value already"),
        ("[1]", add("/0", 0), "/0", "there is a value already"),
        ("{}", add("/a/b", 0), "/a/b", "there is nothing to put a value into"),
        ("{}", remove("/a"), "/a", "there is no value"),
        ('{"h":[1]}', hoist("/h", "0", "/n"), "/h", "the value is no object"),
        ('{"h":{}}', hoist("/h", "n", "/n"), "/h/n", "there is no value"),
        ("{}", plunge("/a", "/h", "n"), "/a", "there is no value"),
        ('{"a":1}', plunge("/a", "/h", "n", createHost=False), "/h", "there is no value"),
        ('{"a":1,"h":[]}', plunge("/a", "/h", "n"), "/h", "the value is no object"),
        ('{"a":1,"h":[]}', plunge("/a", "/h/0", "n"), "/h/0", "there is nothing to put a value into"),
        ("{}", wrap("/a"), "/a", "there is no value"),
        ('{"a":[]}', head("/a"), "/a", "the array is empty"),
        ('{"a":"x"}', head("/a"), "/a", "the value is no array"),
        ('{"a":1}', convert("/a", {}), "/a", "the value is not of type string, or out of its range"),
        ('{"a":"x"}', convert("/a", {}), "/a", "the table has no entry for 'x'"),
        ('{"a":[]}', within("/a"), "/a", "the value is no object"),
        ('{"a":{}}', each("/a"), "/a", "the value is no array"),
        ("7", rename("/a", "/b"), "/a", "there is no value"),
    ],
)
def test_an_op_refuses_what_it_does_not_apply_to(before: str, op: dict[str, Any], where: str, reason: str) -> None:
    assert failure(before, op) == ((0,), where, reason)


@pytest.mark.parametrize(
    "op",
    [
        rename("/x", "/y"),
        rename("/a/x", "/y/z"),
        copy("/x", "/y"),
        add("/x/y", 0),
        remove("/x"),
        hoist("/x", "n", "/n"),
        hoist("/o", "n", "/n"),
        plunge("/x", "/h", "n"),
        plunge("/x", "/a", "n", createHost=False),
        wrap("/x"),
        head("/x"),
        convert("/x", {}),
        within("/x", rename("/a", "/b")),
        each("/x", rename("/a", "/b")),
    ],
)
def test_an_optional_op_is_skipped_where_its_source_is_absent(op: dict[str, Any]) -> None:
    assert promote('{"a":1,"o":{}}', {**op, "optional": True}) == '{"a":1,"o":{}}'
    assert failure('{"a":1,"o":{}}', op)[0] == (0,)


@pytest.mark.parametrize(
    "op",
    [
        hoist("/a", "n", "/n"),
        plunge("/a", "/s", "n"),
        head("/a"),
        head("/e"),
        convert("/n", {}),
        within("/a"),
        each("/s"),
        add("/a/x", 0),
    ],
)
def test_an_optional_op_refuses_a_source_of_the_wrong_kind(op: dict[str, Any]) -> None:
    assert failure('{"a":1,"s":"x","e":[],"n":null}', {**op, "optional": True})[0] == (0,)


def test_a_failure_names_the_op_and_the_pointer_through_all_levels() -> None:
    ops = [wrap("/a"), within("/b", each("/c~1d", add("/y", 0), rename("/x", "/z")))]
    op, where, reason = failure('{"a":1,"b":{"c/d":[{"x":1},{}]}}', *ops)
    assert op == (1, 0, 1)
    assert where == "/b/c~1d/1/x"
    assert reason == "there is no value"


def test_a_failure_reads_as_a_sentence() -> None:
    with pytest.raises(LensFailure, match=r"^/ops/0/ops/0: there is no value \(/a/x\)$"):
        promote('{"a":{}}', within("/a", remove("/x")))


VERBATIM = (
    r'{"big":9007199254740993, "one":1.0,"exp":1e5 , "huge":1e400,"esc":"\u0041\/\ud83d\ude00",'
    r'"deep":{ "k" : [1.50 ] }}'
)


def test_values_that_no_op_touches_keep_their_bytes_and_their_order() -> None:
    after = promote(VERBATIM[:-1] + ',"a":0}', rename("/a", "/b"))
    assert after == (
        r'{"big":9007199254740993,"one":1.0,"exp":1e5,"huge":1e400,"esc":"\u0041\/\ud83d\ude00",'
        r'"deep":{ "k" : [1.50 ] },"b":0}'
    )


def test_values_that_move_keep_their_bytes() -> None:
    moves = [rename("/deep", "/moved"), plunge("/one", "/h", "n"), copy("/esc", "/h/e"), wrap("/exp")]
    after = promote(VERBATIM, *moves)
    assert after == (
        r'{"big":9007199254740993,"exp":[1e5],"huge":1e400,"esc":"\u0041\/\ud83d\ude00","moved":{ "k" : [1.50 ] },'
        r'"h":{"n":1.0,"e":"\u0041\/\ud83d\ude00"}}'
    )


def test_only_containers_on_the_way_of_an_op_are_opened() -> None:
    before = '{"a":{"b":{"x":1, "y":[ 2 ]},"c":{ "z":3 }},"d":[ ]}'
    assert promote(before, rename("/a/b/x", "/a/b/w")) == '{"a":{"b":{"y":[ 2 ],"w":1},"c":{ "z":3 }},"d":[ ]}'


@pytest.mark.parametrize("name", ['"', "\\", "\n", "\u2028", "é", "\x7f", "😀", "~", "/", ""])
def test_a_member_name_may_need_escapes(name: str) -> None:
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    before = spell({name: {"x": True}}, style=2).decode()
    assert load(promote(before, copy(pointer + "/x", pointer + "/y"))) == {name: {"x": True, "y": True}}


def test_a_default_is_not_shared_between_events_nor_between_places() -> None:
    ops = [add("/h", {"list": []}), copy("/h", "/i"), plunge("/a", "/h", "a"), wrap("/h/list")]
    steps = forward(lens(*ops).ops)
    holder: list[Any] = [Raw(b'{"a":1}'), Raw(b'{"a":2}')]
    for event in range(2):
        run(steps, holder, event)
    assert [load(bytes(encode_value(value))) for value in holder] == [
        {"h": {"list": [[]], "a": "1"}, "i": {"list": []}},
        {"h": {"list": [[]], "a": "2"}, "i": {"list": []}},
    ]


def test_a_copy_does_not_follow_its_source() -> None:
    ops = [wrap("/a/b"), copy("/a", "/c"), rename("/a/b", "/a/d")]
    assert promote('{"a":{"b":1}}', *ops) == '{"a":{"d":[1]},"c":{"b":[1]}}'


@pytest.mark.parametrize("depth", [100, 2_000, 50_000])
def test_a_document_of_any_depth_is_promoted(depth: int) -> None:
    deep = "[" * depth + '{"k":" ],["}' + "]" * depth
    before = f'{{ "a" : {deep} , "x\\u0041" : [ {deep} ,1 , "," ] , "h":{{}} }}'
    after = promote(before, rename("/a", "/b"), rename("/xA/1", "/h/n"), head("/xA"))
    assert after == f'{{"xA":{deep},"h":{{"n":1}},"b":{deep}}}'


def test_an_empty_container_of_any_depth_opens_empty() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert (
        promote(f'{{"a":{deep},"e":{{ }},"l":[ ]}}', add("/e/x", 1), each("/l"))
        == f'{{"a":{deep},"e":{{"x":1}},"l":[]}}'
    )


@given(cases(Manner.LOOSE), st.integers(0, 3))
def test_the_slow_way_into_a_container_finds_the_same_as_the_quick_one(case: Case, style: int) -> None:
    members = {str(number): document for number, document in enumerate(case.documents[0])}
    for value in [case.documents[0], members, {'"': []}, {}, [], {"a": {}}]:
        spelled = spell(value, style)
        if isinstance(value, list):
            assert list(split_at_commas(spelled[1:-1])) == msgspec.json.decode(spelled, type=list[Raw])
        else:
            assert dict(_members(spelled[1:-1])) == msgspec.json.decode(spelled, type=dict[str, Raw])


def test_an_add_without_a_default_does_not_compile() -> None:
    with pytest.raises(ValueError, match="add /a has no default"):
        forward([Add(path=("a",), schema=True)])


@settings(max_examples=1_000)
@given(cases(Manner.LOOSE), cases(Manner.LOOSE), st.integers(0, 3))
def test_a_lens_refuses_exactly_the_documents_that_its_ops_do_not_apply_to(case: Case, other: Case, style: int) -> None:
    steps = forward(case.lenses[1].ops)
    for document in other.documents[0]:
        try:
            after = promoted(case.wire[0]["ops"], document)
        except Refused:
            with pytest.raises(LensFailure):
                through(steps, spell(document, style))
        else:
            assert load(through(steps, spell(document, style))) == after

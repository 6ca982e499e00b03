"""Going back: how each op is undone, and what cannot be had back."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.lens.backward import backward
from headrace.schema.lens.values import LensFailure
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


def closed(required: str = "", **properties: Any) -> dict[str, Any]:
    """A closed object; the names in ``required`` are."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def back(document: str, *ops: dict[str, Any], schema: Any = True) -> str:
    return through(backward(lens(*ops).ops, schema), document.encode()).decode()


def failure(document: str, *ops: dict[str, Any], schema: Any = True) -> tuple[tuple[int, ...], str, str]:
    with pytest.raises(LensFailure) as caught:
        back(document, *ops, schema=schema)
    return caught.value.op, caught.value.where, caught.value.reason


@pytest.mark.parametrize(
    ("after", "op", "before"),
    [
        ('{"b":1.0}', rename("/a", "/b"), '{"a":1.0}'),
        ('{"b":1}', rename("/o/a", "/b"), '{"o":{"a":1}}'),
        ('{"a":1}', rename("/a/b", "/a"), '{"a":{"b":1}}'),
        ('{"l":[2],"b":1}', rename("/l/0", "/b"), '{"l":[1,2]}'),
        ('{"l":[1],"b":2}', rename("/l/1", "/b"), '{"l":[1,2]}'),
        ('{"a":1,"b":1}', copy("/a", "/b"), '{"a":1}'),
        ('{"b":1}', copy("/a", "/b"), '{"a":1}'),
        ('{"a":1}', copy("/a", "/b"), '{"a":1}'),
        ('{"a":1,"l":[1]}', copy("/a", "/l/0"), '{"a":1,"l":[1]}'),
        ('{"a":1}', copy("/a/b", "/a"), '{"a":{"b":1}}'),
        ('{"a":0}', add("/a", 0), "{}"),
        ('{"a":7}', add("/a", 0), "{}"),
        ("{}", add("/a", 0), "{}"),
        ("{}", remove("/a", default=None), '{"a":null}'),
        ("{}", remove("/a", schema={"default": 3}), '{"a":3}'),
        ("{}", remove("/a", schema={"type": "array"}), '{"a":[]}'),
        ("{}", remove("/o/a", default=1), '{"o":{"a":1}}'),
        ('{"a":"own"}', remove("/a", default=None), '{"a":"own"}'),
        ('{"l":[2]}', remove("/l/0", default=1), '{"l":[1,2]}'),
        ("{}", remove("/a", default=1, optional=True), '{"a":1}'),
        ("{}", remove("/a", optional=True), "{}"),
        ("{}", remove("/o/a", default=1, optional=True), "{}"),
        ('{"o":true}', remove("/o/a", default=1, optional=True), '{"o":true}'),
        ('{"o":[2]}', remove("/o/0", default=1, optional=True), '{"o":[2]}'),
        ('{"h":{},"n":1}', hoist("/h", "n", "/n"), '{"h":{"n":1}}'),
        ('{"n":1}', hoist("/h", "n", "/n"), '{"h":{"n":1}}'),
        ('{"h":{"n":1},"n":1}', hoist("/h", "n", "/n", removeFromHost=False), '{"h":{"n":1}}'),
        ('{"h":{"n":1}}', plunge("/a", "/h", "n"), '{"a":1}'),
        ('{"h":{"n":1,"m":2}}', plunge("/a", "/h", "n"), '{"h":{"m":2},"a":1}'),
        ('{"x":{"y":{"n":1}}}', plunge("/a", "/x/y", "n"), '{"a":1}'),
        ('{"h":{"n":1}}', plunge("/a", "/h", "n", createHost=False), '{"h":{},"a":1}'),
        ('{"a":1,"h":{"n":1}}', plunge("/a", "/h", "n", removeFromSource=False), '{"a":1}'),
        ('{"a":[1,2]}', wrap("/a"), '{"a":1}'),
        ('{"a":1}', head("/a"), '{"a":[1]}'),
        ('{"a":"X"}', convert("/a", {"x": "X"}), '{"a":"x"}'),
        ('{"o":{"b":1}}', within("/o", rename("/a", "/b")), '{"o":{"a":1}}'),
        ('{"o":1}', within("/o", rename("/a", "")), '{"o":{"a":1}}'),
        ('{"l":[1,2]}', each("/l", hoist("", "id", "")), '{"l":[{"id":1},{"id":2}]}'),
        ('{"l":["X"]}', each("/l", convert("", {"x": "X"})), '{"l":["x"]}'),
    ],
)
def test_an_op_is_undone(after: str, op: dict[str, Any], before: str) -> None:
    assert back(after, op) == before


def test_ops_are_undone_last_one_first() -> None:
    ops = [rename("/a", "/b"), wrap("/b"), plunge("/b", "/h", "n"), copy("/h", "/i")]
    assert back('{"h":{"n":[1]},"i":{"n":[1]}}', *ops) == '{"a":1}'


@pytest.mark.parametrize(
    ("after", "op", "where", "reason"),
    [
        ("{}", rename("/a", "/b"), "/b", "there is no value"),
        ('{"l":[1]}', rename("/a", "/l/0"), "/l/0", "an array was changed here"),
        ('{"l":[{"x":1}]}', rename("/l/0", "/l/1/x"), "/l/1/x", "there is no value"),
        ('{"l":[0,{"x":1}]}', rename("/l/0", "/l/1/x"), "/l/1/x", "an array was changed here"),
        ('{"l":1}', rename("/l/0", "/l"), "/l", "what was here was overwritten"),
        ("{}", copy("/a", "/b"), "/b", "there is no value"),
        ("{}", remove("/a"), "/a", "what was removed here has no default"),
        ("{}", remove("/a", schema={"type": "string"}), "/a", "what was removed here has no default"),
        ('{"o":1}', remove("/o/a", default=1), "/o/a", "there is nothing to put a value into"),
        ('{"a":[]}', wrap("/a"), "/a", "the array is empty"),
        ('{"a":1}', wrap("/a"), "/a", "the value is no array"),
        ('{"a":"Y"}', convert("/a", {"x": "X"}), "/a", "the table has no entry for 'Y'"),
        ('{"a":7}', convert("/a", {"x": "X"}), "/a", "the value is not of type string, or out of its range"),
    ],
)
def test_what_cannot_be_had_back_is_a_failure(after: str, op: dict[str, Any], where: str, reason: str) -> None:
    assert failure(after, op) == ((0,), where, reason)


def test_a_failure_names_the_op_as_the_lens_does() -> None:
    ops = [wrap("/x"), each("/l", add("/n", 0), rename("/a", "/b")), wrap("/y")]
    assert failure('{"x":[1],"y":[1],"l":[{"b":1},{}]}', *ops) == ((1, 1), "/l/1/b", "there is no value")


@pytest.mark.parametrize(
    "op",
    [
        rename("/a", "/x"),
        copy("/a", "/x"),
        hoist("/a", "n", "/x"),
        plunge("/a", "/x", "n"),
        plunge("/a", "/o", "n"),
        wrap("/x"),
        head("/x"),
        convert("/x", {}),
        within("/x", rename("/a", "/b")),
        each("/x", rename("/a", "/b")),
        add("/x/y", 0),
        remove("/x/y"),
    ],
)
def test_an_optional_op_leaves_alone_what_it_may_have_skipped(op: dict[str, Any]) -> None:
    assert back('{"o":{},"p":1}', {**op, "optional": True}) == '{"o":{},"p":1}'


def test_an_optional_copy_leaves_alone_what_was_there_before_it() -> None:
    assert back('{"b":1}', copy("/a", "/b", optional=True)) == '{"b":1}'


HOST = closed(h={"type": "object"}, a=True)
REQUIRED_HOST = closed("h", h={"type": "object"}, a=True)


def test_a_host_that_was_made_goes_and_one_that_was_required_stays() -> None:
    op = plunge("/a", "/h", "n")
    assert back('{"h":{"n":1}}', op, schema=HOST) == '{"a":1}'
    assert back('{"h":{"n":1}}', op, schema=REQUIRED_HOST) == '{"h":{},"a":1}'


def test_a_required_host_is_known_by_where_it_came_from() -> None:
    came = [rename("/g", "/h"), plunge("/a", "/h", "n")]
    schema = closed("g", g={"type": "object"}, a=True)
    assert back('{"h":{"n":1}}', *came, schema=schema) == '{"a":1,"g":{}}'
    added = [add("/h", {}), plunge("/a", "/h", "n"), wrap("/h")]
    assert back('{"h":[{"n":1}]}', *added, schema=closed(a=True)) == '{"a":1}'


def test_a_required_host_inside_an_object_that_was_made_goes_with_it() -> None:
    inner = closed(o=closed("h", h={"type": "object"}, m=True), a=True)
    op = plunge("/a", "/o/h", "n")
    assert back('{"o":{"h":{"n":1}}}', op, schema=inner) == '{"a":1}'
    assert back('{"o":{"h":{"n":1},"m":2}}', op, schema=inner) == '{"o":{"h":{},"m":2},"a":1}'


def test_hosts_are_judged_inside_elements_and_through_references() -> None:
    schema = {
        "$defs": {"e": closed("h", h={"type": "object"}, a=True)},
        "properties": {"l": {"type": "array", "items": {"$ref": "#/$defs/e"}}},
    }
    op = each("/l", plunge("/a", "/h", "n"))
    assert back('{"l":[{"h":{"n":1}}]}', op, schema=schema) == '{"l":[{"h":{},"a":1}]}'


def test_overwriting_what_was_required_cannot_be_undone_by_moving() -> None:
    schema = closed("a b", a=True, b=True)
    assert failure('{"b":1}', rename("/a", "/b"), schema=schema) == ((0,), "/b", "what was here was overwritten")
    assert back('{"b":1}', rename("/a", "/b"), schema=closed("a", a=True, b=True)) == '{"a":1}'


def test_an_optional_move_over_what_was_required_stays_there() -> None:
    schema = closed("b", a=True, b=True)
    assert back('{"b":1}', rename("/a", "/b", optional=True), schema=schema) == '{"b":1}'


def test_an_event_keeps_its_own_value_where_the_old_schema_requires_one() -> None:
    schema = closed("a b", a=True, b=True)
    assert back('{"a":1,"b":2}', add("/a", 0, overwrite=True), schema=schema) == '{"a":1,"b":2}'
    assert back('{"a":1,"b":2}', copy("/a", "/b"), schema=schema) == '{"a":1,"b":2}'
    assert back('{"a":1,"b":2}', add("/c", 0, overwrite=True), schema=schema) == '{"a":1,"b":2}'
    assert back('{"a":1,"b":2}', add("/b", 0, overwrite=True), schema=closed("a", a=True)) == '{"a":1}'


def test_what_an_object_that_was_made_had_to_hold_is_kept() -> None:
    ops = [plunge("/a", "/h", "n", optional=True), within("/h", add("/n", 0, overwrite=True), optional=True)]
    assert back('{"h":{"n":5}}', *ops, schema=closed(a=True)) == '{"a":5}'
    assert back("{}", *ops, schema=closed(a=True)) == "{}"


def test_what_an_element_had_to_hold_is_kept() -> None:
    schema = {"properties": {"l": {"type": "array", "items": closed("a", a=True)}}}
    op = each("/l", plunge("/a", "/h", "n"), add("/h/n", 0, overwrite=True))
    assert back('{"l":[{"h":{"n":5}}]}', op, schema=schema) == '{"l":[{"a":5}]}'


def test_an_optional_removal_puts_back_what_its_object_requires() -> None:
    schema = closed(o=closed("x", x=True))
    op = remove("/o/x", schema={"default": 0}, optional=True)
    assert back('{"o":{}}', op, schema=schema) == '{"o":{"x":0}}'
    assert back("{}", op, schema=schema) == "{}"


def test_an_optional_removal_puts_nothing_where_other_ops_had_brought_the_value() -> None:
    ops = [hoist("/h", "n", "/n", optional=True), remove("/n", default=0, optional=True)]
    assert back("{}", *ops, schema=closed(h=closed("n", n=True))) == "{}"


def test_a_document_of_any_depth_goes_back() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert back(f'{{"h":{{"n":{deep}}},"x":{deep}}}', plunge("/a", "/h", "n")) == f'{{"x":{deep},"a":{deep}}}'


def test_values_keep_their_bytes_on_the_way_back() -> None:
    after = r'{"big":9007199254740993, "b":1.0,"esc":"\u0041" , "deep":{ "k" : [1e5 ] }}'
    assert back(after, rename("/a", "/b")) == (
        r'{"big":9007199254740993,"esc":"\u0041","deep":{ "k" : [1e5 ] },"a":1.0}'
    )

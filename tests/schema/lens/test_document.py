"""Lens documents: closed shapes, every problem at once, and the way back to the same words."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from headrace.schema.lens import ops
from headrace.schema.lens.document import (
    MAX_DEPTH,
    MAX_POINTER_NAMES,
    admits,
    default_of,
    dump,
    fill_defaults,
    parse,
    required,
)
from headrace.schema.lens.ops import Lens, Transform
from schema.lens.strategies import Case, Manner, cases
from schema.lens.wire import add, convert, copy, each, head, hoist, lens, lens_of, plunge, remove, rename, within, wrap

LOWER = {"builtin": "lowercase"}
BUILTIN = {"op": "convert", "path": "/a", "fromType": "string", "toType": "string", "forward": LOWER, "backward": LOWER}


def problems(given: Any) -> list[tuple[str, str]]:
    found = parse(given)
    assert isinstance(found, list) and found, found
    return [tuple(problem) for problem in found]


def op_problems(*given: Any) -> list[tuple[str, str]]:
    return problems(lens_of(1, list(given)))


@pytest.mark.parametrize(
    ("given", "op"),
    [
        (rename("/a", "/b~1c"), ops.Rename(source=("a",), target=("b/c",))),
        (copy("/a", "/b", optional=True), ops.Copy(source=("a",), target=("b",), optional=True)),
        (remove("/a"), ops.Remove(path=("a",), schema=True)),
        (add("/a", None), ops.Add(path=("a",), schema=True, default=None)),
        (add("/a", 0, overwrite=True), ops.Add(path=("a",), schema=True, default=0, overwrite=True)),
        (hoist("", "n", "/m"), ops.Hoist(host=(), member="n", target=("m",))),
        (
            hoist("/h", "n", "/m", removeFromHost=False),
            ops.Hoist(host=("h",), member="n", target=("m",), remove_from_host=False),
        ),
        (plunge("/a", "/h", "n"), ops.Plunge(source=("a",), host=("h",), member="n")),
        (
            plunge("/a", "/h", "n", createHost=False, removeFromSource=False),
            ops.Plunge(source=("a",), host=("h",), member="n", create_host=False, remove_from_source=False),
        ),
        (wrap("/a"), ops.Wrap(path=("a",))),
        (head(""), ops.Head(path=())),
        (
            convert("/a", {"x": 1}, toType="integer", forward={"map": {"x": 1}, "default": None}),
            ops.Convert(
                path=("a",),
                from_type="string",
                to_type="integer",
                forward=Transform(table={"x": 1}, default=None),
                backward=Transform(table={"1": "x"}),
            ),
        ),
        (
            BUILTIN,
            ops.Convert(
                path=("a",),
                from_type="string",
                to_type="string",
                forward=Transform(builtin="lowercase"),
                backward=Transform(builtin="lowercase"),
            ),
        ),
        (within("/a", wrap("")), ops.In(path=("a",), ops=(ops.Wrap(path=()),))),
        (each(""), ops.Map(path=(), ops=())),
    ],
)
def test_an_op_is_read_and_written(given: dict[str, Any], op: ops.Op) -> None:
    read = lens(given)
    assert read.ops == (op,)
    assert dump(read)["ops"] == [given]


def test_a_lens_is_read_and_written() -> None:
    given = {**lens_of(3, []), "description": "nothing to do"}
    read = parse(given)
    assert read == Lens(schema="s", source=3, target=4, ops=(), description="nothing to do")
    assert isinstance(read, Lens)
    assert dump(read) == given


def test_what_says_nothing_new_is_not_written() -> None:
    read = lens(
        {**rename("/a", "/b"), "optional": False},
        {**wrap("/a"), "reverseMode": "first"},
        {**head("/a"), "reverseMode": "singleton"},
        {**hoist("/h", "n", "/m"), "removeFromHost": True},
    )
    assert dump(read)["ops"] == [rename("/a", "/b"), wrap("/a"), head("/a"), hoist("/h", "n", "/m")]


@settings(max_examples=1_000)
@given(cases(Manner.LOOSE))
def test_a_lens_is_written_as_it_was_read(case: Case) -> None:
    read = case.lenses[1]
    assert dump(read) == case.wire[0]
    assert parse(json.loads(json.dumps(dump(read)))) == read


@pytest.mark.parametrize("given", [None, [], "lens", 7, True])
def test_a_lens_is_an_object(given: Any) -> None:
    assert problems(given) == [("", "must be an object")]


def test_all_problems_are_named_at_once() -> None:
    given = {
        "apiVersion": "durable.lens/v2",
        "schema": "",
        "from": -1,
        "to": True,
        "description": 5,
        "author": "me",
        "ops": [
            {"op": "rename", "from": "a", "to": "/~2", "why": 1},
            {"op": "explode"},
            "rename",
            {"op": "add", "schema": [], "overwrite": "yes"},
            {"op": "map", "path": "/a", "ops": [{"op": "wrap", "path": "", "mode": "list"}, {"op": "in", "path": ""}]},
        ],
    }
    names = "rename, copy, add, remove, hoist, plunge, wrap, head, convert, in, map"
    assert sorted(problems(given)) == sorted(
        [
            ("/apiVersion", 'must be "durable.lens/v1"'),
            ("/schema", "must be a name"),
            ("/from", "must be a version"),
            ("/to", "must be a version"),
            ("/description", "must be a text"),
            ("/author", "is not known here"),
            ("/ops/0/from", "must be a JSON Pointer"),
            ("/ops/0/to", "must be a JSON Pointer"),
            ("/ops/0/why", "is not known here"),
            ("/ops/1", f"must be an object whose op is one of {names}"),
            ("/ops/2", f"must be an object whose op is one of {names}"),
            ("/ops/3", "path is missing"),
            ("/ops/3/schema", "must be a JSON Schema"),
            ("/ops/3/overwrite", "must be a boolean"),
            ("/ops/4/ops/0/mode", 'must be "singleton"'),
            ("/ops/4/ops/1", "ops is missing"),
        ]
    )


@pytest.mark.parametrize(
    ("op", "pointer", "reason"),
    [
        (rename("/a", "/a"), "/to", "the value is there already"),
        (rename("/a", "/a/b"), "/to", "must not lie inside what is moved there"),
        (rename("", "/a"), "/to", "must not lie inside what is moved there"),
        (rename("/a", ""), "/to", "must not be the whole event"),
        (copy("/a", "/a"), "/to", "the value is there already"),
        (copy("/a", ""), "/to", "must not be the whole event"),
        (add("", 0), "/path", "add must not name a whole value"),
        (remove(""), "/path", "remove must not name a whole value"),
        (hoist("/h", "n", "/h/n"), "/to", "the value is there already"),
        (hoist("/h", "n", "/h/n/m"), "/to", "must not lie inside what is moved there"),
        (hoist("", "n", ""), "/to", "must not be the whole event"),
        (hoist("/h", "", "/n"), "/name", "must be a name"),
        (plunge("/a", "/a", "n"), "/host", "must not lie inside the source"),
        (plunge("/a", "/a/b", "n"), "/host", "must not lie inside the source"),
        (plunge("", "/h", "n"), "/host", "must not lie inside the source"),
        (plunge("/h/n", "/h", "n"), "/name", "the value is there already"),
        ({**wrap("/a"), "reverseMode": "last"}, "/reverseMode", 'must be "first"'),
        ({**head("/a"), "reverseMode": "first"}, "/reverseMode", 'must be "singleton"'),
        ({"op": "wrap", "path": "/a"}, "", "mode is missing"),
        ({**rename("/a", "/b"), "optional": None}, "/optional", "must be a boolean"),
        (rename("/x" * (MAX_POINTER_NAMES + 1), "/b"), "/from", f"must have at most {MAX_POINTER_NAMES} names"),
        (convert("/a", {"x": []}, backward={"map": {}}), "/forward/map/x", "must be a scalar"),
        (convert("/a", {}, forward={"map": {}, "default": {}}), "/forward/default", "must be a scalar"),
        (convert("/a", {}, forward={"map": {"a/b": [1]}}), "/forward/map/a~1b", "must be a scalar"),
        (convert("/a", {}, forward={"map": []}), "/forward/map", "must be an object"),
        (convert("/a", {}, forward={}), "/forward", "map is missing"),
        (convert("/a", {}, forward=None), "/forward", "must be an object"),
        (convert("/a", {}, backward={"builtin": "lowercase", "map": {}}), "/backward/map", "is not known here"),
        (convert("/a", {}, backward={"builtin": "lowercase", "default": 1}), "/backward/default", "is not known here"),
    ],
)
def test_what_an_op_must_not_ask_for_is_refused(op: dict[str, Any], pointer: str, reason: str) -> None:
    assert op_problems(op) == [("/ops/0" + pointer, reason)]


def test_an_unknown_builtin_or_type_is_refused() -> None:
    ((pointer, reason),) = op_problems({**BUILTIN, "forward": {"builtin": "reverse"}})
    assert pointer == "/ops/0/forward/builtin"
    assert reason.startswith("must be one of lowercase, uppercase, ")
    ((pointer, reason),) = op_problems(convert("/a", {}, toType="date"))
    assert pointer == "/ops/0/toType"
    assert reason == "must be one of string, number, integer, boolean, null, object, array"


def test_a_builtin_must_fit_the_types_on_both_ways() -> None:
    given = {**BUILTIN, "toType": "integer", "forward": {"builtin": "string_to_int"}}
    assert op_problems(given) == [("/ops/0/backward", "lowercase makes string of string, not string of integer")]
    assert op_problems({**given, "fromType": "number", "backward": {"map": {}}}) == [
        ("/ops/0/forward", "string_to_int makes integer of string, not integer of number")
    ]
    assert lens({**given, "toType": "number", "backward": {"map": {}}})


@pytest.mark.parametrize("nested", [rename("/a", ""), copy("", "/a"), hoist("", "n", ""), head(""), wrap("")])
def test_ops_inside_others_may_name_the_whole_value(nested: dict[str, Any]) -> None:
    assert lens(each("/list", nested))
    assert lens(within("/object", nested))


def test_ops_do_not_hold_ops_without_end() -> None:
    given = wrap("")
    for _ in range(MAX_DEPTH):
        given = within("", given)
    assert lens(given)
    ((pointer, reason),) = op_problems(within("", given))
    assert pointer == "/ops/0" * (MAX_DEPTH + 1) + "/ops"
    assert reason == f"ops must not be nested more than {MAX_DEPTH} deep"


NEW = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "default": 7},
        "o": {"$ref": "#/$defs/o"},
        "l": {"type": "array", "items": {"properties": {"x": {"default": None}}}},
        "loop": {"$ref": "#/properties/loop"},
    },
    "$defs": {"o": {"type": "object", "required": ["b"], "properties": {"b": {"type": "array"}}}},
    "required": ["o", "l"],
}


@pytest.mark.parametrize(
    ("path", "schema", "default"),
    [
        ("/a", {"default": 1}, 7),
        ("/b", {"default": 1}, 1),
        ("/b", {"default": None}, None),
        ("/o", {"type": "array"}, {}),
        ("/o/b", True, []),
        ("/b", {"type": ["object"]}, {}),
        ("/b", {"type": "string"}, msgspec.UNSET),
        ("/b", {"type": ["object", "null"]}, msgspec.UNSET),
        ("/loop", True, msgspec.UNSET),
    ],
)
def test_a_default_that_is_not_given_comes_from_the_schemas(path: str, schema: Any, default: Any) -> None:
    (op,) = fill_defaults(lens({"op": "add", "path": path, "schema": schema}), NEW).ops
    assert isinstance(op, ops.Add)
    assert op.default == default


def test_defaults_are_found_inside_other_ops_and_given_ones_stay() -> None:
    bare = {"op": "add", "path": "/x", "schema": True}
    given = lens(each("/l", bare), within("/o", {**bare, "path": "/b"}), add("/a", 1))
    assert fill_defaults(given, NEW) == lens(each("/l", add("/x", None)), within("/o", add("/b", [])), add("/a", 1))
    assert default_of(True, False) is msgspec.UNSET


@pytest.mark.parametrize(
    ("names", "known", "expected"),
    [
        ((), [], True),
        (("o",), [], True),
        (("o", "b"), [], True),
        (("a",), [], False),
        (("l", "0"), [], False),
        (("l", "0", "x"), [("l", "0")], False),
        (("a",), [("a", "b")], True),
        (("q", "b"), [("q",)], False),
    ],
)
def test_a_schema_says_what_it_requires(names: tuple[str, ...], known: list[tuple[str, ...]], expected: bool) -> None:
    assert required(NEW, names, known) is expected
    assert required(True, (), known)


def test_a_closed_object_admits_only_the_names_it_has() -> None:
    closed = {"properties": {"a": {"items": {"additionalProperties": False}}}, "additionalProperties": False}
    assert admits(closed, ("a", "0"))
    assert not admits(closed, ("b",))
    assert not admits(closed, ("a", "0", "x"))
    assert admits({**closed, "patternProperties": {"^b": True}}, ("b",))
    assert admits(NEW, ("zzz", "y"))

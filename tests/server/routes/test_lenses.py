"""Lenses that are refused: those that are none, and those that would not carry every event."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from server.registries import TEXT, WHOLE, append, installed, lens, post, problems, registry, rename, shape, unchanged

if TYPE_CHECKING:
    import httpx2
    from tests.server.conftest import Api

Code = Callable[[Any], str]
Op = dict[str, Any]

NUMBER = {"type": "number"}
LIST = {"type": "array", "items": WHOLE}
TO_TEXT = {"fromType": "integer", "toType": "string", "backward": {"builtin": "string_to_int"}}


def offered(api: Api, old: Any, new: Any, *ops: Op) -> httpx2.Response:
    """Offer a lens to a new stream; a refused one changes nothing."""
    path = installed(api, old)
    before = registry(api, path)
    answer = post(api, path, schema=new, lens=lens(path, 1, *ops))
    assert answer.status_code == 200 or unchanged(api, path, before)
    return answer


# -- the document


GOOD = rename("a", "b")
FAR = {"op": "remove", "path": "/a/999999999999999999", "schema": WHOLE, "optional": True}


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"apiVersion": "durable.lens/v2"}, "/lens/apiVersion"),
        ({"apiVersion": None}, "/lens/apiVersion"),
        ({"schema": 1}, "/lens/schema"),
        ({"from": "1"}, "/lens/from"),
        ({"from": -1}, "/lens/from"),
        ({"from": 1.5}, "/lens/from"),
        ({"from": True}, "/lens/from"),
        ({"to": None}, "/lens/to"),
        ({"description": 1}, "/lens/description"),
        ({"ops": {}}, "/lens/ops"),
        ({"ops": None}, "/lens/ops"),
        ({"extra": 1}, "/lens/extra"),
        ({"ops": [1]}, "/lens/ops/0"),
        ({"ops": [{}]}, "/lens/ops/0"),
        ({"ops": [GOOD, {"op": "move"}]}, "/lens/ops/1"),
        ({"ops": [{**GOOD, "extra": 1}]}, "/lens/ops/0/extra"),
        ({"ops": [{**GOOD, "from": "a"}]}, "/lens/ops/0/from"),
        ({"ops": [{**GOOD, "to": "/a~2"}]}, "/lens/ops/0/to"),
        ({"ops": [{**GOOD, "to": 1}]}, "/lens/ops/0/to"),
        ({"ops": [{**GOOD, "optional": "yes"}]}, "/lens/ops/0/optional"),
        ({"ops": [{"op": "rename", "from": "/a"}]}, "/lens/ops/0"),
        ({"ops": [rename("a", "a")]}, "/lens/ops/0/to"),
        ({"ops": [rename("a", "a/x")]}, "/lens/ops/0/to"),
        ({"ops": [{"op": "add", "path": "/b", "schema": 1}]}, "/lens/ops/0/schema"),
        ({"ops": [{"op": "add", "path": "/b", "schema": {"type": "x"}, "default": 1}]}, "/lens/ops/0/schema/type"),
        ({"ops": [{"op": "add", "path": "", "schema": True, "default": 1}]}, "/lens/ops/0/path"),
        ({"ops": [{"op": "remove", "path": "", "schema": True}]}, "/lens/ops/0/path"),
        ({"ops": [{"op": "hoist", "host": "/a", "name": "", "to": "/b"}]}, "/lens/ops/0/name"),
        ({"ops": [{"op": "plunge", "from": "/a", "host": "/a/b", "name": "x"}]}, "/lens/ops/0/host"),
        ({"ops": [{"op": "wrap", "path": "/a", "mode": "many"}]}, "/lens/ops/0/mode"),
        ({"ops": [{"op": "wrap", "path": "/a"}]}, "/lens/ops/0"),
        ({"ops": [{"op": "head", "path": "/a", "reverseMode": "first"}]}, "/lens/ops/0/reverseMode"),
        ({"ops": [{"op": "map", "path": "/a"}]}, "/lens/ops/0"),
        ({"ops": [{"op": "in", "path": "/a", "ops": [{"op": "x"}]}]}, "/lens/ops/0/ops/0"),
        ({"ops": [{"op": "convert", "path": "/a", **TO_TEXT, "forward": {}}]}, "/lens/ops/0/forward"),
        (
            {"ops": [{"op": "convert", "path": "/a", **TO_TEXT, "forward": {"builtin": "rot13"}}]},
            "/lens/ops/0/forward/builtin",
        ),
        (
            {"ops": [{"op": "convert", "path": "/a", **TO_TEXT, "forward": {"builtin": "lowercase"}}]},
            "/lens/ops/0/forward",
        ),
        (
            {"ops": [{"op": "convert", "path": "/a", **TO_TEXT, "forward": {"map": {"1": []}}}]},
            "/lens/ops/0/forward/map/1",
        ),
        (
            {"ops": [{"op": "convert", "path": "/a", **TO_TEXT, "forward": {"builtin": "int_to_string", "map": {}}}]},
            "/lens/ops/0/forward/map",
        ),
        (
            {"ops": [{"op": "convert", "path": "/a", **TO_TEXT, "fromType": "text", "forward": {"map": {}}}]},
            "/lens/ops/0/fromType",
        ),
    ],
)
def test_a_lens_that_is_none_is_refused_where_it_is_wrong(
    api: Api, code_of: Code, changed: dict[str, Any], pointer: str
) -> None:
    path = installed(api, shape(a=WHOLE))
    before = registry(api, path)
    refused = post(api, path, schema=shape(b=WHOLE), lens={**lens(path, 1, GOOD), **changed})
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    found = refused.json()["error"]["problems"]
    assert pointer in problems(refused)
    assert {problem["code"] for problem in found} == {"lens_invalid"}
    assert unchanged(api, path, before)


@pytest.mark.parametrize("missing", ["apiVersion", "schema", "from", "to", "ops"])
def test_nothing_of_a_lens_may_be_missing(api: Api, code_of: Code, missing: str) -> None:
    path = installed(api, shape(a=WHOLE))
    document = lens(path, 1, GOOD)
    del document[missing]
    refused = post(api, path, schema=shape(b=WHOLE), lens=document)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert problems(refused) == ["/lens"]


def test_all_that_is_wrong_with_a_lens_is_said_at_once(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    document = {**lens(path, 1, {"op": "x"}, {**GOOD, "from": "a", "z": 1}), "more": 1}
    found = problems(post(api, path, schema=shape(b=WHOLE), lens=document))
    assert {"/lens/more", "/lens/ops/0", "/lens/ops/1/from", "/lens/ops/1/z"} <= set(found)


def test_a_lens_may_have_no_ops(api: Api) -> None:
    assert offered(api, shape(a=WHOLE), shape(a=NUMBER)).status_code == 200


# -- the proof


ADD = {"op": "add", "path": "/b", "schema": WHOLE}
MAP = {"low": 0, "high": 1}


def table(forward: dict[str, Any], before: str = "string", after: str = "integer") -> Op:
    backward = {"map": {}, "default": "low"}
    return {
        "op": "convert",
        "path": "/a",
        "fromType": before,
        "toType": after,
        "forward": forward,
        "backward": backward,
    }


UNSOUND: dict[str, tuple[Any, Any, list[Op], str, str]] = {
    "an optional source": (shape("a", a=WHOLE), shape(b=WHOLE), [GOOD], "/lens/ops/0", "/a"),
    "an absent source": (shape(c=WHOLE), shape(b=WHOLE), [GOOD], "/lens/ops/0", "/a"),
    "an optional source of remove": (
        shape("a", a=WHOLE),
        shape(),
        [{"op": "remove", "path": "/a", "schema": WHOLE}],
        "/lens/ops/0",
        "/a",
    ),
    "a target the new schema has no place for": (shape(a=WHOLE), shape(c=WHOLE), [GOOD], "/lens", "/b"),
    "a target without a parent": (
        shape(a=WHOLE),
        {"type": "object"},
        [{"op": "rename", "from": "/a", "to": "/o/x"}],
        "/lens/ops/0",
        "/o",
    ),
    "another type": (shape(a=TEXT), shape(b=WHOLE), [GOOD], "/lens", "/b"),
    "a narrower type": (shape(a=NUMBER), shape(b=WHOLE), [GOOD], "/lens", "/b"),
    "a narrower enum": (shape(a=TEXT), shape(b={"enum": ["x"]}), [GOOD], "/lens", "/b"),
    "a smaller maximum": (
        shape(a={"type": "integer", "maximum": 9}),
        shape(b={"type": "integer", "maximum": 8}),
        [GOOD],
        "/lens",
        "/b",
    ),
    "another pattern": (
        shape(a={"type": "string", "pattern": "^a"}),
        shape(b={"type": "string", "pattern": "^b"}),
        [GOOD],
        "/lens",
        "/b",
    ),
    "something required inside": (
        shape(a={"type": "object"}),
        shape(b={"type": "object", "required": ["x"]}),
        [GOOD],
        "/lens",
        "/b/x",
    ),
    "items of another type": (
        shape(a={"type": "array", "items": NUMBER}),
        shape(b={"type": "array", "items": WHOLE}),
        [GOOD],
        "/lens",
        "/b/*",
    ),
    "a new required member that no op creates": (shape(a=WHOLE), shape(a=WHOLE, b=WHOLE), [], "/lens", "/b"),
    "a leftover": (shape(a=WHOLE, b=WHOLE), shape(b=WHOLE), [], "/lens", "/a"),
    "removed and still required": (
        shape(a=WHOLE),
        shape(a=WHOLE),
        [{"op": "remove", "path": "/a", "schema": WHOLE}],
        "/lens",
        "/a",
    ),
    "a conversion that may fail": (shape(a=TEXT), shape(a=WHOLE), [table({"map": MAP})], "/lens/ops/0", "/a"),
    "a builtin that may fail": (
        shape(a=TEXT),
        shape(a=WHOLE),
        [
            {
                **table({"builtin": "string_to_int"}),
                "backward": {"builtin": "int_to_string"},
            }
        ],
        "/lens/ops/0",
        "/a",
    ),
    "a table with holes": (
        shape(a={"type": "string", "enum": ["low", "high", "top"]}),
        shape(a=WHOLE),
        [table({"map": MAP})],
        "/lens/ops/0",
        "/a",
    ),
    "a table that leads elsewhere": (
        shape(a={"type": "string", "enum": ["low", "high"]}),
        shape(a={"type": "integer", "enum": [0, 2]}),
        [table({"map": MAP})],
        "/lens",
        "/a",
    ),
    "a conversion from another type": (
        shape(a=WHOLE),
        shape(a=WHOLE),
        [table({"map": {}, "default": 0})],
        "/lens/ops/0",
        "/a",
    ),
    "the head of what may be empty": (
        shape(a=LIST),
        shape(a=WHOLE),
        [{"op": "head", "path": "/a"}],
        "/lens/ops/0",
        "/a",
    ),
    "a default that does not fit": (
        shape(a=WHOLE),
        shape("b", a=WHOLE, b=WHOLE),
        [{**ADD, "default": "x"}],
        "/lens/ops/0",
        "/b",
    ),
    "no default": (shape(a=WHOLE), shape(a=WHOLE, b=WHOLE), [ADD], "/lens/ops/0", "/b"),
    "an add that may overwrite": (
        shape("b", a=WHOLE, b=WHOLE),
        shape(a=WHOLE, b=WHOLE),
        [{**ADD, "default": 1}],
        "/lens/ops/0",
        "/b",
    ),
    "an add that may overwrite what nobody named": (
        {"type": "object"},
        {"type": "object"},
        [{**ADD, "default": 1}],
        "/lens/ops/0",
        "/b",
    ),
    "in what is no object": (
        shape(a=WHOLE),
        {"type": "object"},
        [{"op": "in", "path": "/a", "ops": []}],
        "/lens/ops/0",
        "/a",
    ),
    "map of what is no array": (
        shape(a=WHOLE),
        {"type": "object"},
        [{"op": "map", "path": "/a", "ops": []}],
        "/lens/ops/0",
        "/a",
    ),
    "inside a list": (
        shape(l={"type": "array", "items": shape("x", x=WHOLE)}),
        {"type": "object"},
        [{"op": "map", "path": "/l", "ops": [rename("x", "y")]}],
        "/lens/ops/0/ops/0",
        "/l/*/x",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_a_lens_that_would_not_carry_every_event_is_refused_with_op_place_and_rule(
    api: Api, code_of: Code, name: str
) -> None:
    old, new, ops, op, event_pointer = UNSOUND[name]
    refused = offered(api, old, new, *ops)
    assert refused.status_code == 400
    assert code_of(refused) == "lens_unsound"
    found = refused.json()["error"]["problems"]
    assert (op, event_pointer) in {(problem["pointer"], problem["event_pointer"]) for problem in found}
    assert all(problem["code"] == "lens_unsound" and problem["rule"] and problem["message"] for problem in found)
    examples = [problem["counter_example"] for problem in found if "counter_example" in problem]
    assert all(jsonschema_rs.is_valid(old, example) for example in examples)


def test_a_counter_example_is_an_event_that_the_lens_breaks(api: Api) -> None:
    old, new = shape("b", a=WHOLE, b=TEXT), shape("b", a=WHOLE, b={"type": "string", "maxLength": 2})
    refused = offered(api, old, new)
    (example,) = [p["counter_example"] for p in refused.json()["error"]["problems"] if "counter_example" in p]
    assert jsonschema_rs.is_valid(old, example) and not jsonschema_rs.is_valid(new, example)


def test_every_gap_is_named_at_once(api: Api) -> None:
    refused = offered(api, shape("a", a=WHOLE, c=TEXT), shape(b=WHOLE, c=WHOLE), GOOD)
    found = {(p["pointer"], p["event_pointer"]) for p in refused.json()["error"]["problems"]}
    assert {("/lens/ops/0", "/a"), ("/lens", "/c")} <= found


@pytest.mark.parametrize(
    ("old", "new", "ops"),
    [
        (shape("a", a=WHOLE), shape("b", b=WHOLE), [{**GOOD, "optional": True}]),
        ({"type": "object"}, {"type": "object", "required": ["b"]}, [{**ADD, "default": 1, "overwrite": True}]),
        (
            shape(a=WHOLE),
            shape(b=TEXT),
            [GOOD, {"op": "convert", "path": "/b", **TO_TEXT, "forward": {"builtin": "int_to_string"}}],
        ),
        (shape(a=WHOLE), shape(b=LIST), [GOOD, {"op": "wrap", "path": "/b", "mode": "singleton"}]),
        (shape(a={"type": "string", "enum": ["low", "high"]}), shape(a=WHOLE), [table({"map": MAP})]),
        (shape(a=TEXT), shape(a=WHOLE), [table({"map": MAP, "default": 0})]),
        (shape(a={**LIST, "minItems": 1}), shape(a=WHOLE), [{"op": "head", "path": "/a"}]),
        (shape(a=WHOLE), shape(b=NUMBER), [GOOD]),
        (
            shape(a=WHOLE),
            shape(a=WHOLE, b={"type": "object"}),
            [{"op": "add", "path": "/b", "schema": {"type": "object"}}],
        ),
        (shape(a=WHOLE), shape(a=WHOLE, b=LIST), [{"op": "add", "path": "/b", "schema": LIST}]),
        (shape(a=LIST), shape(a=LIST, b=WHOLE), [FAR, {**ADD, "schema": WHOLE, "default": 1}]),
    ],
)
def test_a_lens_that_carries_every_event_is_taken(api: Api, old: Any, new: Any, ops: list[Op]) -> None:
    answer = offered(api, old, new, *ops)
    assert answer.status_code == 200, answer.text
    assert answer.json()["diff"]["lens"]["written"] is False


def test_the_events_that_are_there_do_not_make_an_unsound_lens_sound(api: Api, code_of: Code) -> None:
    path = installed(api, shape("a", a=WHOLE))
    append(api, path, {"a": 1})
    refused = post(api, path, schema=shape(b=WHOLE), lens=lens(path, 1, GOOD))
    assert code_of(refused) == "lens_unsound"
    assert api.get(path).json() == [{"a": 1}]

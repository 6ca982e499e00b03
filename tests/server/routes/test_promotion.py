"""Older events come out in the newest shape, on every way of reading, and in any older shape that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from server.registries import TEXT, WHOLE, append, evolve, installed, rename, shape

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api, Wire

JSON = {"content-type": "application/json"}
Connect = Callable[..., "Wire"]
Eventually = Callable[..., None]
Op = dict[str, Any]

NUMBER = {"type": "number"}
LIST = {"type": "array", "items": WHOLE, "minItems": 1}
LEVEL = {"type": "string", "enum": ["low", "high"]}


class Step(NamedTuple):
    """A change of shape, and an event before and after it, as they are spelled."""

    old: dict[str, Any]
    new: dict[str, Any]
    ops: list[Op]
    before: str
    after: str


def convert(path: str, before: str, after: str, forward: Op, backward: Op) -> Op:
    return {
        "op": "convert",
        "path": path,
        "fromType": before,
        "toType": after,
        "forward": forward,
        "backward": backward,
    }


def builtin(path: str, before: str, after: str, forward: str, backward: str) -> Op:
    return convert(path, before, after, {"builtin": forward}, {"builtin": backward})


STEPS = {
    "rename": Step(shape(a=WHOLE), shape(b=WHOLE), [rename("a", "b")], '{"a":1.0}', '{"b":1.0}'),
    "rename inwards": Step(
        shape(a=WHOLE, o=shape()),
        shape(o=shape(x=WHOLE)),
        [{"op": "rename", "from": "/a", "to": "/o/x"}],
        '{"a":1e2,"o":{}}',
        '{"o":{"x":1e2}}',
    ),
    "copy": Step(
        shape(a={"type": "array"}),
        shape(a={"type": "array"}, b={"type": "array"}),
        [{"op": "copy", "from": "/a", "to": "/b"}],
        '{"a":[1.0, {}]}',
        '{"a":[1.0, {}],"b":[1.0, {}]}',
    ),
    "add": Step(
        shape(a=WHOLE),
        shape(a=WHOLE, b={"type": "object"}),
        [{"op": "add", "path": "/b", "schema": {"type": "object"}, "default": {"x": [1]}}],
        '{"a":1}',
        '{"a":1,"b":{"x":[1]}}',
    ),
    "add null": Step(
        shape(a=WHOLE),
        shape(a=WHOLE, b={"type": ["string", "null"]}),
        [{"op": "add", "path": "/b", "schema": {"type": ["string", "null"]}, "default": None}],
        '{"a":1}',
        '{"a":1,"b":null}',
    ),
    "add what the new schema says": Step(
        shape(a=WHOLE),
        shape(a=WHOLE, b={"type": "string", "default": "new"}),
        [{"op": "add", "path": "/b", "schema": TEXT}],
        '{"a":1}',
        '{"a":1,"b":"new"}',
    ),
    "remove": Step(
        shape(a=WHOLE, b=WHOLE),
        shape(a=WHOLE),
        [{"op": "remove", "path": "/b", "schema": WHOLE, "default": 5}],
        '{"a":1,"b":5}',
        '{"a":1}',
    ),
    "hoist": Step(
        shape(o=shape(x=WHOLE, y=WHOLE)),
        shape(o=shape(y=WHOLE), x=WHOLE),
        [{"op": "hoist", "host": "/o", "name": "x", "to": "/x"}],
        '{"o":{"y":2.0,"x":1}}',
        '{"o":{"y":2.0},"x":1}',
    ),
    "hoist and keep": Step(
        shape(o=shape(x=WHOLE)),
        shape(o=shape(x=WHOLE), x=WHOLE),
        [{"op": "hoist", "host": "/o", "name": "x", "to": "/x", "removeFromHost": False}],
        '{"o":{"x":1}}',
        '{"o":{"x":1},"x":1}',
    ),
    "plunge": Step(
        shape(a=WHOLE, b=WHOLE),
        shape(a=WHOLE, o=shape(x=WHOLE)),
        [{"op": "plunge", "from": "/b", "host": "/o", "name": "x"}],
        '{"a":1,"b":2e0}',
        '{"a":1,"o":{"x":2e0}}',
    ),
    "plunge and keep": Step(
        shape(b=WHOLE, o=shape()),
        shape(b=WHOLE, o=shape(x=WHOLE)),
        [
            {
                "op": "plunge",
                "from": "/b",
                "host": "/o",
                "name": "x",
                "createHost": False,
                "removeFromSource": False,
            }
        ],
        '{"b":2,"o":{}}',
        '{"b":2,"o":{"x":2}}',
    ),
    "wrap": Step(
        shape(a=WHOLE), shape(a=LIST), [{"op": "wrap", "path": "/a", "mode": "singleton"}], '{"a":1.0}', '{"a":[1.0]}'
    ),
    "head": Step(shape(a=LIST), shape(a=WHOLE), [{"op": "head", "path": "/a"}], '{"a":[7.0]}', '{"a":7.0}'),
    "convert by a table": Step(
        shape(a=LEVEL),
        shape(a={"type": "integer", "enum": [0, 1]}),
        [convert("/a", "string", "integer", {"map": {"low": 0, "high": 1}}, {"map": {"0": "low", "1": "high"}})],
        '{"a":"low"}',
        '{"a":0}',
    ),
    "convert by a table with a default": Step(
        shape(a=TEXT),
        shape(a={"type": "boolean"}),
        [
            convert(
                "/a",
                "string",
                "boolean",
                {"map": {"yes": True}, "default": False},
                {"map": {"false": "no"}, "default": ""},
            )
        ],
        '{"a":"no"}',
        '{"a":false}',
    ),
    "convert to lower case": Step(
        shape(a={"type": "string", "enum": ["AB"]}),
        shape(a=TEXT),
        [builtin("/a", "string", "string", "lowercase", "uppercase")],
        '{"a":"AB"}',
        '{"a":"ab"}',
    ),
    "convert to upper case": Step(
        shape(a=TEXT),
        shape(a=TEXT),
        [builtin("/a", "string", "string", "uppercase", "lowercase")],
        '{"a":"ab"}',
        '{"a":"AB"}',
    ),
    "convert to a number": Step(
        shape(a={"type": "string", "enum": ["12", "7"]}),
        shape(a=WHOLE),
        [builtin("/a", "string", "integer", "string_to_int", "int_to_string")],
        '{"a":"12"}',
        '{"a":12}',
    ),
    "convert to a text": Step(
        shape(a=WHOLE),
        shape(a=TEXT),
        [builtin("/a", "integer", "string", "int_to_string", "string_to_int")],
        '{"a":9007199254740993}',
        '{"a":"9007199254740993"}',
    ),
    "convert a time to milliseconds": Step(
        shape(a={"type": "string", "format": "date-time"}),
        shape(a=WHOLE),
        [builtin("/a", "string", "integer", "rfc3339_to_unix_millis", "unix_millis_to_rfc3339")],
        '{"a":"2026-05-04T10:11:12.123Z"}',
        '{"a":1777889472123}',
    ),
    "convert milliseconds to a time": Step(
        shape(a={"type": "integer", "minimum": 0, "maximum": 4_000_000_000_000}),
        shape(a={"type": "string", "format": "date-time"}),
        [builtin("/a", "integer", "string", "unix_millis_to_rfc3339", "rfc3339_to_unix_millis")],
        '{"a":1777889472123}',
        '{"a":"2026-05-04T10:11:12.123Z"}',
    ),
    "in": Step(
        shape(o=shape(x=WHOLE, z=TEXT)),
        shape(o=shape(y=WHOLE, z=TEXT)),
        [{"op": "in", "path": "/o", "ops": [rename("x", "y")]}],
        '{"o":{"z":"\\u00e9","x":1.0}}',
        '{"o":{"z":"\\u00e9","y":1.0}}',
    ),
    "map": Step(
        shape(l={"type": "array", "items": shape(x=WHOLE)}),
        shape(l={"type": "array", "items": shape(y=WHOLE)}),
        [{"op": "map", "path": "/l", "ops": [rename("x", "y")]}],
        '{"l":[{"x":1.0},{"x":2}]}',
        '{"l":[{"y":1.0},{"y":2}]}',
    ),
    "map of scalars": Step(
        shape(l={"type": "array", "items": WHOLE}),
        shape(l={"type": "array", "items": TEXT}),
        [{"op": "map", "path": "/l", "ops": [builtin("", "integer", "string", "int_to_string", "string_to_int")]}],
        '{"l":[1,2]}',
        '{"l":["1","2"]}',
    ),
    "optional, absent": Step(shape("a", a=WHOLE), shape("b", b=WHOLE), [rename("a", "b", optional=True)], "{}", "{}"),
    "optional, present": Step(
        shape("a", a=WHOLE), shape("b", b=WHOLE), [rename("a", "b", optional=True)], '{"a":1}', '{"b":1}'
    ),
    "several": Step(
        shape(a=WHOLE, o=shape(x=TEXT)),
        shape(b=LIST, x=TEXT, c=NUMBER),
        [
            rename("a", "b"),
            {"op": "wrap", "path": "/b", "mode": "singleton"},
            {"op": "hoist", "host": "/o", "name": "x", "to": "/x"},
            {"op": "remove", "path": "/o", "schema": {"type": "object"}, "default": {}},
            {"op": "add", "path": "/c", "schema": NUMBER, "default": 0.5},
        ],
        '{"a":1.0,"o":{"x":"t"}}',
        '{"b":[1.0],"x":"t","c":0.5}',
    ),
    "no ops at all": Step(shape(a=WHOLE), shape("b", a=NUMBER, b=TEXT), [], '{ "a" : 1 }', '{ "a" : 1 }'),
}


def raw(api: Api, path: str, events: list[str], **headers: str) -> str:
    """Append events as they are spelled."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = api.post(path, f"[{','.join(events)}]".encode(), {**JSON, **named})
    assert answer.status_code == 204, answer.text
    return str(answer.headers["stream-next-offset"])


def data(wire: Wire) -> Any:
    """The next data event of an SSE response."""
    while True:
        event = wire.event()
        assert event is not None, "the response ended"
        if event.kind == "data":
            return event


@pytest.mark.parametrize("name", STEPS)
def test_older_events_come_out_in_the_newest_shape_whichever_way(
    server: ServerProcess, api: Api, connect: Connect, name: str
) -> None:
    step = STEPS[name]
    path = installed(api, step.old)
    first = raw(api, path, [step.before], stream_key="k")
    raw(api, path, [step.before, step.before], stream_key="other")
    evolve(api, path, step.new, *step.ops)
    raw(api, path, [step.after], stream_key="k")
    all_four = f"[{','.join([step.after] * 4)}]".encode()
    of_key = f"[{step.after},{step.after}]".encode()
    assert api.get(path).content == all_four
    assert api.get(path, offset=first).content == f"[{','.join([step.after] * 3)}]".encode()
    assert api.get(path, format="raw").content == step.after.encode() * 4
    assert api.get(path, key="k").content == api.get(f"{path}/pk/k").content == of_key
    assert api.get(path, live="long-poll", offset="-1").content == all_four
    assert api.get(path, live="long-poll", offset="-1", key="k").content == of_key
    for query, expected in (("", all_four), ("&key=k", of_key)):
        wire = connect(server).request("GET", f"{path}?live=sse&offset=-1{query}")
        assert wire.head()[0] == 200
        assert data(wire).data.encode() == expected


@pytest.mark.parametrize("name", STEPS)
def test_newer_events_come_out_in_the_older_shape_that_is_asked_for(api: Api, name: str) -> None:
    step = STEPS[name]
    path = installed(api, step.old)
    raw(api, path, [step.before])
    evolve(api, path, step.new, *step.ops)
    raw(api, path, [step.after, step.after])
    found = api.get(path, schema_version=1)
    assert found.status_code == 200, found.text
    stored, *turned = found.json()
    assert found.content.startswith(b"[" + step.before.encode())
    assert turned == [stored, stored] == [json.loads(step.before)] * 2
    assert api.get(path, schema_version=2).content == api.get(path).content


def test_events_go_through_every_lens_on_the_way(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    shapes = [
        (shape(b=WHOLE), rename("a", "b")),
        (shape(b=LIST), {"op": "wrap", "path": "/b", "mode": "singleton"}),
        (shape(o=shape(b=LIST)), {"op": "plunge", "from": "/b", "host": "/o", "name": "b"}),
    ]
    spelled = ['{"a":%d.0}', '{"b":%d.0}', '{"b":[%d.0]}', '{"o":{"b":[%d.0]}}']
    raw(api, path, [spelled[0] % 1, spelled[0] % 2])
    for number, (schema, op) in enumerate(shapes, 1):
        evolve(api, path, schema, op)
        raw(api, path, [spelled[number] % (number + 2)])
    for version, text in enumerate(spelled, 1):
        expected = f"[{','.join(text % number for number in range(1, 6))}]"
        assert api.get(path, schema_version=version).content.decode() == expected
        assert api.get(path, schema_version=version, format="raw").content.decode() == "".join(
            text % number for number in range(1, 6)
        )
    assert api.get(path).json() == api.get(path, schema_version=4).json()


def test_what_no_op_touches_keeps_its_bytes(api: Api) -> None:
    untouched = (
        '"big":9007199254740993,"bigger":123456789012345678901234567890,"one":1.0,"hundred":1e2,'
        '"exact":0.1000000000000000055511151231257827,"text":"\\u00e9\\/\\ud83d\\ude00","deep":{"z":[1.0,{"10":1,"9":2}],"a":-0.0}'
    )
    path = installed(api, {"type": "object", "properties": {"old": WHOLE}, "required": ["old"]})
    raw(api, path, [f'{{{untouched},"old":5.0}}'])
    evolve(
        api,
        path,
        {"type": "object", "properties": {"new": WHOLE}, "required": ["new"]},
        rename("old", "new"),
    )
    assert api.get(path).content.decode() == f'[{{{untouched},"new":5.0}}]'
    assert api.get(path, schema_version=1).content.decode() == f'[{{{untouched},"old":5.0}}]'


def test_defaults_are_not_shared_between_events(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1}, {"a": 2}, {"a": 3})
    evolve(
        api,
        path,
        shape(o=shape(a=WHOLE)),
        {"op": "add", "path": "/o", "schema": {"type": "object"}, "default": {}},
        {"op": "plunge", "from": "/a", "host": "/o", "name": "a"},
    )
    assert api.get(path).json() == [{"o": {"a": number}} for number in (1, 2, 3)]


def test_readers_at_the_tail_get_the_shape_they_asked_for(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1})
    modes = ("long-poll", "sse")
    newest = {mode: connect(server).request("GET", f"{path}?live={mode}&offset=now&timeout=8s") for mode in modes}
    oldest = {
        mode: connect(server).request("GET", f"{path}?live={mode}&offset=now&schema_version=1&timeout=8s")
        for mode in modes
    }
    eventually(lambda: api.metric("headrace_watchers") == 4)
    evolve(api, path, shape(b=WHOLE), rename("a", "b"))
    append(api, path, {"b": 2})
    for readers, expected in ((newest, [{"b": 2}]), (oldest, [{"a": 2}])):
        assert json.loads(readers["long-poll"].answer().body) == expected
        assert readers["sse"].head()[0] == 200
        assert data(readers["sse"]).json == expected
    evolve(api, path, shape(c=WHOLE), rename("b", "c"))
    append(api, path, {"c": 3})
    assert data(newest["sse"]).json == [{"c": 3}]
    assert data(oldest["sse"]).json == [{"a": 3}]


def test_a_change_of_shape_alone_wakes_nobody(
    server: ServerProcess, api: Api, connect: Connect, eventually: Eventually
) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1})
    waiting = connect(server).request("GET", f"{path}?live=long-poll&offset=now&timeout=8s")
    eventually(lambda: api.metric("headrace_watchers") == 1)
    evolve(api, path, shape(b=WHOLE), rename("a", "b"))
    assert api.metric("headrace_watchers") == 1
    tail = append(api, path, {"b": 2})
    answer = waiting.answer()
    assert json.loads(answer.body) == [{"b": 2}]
    assert answer.headers["stream-next-offset"] == tail


def test_a_fork_turns_what_it_inherited(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1}, {"a": 2})
    branch = api.name()
    assert api.put(branch, headers={"stream-forked-from": path}).status_code == 201
    evolve(api, branch, shape(b=WHOLE), rename("a", "b"))
    append(api, branch, {"b": 3})
    append(api, path, {"a": 4})
    assert api.get(branch).json() == [{"b": 1}, {"b": 2}, {"b": 3}]
    assert api.get(branch, schema_version=1).json() == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert api.get(path).json() == [{"a": 1}, {"a": 2}, {"a": 4}]

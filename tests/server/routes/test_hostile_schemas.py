"""Registries that no honest client sends: never a 5xx, never a hang, and nobody else has to wait."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.format import offset as offsets
from server.registries import TEXT, WHOLE, append, evolve, installed, lens, name_of, post, registry, rename, shape

if TYPE_CHECKING:
    from tests.conftest import StartServer
    from tests.server.conftest import Api

JSON = {"content-type": "application/json"}
Code = Callable[[Any], str]

KiB, MiB = 1024, 1024 * 1024
#: The working time of a request, and what a busy machine may add to it.
WORKING_S = 5.0 + 2.0
#: How long anyone else may have to wait meanwhile.
OTHERS_S = 2.0


def calmly(api: Api, ask: Callable[[], httpx2.Response]) -> httpx2.Response:
    """Ask for something hard in one thread, while others append as if nothing were."""
    other, waits = api.stream(), [0.0]
    answers: list[httpx2.Response] = []

    def asked() -> None:
        with contextlib.suppress(httpx2.TimeoutException):
            answers.append(ask())

    asking = threading.Thread(target=asked)
    began = time.monotonic()
    asking.start()
    while asking.is_alive():
        sent = time.monotonic()
        assert api.post(other, [1]).status_code == 204
        waits.append(time.monotonic() - sent)
        asking.join(0.01)
    assert answers and time.monotonic() - began < WORKING_S, "there was no answer in time"
    assert max(waits) < OTHERS_S, "somebody else had to wait"
    assert answers[0].status_code < 500, answers[0].text
    assert len(answers[0].content) < 2 * MiB, "the answer has no bound"
    return answers[0]


# -- bodies


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"nul",
        b'{"schema":}',
        b'{"schema":{}}x',
        b'{"schema":{},}',
        b"{'schema':{}}",
        b'{"schema":NaN}',
        b'{"schema":{"maximum":1e99999}}',
        b'\xef\xbb\xbf{"schema":{}}',
        b'{"schema":{"title":"\xff"}}',
        b'{"schema":{"title":"\xc0\xaf"}}',
        b'{"schema":{"title":"\\ud800"}}',
        b'{"schema":{"title":"\x00"}}',
        b"\x00" * 100,
        b"[" * 100_000,
        b'{"schema":' + b'{"not":' * 100_000,
        b'{"schema":' + b'{"not":' * 50_000 + b"{}" + b"}" * 50_001,
        b'{"schema":{"enum":[' + b"[" * 5_000 + b"]" * 5_000 + b"]}}",
    ],
    ids=range(21),
)
def test_what_is_no_update_is_refused(api: Api, code_of: Code, body: bytes) -> None:
    path = api.stream()
    refused = api.post(f"{path}/_schema", body, JSON)
    assert refused.status_code == 400
    assert code_of(refused) == "bad_request"
    assert len(refused.content) < 10_000
    assert registry(api, path)["currentVersion"] == 0


def test_an_update_beyond_the_limit_of_bodies_is_too_large(api: Api, code_of: Code) -> None:
    refused = api.post(f"{api.stream()}/_schema", b'{"schema":{"title":"' + b"x" * 11 * MiB + b'"}}', JSON)
    assert refused.status_code == 413
    assert code_of(refused) == "payload_too_large"


WIDE = {
    "elements": b'{"schema":{"enum":[' + b",".join([b"[]"] * 2_000_000) + b"]}}",
    "objects": b'{"schema":{"enum":[' + b",".join([b'{"a":{}}'] * 500_000) + b"]}}",
    "unknown members": b"{" + b",".join(b'"k%d":1' % number for number in range(300_000)) + b"}",
    "keywords": b'{"schema":{' + b",".join(b'"k%d":1' % number for number in range(300_000)) + b"}}",
    "search fields": b'{"schema":true,"search":{"fields":{'
    + b",".join(b'"k%d":1' % number for number in range(300_000))
    + b"}}}",
    "patterns": json.dumps({"schema": {"patternProperties": {f"^{n}": True for n in range(10_000)}}}).encode(),
    "drafts": json.dumps({"schema": {"allOf": [{"$schema": "x"} for _ in range(8_000)]}}).encode(),
    "references": json.dumps({"schema": {"allOf": [{"$ref": f"x{n}"} for n in range(8_000)]}}).encode(),
}


@pytest.mark.parametrize("kind", WIDE)
def test_what_is_far_too_wide_is_refused_in_time_and_in_few_words(api: Api, kind: str) -> None:
    path = api.stream()
    refused = calmly(api, lambda: api.post(f"{path}/_schema", WIDE[kind], JSON))
    assert refused.status_code in (400, 413)
    assert registry(api, path)["currentVersion"] == 0


def test_a_lens_of_very_many_ops_is_refused_in_few_words(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    many = [{"op": "nope"}] * 200_000
    refused = calmly(api, lambda: post(api, path, schema=shape(b=WHOLE), lens=lens(path, 1, *many)))
    assert refused.status_code in (400, 413)


# -- wrong kinds everywhere


JUNK = st.sampled_from(
    [None, True, False, 0, -1, 1.5, 10**30, "", "x", "/", "/a~", "\u0000", [], [[]], {}, {"": {}}, {"$ref": "#"}]
) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def full(path: str) -> dict[str, Any]:
    """An update with everything in it."""
    return {
        "apiVersion": "durable.streams/schema-registry/v1",
        "schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$defs": {"d": {"type": "string", "pattern": "^a", "maxLength": 9}},
            **shape("e", b=LIST, e={"anyOf": [{"$ref": "#/$defs/d"}, {"enum": [1, None, "x"]}]}),
        },
        "lens": lens(
            path,
            1,
            rename("a", "b"),
            {"op": "wrap", "path": "/b", "mode": "singleton"},
            {"op": "map", "path": "/b", "ops": [_convert("")]},
            {"op": "in", "path": "", "ops": []},
        ),
        "routingKey": {"jsonPointer": "/e", "required": False},
        "search": {
            "primaryTimestampField": "time",
            "defaultFields": [{"field": "word", "boost": 2}],
            "aliases": {"w": "word"},
            "fields": {
                "time": {"kind": "date", "bindings": [{"version": 1, "jsonPointer": "/t"}], "column": True},
                "word": {
                    "kind": "text",
                    "bindings": [{"version": 1, "jsonPointer": "/w"}],
                    "analyzer": "unicode_word_v1",
                },
            },
            "rollups": {
                "r": {"intervals": ["1m"], "include": "word:x", "measures": {"n": {"kind": "count"}}},
            },
        },
    }


def _convert(path: str) -> dict[str, Any]:
    table = {"map": {"1": 2}, "default": 0}
    return {
        "op": "convert",
        "path": path,
        "fromType": "integer",
        "toType": "integer",
        "forward": table,
        "backward": table,
    }


LIST = {"type": "array", "items": WHOLE}


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for key, item in inner for place in places(item, (*way, key)))]


PLACES = places(full("/v1/stream/x"))[1:]


@settings(max_examples=400 if settings.get_current_profile_name() == "deep" else 120)
@given(st.sampled_from(PLACES), JUNK, st.booleans())
def test_anything_anywhere_in_an_update_is_taken_or_refused(
    api: Api, place: tuple[Any, ...], junk: Any, dry: bool
) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1})
    body: Any = copy.deepcopy(full(path))
    *way, last = place
    inner = body
    for key in way:
        inner = inner[key]
    inner[last] = junk
    answer = api.call("POST", f"{path}/_schema", body, **({"dry_run": "true"} if dry else {}))
    assert answer.status_code in (200, 400, 409), answer.text
    version = registry(api, path)["currentVersion"]
    assert version == 1 or (answer.status_code == 200 and not dry)
    assert api.get(path).status_code == 200


def test_the_update_with_everything_in_it_is_a_good_one(api: Api) -> None:
    path = installed(api, shape(a=WHOLE))
    append(api, path, {"a": 1}, {"a": 7})
    assert api.post(f"{path}/_schema", full(path)).status_code == 200
    assert api.get(path).json() == [{"b": [2]}, {"b": [0]}]


# -- schemas that are hard to follow


@pytest.mark.parametrize(
    "pattern",
    [
        "^(a+)+$",
        "^(a|a)*$",
        "^(a|aa)+$",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(a*)*b",
        "^(a{1,100}){1,100}$",
        "(.*a){25}",
        "^(\\w{1,20}\\s?){1,20}$",
        "(?:a?){100}a{100}",
        "((a{0,100}){0,100}){0,100}",
        "(?=(a+))\\1b",
        "(?<!a)b",
    ],
)
def test_no_pattern_holds_up_an_append(api: Api, pattern: str) -> None:
    path = api.stream()
    answer = calmly(api, lambda: post(api, path, schema={"type": "string", "pattern": pattern}))
    if answer.status_code == 200:
        long = '"' + "a" * 2_000_000 + '!"'
        assert calmly(api, lambda: api.post(path, long.encode(), JSON)).status_code in (204, 400)
    else:
        assert answer.status_code == 400


@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
def test_a_schema_that_refers_to_itself_judges_deep_events_in_time(api: Api, word: str) -> None:
    inner = {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}
    branches = [{**inner, "minProperties": 1}, {**inner, "maxProperties": 3}, {"type": "integer"}]
    path = installed(api, {"$ref": "#/$defs/n", "$defs": {"n": {word: branches}}})
    for depth in (3, 30, 90, 1_000, 50_000):
        for leaf in ("1", '"x"'):
            body = ('{"c":' * depth + leaf + "}" * depth).encode()
            answer = calmly(api, lambda body=body: api.post(path, body, JSON))  # type: ignore[misc]
            assert answer.status_code in (204, 400)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    ],
)
def test_a_schema_that_never_ends_is_refused(api: Api, schema: dict[str, Any]) -> None:
    path = api.stream()
    assert calmly(api, lambda: post(api, path, schema=schema)).status_code == 400


def test_references_that_double_again_and_again_are_refused(api: Api) -> None:
    defs: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    path = api.stream()
    schema = {"$defs": {**defs, "d60": WHOLE}, "$ref": "#/$defs/d0"}
    assert calmly(api, lambda: post(api, path, schema=schema)).status_code == 400


def test_ten_thousand_properties_are_taken_or_refused_in_time(api: Api) -> None:
    path = api.stream()
    answer = calmly(api, lambda: post(api, path, schema={"properties": {f"p{n}": WHOLE for n in range(9_000)}}))
    event = {f"p{n}": n for n in range(10_000)}
    if answer.status_code == 200:
        assert calmly(api, lambda: api.post(path, [event])).status_code == 204
        assert calmly(api, lambda: api.post(path, [{**event, "p17": "x"}])).status_code == 400
        wider = {"properties": {f"p{n}": {"type": ["integer", "null"]} for n in range(5_000)}}
        assert calmly(api, lambda: post(api, path, schema=wider)).status_code in (200, 400)
        assert api.get(path).json() == [event]


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [*({"a": number} for number in range(15_000)), 0]},
        {"anyOf": [*({"const": f"x{number}"} for number in range(4_000)), WHOLE]},
        {"enum": [*(number + 0.5 for number in range(9_000)), 0]},
    ],
    ids=["objects", "choices", "fractions"],
)
def test_many_events_against_many_choices_keep_nobody_waiting(
    start_server: StartServer, api_of: Any, schema: dict[str, Any]
) -> None:
    api = api_of(start_server())
    path = api.stream()
    if calmly(api, lambda: post(api, path, schema=schema)).status_code == 400:
        return
    for event in (b'{"a":-1}', b"0"):
        body = b"[" + b",".join([event] * 50_000) + b"]"
        assert calmly(api, lambda body=body: api.post(path, body, JSON)).status_code in (204, 400, 408, 413)  # type: ignore[misc]


# -- proofs that are hard to find


def _members(count: int, value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{n}": value for n in range(count)}, **more}


def _nested(depth: int, leaf: Any) -> Any:
    if not depth:
        return leaf
    inner = {"type": "object", "properties": {"a": _nested(depth - 1, leaf)}}
    return {"anyOf": [{**inner, "required": ["a"]}, {**inner, "required": ["a", "b"]}]}


def _crossed(groups: int, branches: int, value: Any) -> Any:
    def branch(group: int, number: int) -> Any:
        names = range(100 * group + number, 100 * group + number + 20)
        return {
            "type": "object",
            "properties": {f"p{n}": value for n in names},
            "required": [f"p{names[0]}"],
        }

    return {"allOf": [{"anyOf": [branch(group, n) for n in range(branches)]} for group in range(groups)]}


def _wide(kinds: list[str]) -> Any:
    return {"anyOf": [_members(90, {"type": kinds}, required=[f"p{n}"]) for n in range(40)]}


NUMBER = {"type": "number"}
ALL = [f"p{n}" for n in range(1_500)]
HARD: dict[str, tuple[Any, Any, list[Any]]] = {
    "nested choices": (_nested(9, WHOLE), _nested(9, NUMBER), []),
    "nested choices that differ": (_nested(9, WHOLE), _nested(9, TEXT), []),
    "choices of choices": (_crossed(2, 40, WHOLE), _crossed(2, 40, NUMBER), []),
    "many pairs of choices": (_crossed(20, 2, WHOLE), _crossed(20, 2, NUMBER), []),
    "wide choices": (_wide(["integer", "string"]), _wide(["integer", "string", "array"]), []),
    "every member another type": (_members(1_500, WHOLE, required=ALL), _members(1_500, TEXT), []),
    "every member renamed": (
        _members(1_500, WHOLE, required=ALL, additionalProperties=False),
        {"type": "object"},
        [rename(f"p{n}", f"q{n}") for n in range(1_500)],
    ),
    "thousands of copies": (
        _members(500, WHOLE, required=ALL[:500]),
        {"type": "object"},
        [{"op": "copy", "from": "/p0", "to": "/p1"}] * 5_000,
    ),
    "thousands of ops without a source": (
        _members(2, WHOLE),
        {"type": "object"},
        [{"op": "remove", "path": f"/z{n}", "schema": True} for n in range(10_000)],
    ),
}


@pytest.mark.parametrize("name", HARD)
def test_a_proof_that_is_hard_to_find_is_found_or_given_up_in_time(
    start_server: StartServer, api_of: Any, name: str
) -> None:
    old, new, ops = HARD[name]
    api = api_of(start_server())
    path = installed(api, old)
    answer = calmly(api, lambda: post(api, path, schema=new, lens=lens(path, 1, *ops)))
    assert answer.status_code in (200, 400, 408)
    assert registry(api, path)["currentVersion"] == (2 if answer.status_code == 200 else 1)


def test_many_hard_proofs_at_once_keep_nobody_waiting(start_server: StartServer, api_of: Any) -> None:
    api = api_of(start_server())
    old, new, _ = HARD["nested choices"]
    path = installed(api, old)
    asking = [
        threading.Thread(target=lambda: api.call("POST", f"{path}/_schema", {"schema": new}, dry_run="true"))
        for _ in range(4)
    ]
    for thread in asking:
        thread.start()
    assert calmly(api, lambda: post(api, api.stream(), schema={"type": "object"})).status_code == 200
    for thread in asking:
        thread.join()


# -- events that are hard to turn


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_an_accepted_depth_can_be_read_in_every_version(api: Api, opening: str) -> None:
    """Whatever is let in must come out again, however deep the reading code stands."""
    closing = "]" if opening == "[" else "}"

    def nested(depth: int) -> str:
        return opening * depth + "1" + closing * depth

    def accepted(depth: int) -> str | None:
        path = installed(api, {"type": "object", "required": ["x"]})
        body = f'[{{"x":{nested(depth)},"k":"v"}},{{"x":0}}]'.encode()
        answer = api.post(path, body, JSON)
        assert answer.status_code in (204, 400)
        return path if answer.status_code == 204 else None

    low, high = 60, 20_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    for depth in range(low - 25, low + 2):
        path = accepted(depth)
        if path is None:
            continue
        evolve(api, path, {"type": "object", "required": ["y"]}, rename("x", "y"), _add("z"))
        older = f'{{"x":{nested(depth)},"k":"v"}},{{"x":0}},{{"k":"v","x":{nested(depth)}}},{{"x":0}}'
        newest = f'{{"k":"v","y":{nested(depth)},"z":5}},{{"y":0,"z":5}}'
        assert api.post(path, f"[{newest}]".encode(), JSON).status_code == 204
        assert api.get(path).content.decode() == f"[{newest},{newest}]"
        assert api.get(path, schema_version=1).content.decode() == f"[{older}]"
        after = offsets.encode(offsets.decode(api.offset(path)).epoch, 1)
        rest = older.partition('"k":"v"},')[2]
        assert api.get(path, schema_version=1, offset=after).content.decode() == f"[{rest}]"


def _add(name: str) -> dict[str, Any]:
    return {"op": "add", "path": f"/{name}", "schema": WHOLE, "default": 5, "overwrite": True}


@pytest.mark.parametrize("number", ["1e400", "-1e-400", "1e999999999", "1" * 4_000, "1" * 5_000, "0." + "1" * 5_000])
@pytest.mark.parametrize(
    "schema", [WHOLE, {"multipleOf": 3}, {"multipleOf": 0.01}, {"maximum": 10}, {"enum": [1, 2.5]}]
)
def test_numbers_without_measure_are_judged_in_time_and_kept(api: Api, number: str, schema: dict[str, Any]) -> None:
    path = installed(api, schema)
    answer = calmly(api, lambda: api.post(path, number.encode(), JSON))
    assert answer.status_code in (204, 400)
    assert api.get(path).content.decode() == (f"[{number}]" if answer.status_code == 204 else "[]")


def test_a_name_that_needs_escaping_is_a_name_like_any_other(api: Api) -> None:
    path = "/v1/stream/a%20b%2F..%C3%A9'%22%3Cx%3E"
    assert api.put(path, headers=JSON).status_code in (201, 400)
    path = "/v1/stream/a%20b/%C3%A9'%22%3Cx%3E"
    assert api.put(path, headers=JSON).status_code == 201
    assert post(api, path, schema=shape(a=WHOLE)).status_code == 200
    name = registry(api, path)["schema"]
    assert name == "a b/é'\"<x>" != name_of(path)
    append(api, path, {"a": 1})
    assert post(api, path, schema=shape(b=WHOLE), lens=lens(name, 1, rename("a", "b"))).status_code == 200
    assert api.get(path).json() == [{"b": 1}]

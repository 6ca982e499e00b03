"""Types are decoded in any thread, also while another thread prepares them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

#: Builtin types and names of msgspec that need no preparation: only types with fields do.
_WITHOUT_FIELDS = {
    "Any",
    "Raw",
    "UnsetType",
    "bool",
    "bytes",
    "dict",
    "float",
    "int",
    "list",
    "msgspec",
    "str",
    "tuple",
}

_CALLS = {
    "decode": "decoding.decode(msgspec.json.encode(DOCUMENT), Outer)",
    "convert": "decoding.convert(DOCUMENT, Outer)",
    "unpack": "decoding.unpack(msgspec.msgpack.encode(DOCUMENT), Outer)",
    "make_decoder": "decoding.make_decoder(Outer).decode(msgspec.json.encode(DOCUMENT))",
}

#: An annotation is evaluated while its type is prepared: the first thread stays there until the second has decoded, or
#: waits for the first.
_PROGRAM = """
import threading

import msgspec

from headrace import decoding

DOCUMENT = {{"after": {{"name": "x"}}}}
prepares, decoded, names = threading.Event(), threading.Event(), []


def pause():
    prepares.set()
    decoded.wait(0.3)
    return int


class Inner(msgspec.Struct):
    number: "pause()" = 0


class After(msgspec.Struct):
    name: str


class Outer(msgspec.Struct):
    before: Inner = msgspec.UNSET
    after: After = msgspec.UNSET


def first():
    names.append({first}.after.name)


def second():
    assert prepares.wait(10)
    names.append({second}.after.name)
    decoded.set()


threads = [threading.Thread(target=run) for run in (first, second)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(names)
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [("decode", "decode"), ("convert", "unpack"), ("unpack", "make_decoder"), ("make_decoder", "convert")],
)
def test_a_type_is_decoded_while_another_thread_prepares_it(first: str, second: str) -> None:
    program = _PROGRAM.format(first=_CALLS[first], second=_CALLS[second])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0
    assert ended.stdout == "['x', 'x']\n"
    assert ended.stderr == ""


def test_types_with_fields_are_decoded_by_this_module_alone() -> None:
    root = Path(headrace.__file__).parent
    texts = {path: path.read_text() for path in sorted(root.rglob("*.py")) if path != root / "decoding.py"}
    calls = [
        f"{path.relative_to(root)}:{call.lineno}: {ast.unparse(call)}"
        for path, text in texts.items()
        if "msgspec." in text
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and any(map(_has_fields, _decoded_types(call)))
    ]
    assert calls == []


def _decoded_types(call: ast.Call) -> list[ast.expr]:
    """The type that msgspec is called with, where it is called with one."""
    match ast.unparse(call.func).split("."):
        case ["msgspec", "json" | "msgpack", "Decoder"]:
            return call.args[:1]
        case ["msgspec", "convert"]:
            return call.args[1:2]
        case ["msgspec", "json" | "msgpack", "decode"]:
            return [keyword.value for keyword in call.keywords if keyword.arg == "type"]
    return []


def _has_fields(kind: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id not in _WITHOUT_FIELDS for node in ast.walk(kind))

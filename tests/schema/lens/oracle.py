"""A plain reading of the ops of lens documents, to hold compiled lenses against.

It works on Python values, copies everything, and keeps numbers as they were spelled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

Names = tuple[str, ...]


class Number(str):
    """A number as it was spelled."""

    __slots__ = ()


class Refused(Exception):
    """The oracle's failure."""


def load(text: bytes | str) -> Any:
    """A document with its numbers as they were spelled."""
    return json.loads(text, parse_int=Number, parse_float=Number)


def spell(value: Any, style: int = 0) -> bytes:
    """A document as text; styles differ in blanks and escapes."""
    return _spelled(value, *((", ", " : ") if style & 1 else (",", ":")), bool(style & 2)).encode()


def _spelled(value: Any, comma: str, colon: str, escape: bool) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        members = (
            json.dumps(n, ensure_ascii=escape) + colon + _spelled(v, comma, colon, escape) for n, v in value.items()
        )
        return "{" + comma.join(members) + "}"
    if isinstance(value, list):
        return "[" + comma.join(_spelled(item, comma, colon, escape) for item in value) + "]"
    return json.dumps(value, ensure_ascii=escape)


def text(names: Names) -> str:
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


def names_of(pointer: str) -> Names:
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def _key(container: Any, name: str) -> Any:
    """The key a name stands for in a container; an array is only as long as it is."""
    if isinstance(container, dict):
        return name
    if isinstance(container, list) and name in map(str, range(len(container))):
        return int(name)
    raise Refused(name)


def look(value: Any, names: Names) -> Any:
    for name in names:
        key = _key(value, name)
        if isinstance(value, dict) and key not in value:
            raise Refused(name)
        value = value[key]
    return value


def has(value: Any, names: Names) -> bool:
    try:
        look(value, names)
    except Refused:
        return False
    return True


def cloned(value: Any) -> Any:
    """A copy that shares nothing."""
    if isinstance(value, dict):
        return {name: cloned(inner) for name, inner in value.items()}
    return [cloned(inner) for inner in value] if isinstance(value, list) else value


def put(value: Any, names: Names, new: Any) -> Any:
    if not names:
        return cloned(new)
    parent = look(value, names[:-1])
    parent[_key(parent, names[-1])] = cloned(new)
    return value


def _drop(value: Any, names: Names) -> Any:
    if not names:
        raise Refused("nothing would be left")
    parent = look(value, names[:-1])
    del parent[_key(parent, names[-1])]
    return value


def _carry(op: dict[str, Any], value: Any, source: Names, target: Names, moves: bool) -> Any:
    if op.get("optional") and not has(value, source):
        return value
    value = put(value, target, look(value, source))
    overwritten = source[: len(target)] == target
    return _drop(value, source) if moves and not overwritten else value


def _moved(op: dict[str, Any], value: Any) -> Any:
    return _carry(op, value, names_of(op["from"]), names_of(op["to"]), op["op"] == "rename")


def _hoisted(op: dict[str, Any], value: Any) -> Any:
    host = names_of(op["host"])
    if op.get("optional") and not has(value, host):
        return value
    if not isinstance(look(value, host), dict):
        raise Refused("no object")
    return _carry(op, value, (*host, op["name"]), names_of(op["to"]), op.get("removeFromHost", True))


def _plunged(op: dict[str, Any], value: Any) -> Any:
    host = names_of(op["host"])
    if op.get("optional") and not has(value, names_of(op["from"])):
        return value
    look(value, names_of(op["from"]))
    for end in range(len(host) + 1):
        if op.get("createHost", True) and not has(value, host[:end]):
            value = put(value, host[:end], {})
    if not isinstance(look(value, host), dict):
        raise Refused("no object")
    return _carry(op, value, names_of(op["from"]), (*host, op["name"]), op.get("removeFromSource", True))


def _added(op: dict[str, Any], value: Any) -> Any:
    path = names_of(op["path"])
    if op.get("optional") and not has(value, path[:-1]):
        return value
    if not op.get("overwrite") and has(value, path):
        raise Refused("there")
    return put(value, path, load(json.dumps(op["default"])))


def _removed(op: dict[str, Any], value: Any) -> Any:
    path = names_of(op["path"])
    look(value, path)
    return _drop(value, path)


def _at_path(change: Callable[[dict[str, Any], Any], Any]) -> Callable[[dict[str, Any], Any], Any]:
    def apply_there(op: dict[str, Any], value: Any) -> Any:
        path = names_of(op["path"])
        return put(value, path, change(op, look(value, path)))

    return apply_there


def _head(op: dict[str, Any], value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise Refused("no head")
    return value[0]


def _inside(op: dict[str, Any], value: Any) -> Any:
    if not isinstance(value, dict):
        raise Refused("no object")
    return promoted(op["ops"], value)


def _mapped(op: dict[str, Any], value: Any) -> Any:
    if not isinstance(value, list):
        raise Refused("no array")
    return [promoted(op["ops"], element) for element in value]


def is_type(value: Any, name: str) -> bool:
    kinds = {"string": str, "boolean": bool, "null": type(None), "object": dict, "array": list}
    if isinstance(value, Number):
        return name == "number" or (name == "integer" and Decimal(value) % 1 == 0)
    return name in kinds and isinstance(value, kinds[name])


def _text_of(value: Any) -> str:
    if isinstance(value, Number):
        number = Decimal(value)
        return str(int(number)) if number % 1 == 0 else repr(float(value))
    return value if isinstance(value, str) else json.dumps(value)


def _leading_integer(value: str) -> Number:
    digits = value.strip()
    while digits and not digits.removeprefix("-").isdigit():
        digits = digits[:-1]
    if not digits:
        raise Refused("no integer")
    return Number(int(digits))


_BUILTINS: dict[str, Callable[[Any], Any]] = {
    "lowercase": str.lower,
    "uppercase": str.upper,
    "string_to_int": _leading_integer,
    "int_to_string": _text_of,
}


def _convert(op: dict[str, Any], value: Any) -> Any:
    if not is_type(value, op["fromType"]):
        raise Refused("another type")
    transform = op["forward"]
    if "builtin" in transform:
        result = _BUILTINS[transform["builtin"]](value)
    elif isinstance(value, dict | list) or _text_of(value) not in transform["map"]:
        if "default" not in transform:
            raise Refused("no entry")
        result = load(json.dumps(transform["default"]))
    else:
        result = load(json.dumps(transform["map"][_text_of(value)]))
    if not is_type(result, op["toType"]):
        raise Refused("another result")
    return result


_APPLY: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "rename": _moved,
    "copy": _moved,
    "add": _added,
    "remove": _removed,
    "hoist": _hoisted,
    "plunge": _plunged,
    "wrap": _at_path(lambda op, value: [value]),
    "head": _at_path(_head),
    "convert": _at_path(_convert),
    "in": _at_path(_inside),
    "map": _at_path(_mapped),
}


def promoted(ops: list[dict[str, Any]], value: Any) -> Any:
    """What the ops make of a document, or Refused."""
    value = cloned(value)
    for op in ops:
        if op.get("optional") and "path" in op and op["op"] != "add" and not has(value, names_of(op["path"])):
            continue
        value = _APPLY[op["op"]](op, value)
    return value

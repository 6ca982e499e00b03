"""Rows of typed columns as JSON, written by SQL of DuckDB, which the import of files and of frames share.

Values that JSON lacks are written so that nothing is lost: moments as RFC 3339 in UTC, dates as ISO 8601, decimals and
large integers with all their digits, bytes in base64. NaN and infinities become null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

_JSON = "JSON"


class Column(NamedTuple):
    """A column: its name in the rows, the SQL of its value, and the type that DuckDB has for it."""

    name: str
    sql: str
    kind: Any


def quote(text: str) -> str:
    """Text as SQL quotes it."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def select_rows(relation: str, columns: Sequence[Column], *, omit_nulls: bool = False) -> str:
    """SQL for the rows of a relation as JSON texts; with ``omit_nulls`` without the members that are null."""
    names = [column.name.lower() for column in columns]
    is_raw = any(str(column.kind) == _JSON for column in columns)
    # The names of a struct are not empty, and differ in more than case.
    if omit_nulls or is_raw or "" in names or len(set(names)) < len(names):
        return f"SELECT {join_members([_member(column, omit_nulls) for column in columns])} AS row FROM {relation}"
    members = [f"{identifier(column.name)} := {_json_value(column.kind, column.sql)}" for column in columns]
    return f"SELECT to_json(struct_pack({', '.join(members)}))::VARCHAR AS row FROM {relation}"


def join_members(members: Sequence[str]) -> str:
    """SQL for an object whose members are these texts; a text that is NULL is left out."""
    return f"'{{' || concat_ws(',', {', '.join(members)}) || '}}'"


def member_name(name: str) -> str:
    """SQL for the text of a member up to its value."""
    return quote(msgspec.json.encode(name).decode() + ":")


def _member(column: Column, omit_nulls: bool) -> str:
    # Text that is JSON already keeps its digits.
    value = column.sql if str(column.kind) == _JSON else f"to_json({_json_value(column.kind, column.sql)})"
    text = f"{value}::VARCHAR"
    return f"{member_name(column.name)} || " + (text if omit_nulls else f"coalesce({text}, 'null')")


def _json_value(kind: Any, column: str, depth: int = 0) -> str:
    """SQL for a value of a typed column as something that ``to_json`` writes without loss."""
    children = dict(kind.children) if kind.id in ("struct", "list", "array", "map") else {}
    element = f"element{depth}"
    match kind.id:
        case "timestamp" | "timestamp_s" | "timestamp_ms" | "timestamp_ns":
            return f"replace({column}::VARCHAR, ' ', 'T') || 'Z'"
        case "timestamp with time zone" | "timestamptz_ns":
            return f"replace(timezone('UTC', {column})::VARCHAR, ' ', 'T') || 'Z'"
        case "float" | "double":
            return f"CASE WHEN isfinite({column}) THEN {column} END"
        case "blob":
            return f"base64({column})"
        case "struct":
            members = [
                f"{identifier(name)} := {_json_value(child, f'{column}.{identifier(name)}', depth)}"
                for name, child in children.items()
            ]
            return f"CASE WHEN {column} IS NOT NULL THEN struct_pack({', '.join(members)}) END"
        case "list" | "array":
            value = _json_value(children["child"], element, depth + 1)
            return f"list_transform({column}, lambda {element}: {value})"
        case "map":
            value = _json_value(children["value"], f"{element}.value", depth + 1)
            entries = f"list_transform(map_entries({column}), lambda {element}: {{k: {element}.key, v: {value}}})"
            return f"map_from_entries({entries})"
    return column

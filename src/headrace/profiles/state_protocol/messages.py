"""Messages of the state protocol: a change of a row, or a control mark between changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace import decoding
from headrace.errors import BadRequest
from headrace.format import offset as offsets
from headrace.profiles.state_protocol.keys import Key, Template
from headrace.schema.date_time import is_date_time
from headrace.schema.entries import Failure
from headrace.schema.entries import read as read_entries
from headrace.schema.pointer import text as pointer_text

SKIP_BEFORE = "skipBefore"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
_OPERATIONS = (INSERT, UPDATE, DELETE)
_CONTROLS = ("snapshot-start", "snapshot-end", "reset")
_CHANGE = frozenset({"type", "key", "value", "old_value", "headers"})
_CHANGE_HEADERS = frozenset({"operation", "txid", "timestamp"})
_CONTROL_HEADERS = frozenset({"control", "offset"})


class ChangeHeaders(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The headers of a change."""

    operation: Literal["insert", "update", "delete"]
    txid: str | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """A row of an entity that came, changed or went."""

    type: str
    key: str
    headers: ChangeHeaders
    value: Any = UNSET
    old_value: Any = UNSET


class _Outline(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A change whose rows are not decoded."""

    type: str
    key: str
    headers: ChangeHeaders
    value: msgspec.Raw | UnsetType = UNSET
    old_value: msgspec.Raw | UnsetType = UNSET


_OUTLINES = decoding.make_decoder(list[_Outline])
_CHANGES = decoding.make_decoder(list[Change])
_ONE = decoding.make_decoder(Change)
_RAW = msgspec.json.Decoder(list[msgspec.Raw])


def changes_of(joined: bytes) -> list[Change | None]:
    """The changes among stored messages joined by commas, in their order; None for what is no change."""
    body = b"[" + joined + b"]"
    try:
        return list(_CHANGES.decode(body))
    except (msgspec.DecodeError, RecursionError):
        return [_change(raw) for raw in _RAW.decode(body)]


def _change(raw: msgspec.Raw) -> Change | None:
    try:
        return _ONE.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def failures(joined: bytes) -> list[Failure]:
    """What is wrong with messages joined by commas, the first fault of each."""
    try:
        if all(map(_is_plain, _OUTLINES.decode(b"[" + joined + b"]"))):
            return []
    except (msgspec.DecodeError, RecursionError):
        pass  # a control mark is among them, or something is wrong
    values, failure_list = read_entries(joined)
    failed_indices = {failure.index for failure in failure_list}
    faults = [_fault(value) if index not in failed_indices else None for index, value in enumerate(values)]
    failure_list += [Failure(index, pointer_text(fault[0]), fault[1]) for index, fault in enumerate(faults) if fault]
    return sorted(failure_list, key=lambda failure: failure.index)


def refusal(failures: list[Failure], number: int = 0) -> BadRequest:
    """Why messages are not taken; ``number`` is that of the first of them."""
    problems = [{**msgspec.structs.asdict(failure), "index": number + failure.index} for failure in failures]
    first = problems[0]
    reason = f"{first['pointer'] or 'it'} {first['reason']}"
    message = f"message {first['index'] + 1} is not one of the state protocol: {reason}"
    return BadRequest(message, field="body", failures=problems)


def _is_plain(change: _Outline) -> bool:
    headers = change.headers
    return (
        bool(change.type.strip() and change.key.strip())
        and (change.value is not UNSET or headers.operation == DELETE)
        and (headers.txid is UNSET or bool(headers.txid.strip()))
        and (headers.timestamp is UNSET or is_date_time(headers.timestamp))
    )


_Fault = tuple[tuple[str, ...], str] | None


def _fault(message: Any) -> _Fault:
    if not isinstance(message, dict):
        return (), "is not an object"
    headers = message.get("headers")
    if not isinstance(headers, dict):
        return ("headers",), "is not an object"
    if ("operation" in headers) == ("control" in headers):
        return ("headers",), "must have exactly one of operation and control"
    return _change_fault(message, headers) if "operation" in headers else _control_fault(message, headers)


def _change_fault(message: dict[str, Any], headers: dict[str, Any]) -> _Fault:
    unknown = _unknown_member(message, _CHANGE) or _unknown_member(headers, _CHANGE_HEADERS, "headers")
    if unknown:
        return unknown
    for name in ("type", "key"):
        if not _is_word(message.get(name)):
            return (name,), "must be a text that is not blank"
    if headers["operation"] not in _OPERATIONS:
        return ("headers", "operation"), f"must be one of {', '.join(_OPERATIONS)}"
    if headers["operation"] != DELETE and "value" not in message:
        return ("value",), f"must be there for an {headers['operation']}"
    if not _is_word(headers.get("txid", "none")):
        return ("headers", "txid"), "must be a text that is not blank"
    timestamp = headers.get("timestamp", "")
    if "timestamp" in headers and not (isinstance(timestamp, str) and is_date_time(timestamp)):
        return ("headers", "timestamp"), "must be a time in RFC 3339"
    return None


def _control_fault(message: dict[str, Any], headers: dict[str, Any]) -> _Fault:
    unknown = _unknown_member(message, frozenset({"headers"})) or _unknown_member(headers, _CONTROL_HEADERS, "headers")
    if unknown:
        return unknown
    if headers["control"] not in _CONTROLS:
        return ("headers", "control"), f"must be one of {', '.join(_CONTROLS)}"
    if "offset" in headers and not _is_offset(headers["offset"]):
        return ("headers", "offset"), "must be an offset of a stream"
    return None


def _unknown_member(members: dict[str, Any], allowed: frozenset[str], *where: str) -> _Fault:
    name = next((name for name in members if name not in allowed), None)
    return None if name is None else ((*where, name), "is not known here")


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_offset(value: Any) -> bool:
    if value == "-1":
        return True
    try:
        offsets.decode(value if isinstance(value, str) else "")
    except ValueError:
        return False
    return True


_MISSING: Any = object()


class NoBefore(Exception):
    """An update without the old value of its row, which the settings of the stream do not allow."""


def touched_keys(template: Template, change: Change, on_missing_before: str) -> set[Key] | None:
    """The keys that a change touches; None where they are unknown, so that any key of the template may be touched."""
    operation = change.headers.operation
    if operation == INSERT:
        return _around(template, template.encode_arguments(change.value))
    if not template.has_fields(change.old_value):
        return _without_before(template, change, on_missing_before)
    before = template.encode_arguments(change.old_value)
    if operation == DELETE:
        return _around(template, before)
    after = template.encode_arguments(change.value)
    if before is None or before != after:
        return _around(template, before) | _around(template, after)
    names = _changed_fields(change.old_value, change.value, template.names)
    return {template.watch_key(before), *(template.field_key(name, before) for name in names)}


def _around(template: Template, arguments: bytes | None) -> set[Key]:
    return set() if arguments is None else {template.watch_key(arguments), template.membership_key(arguments)}


def _without_before(template: Template, change: Change, on_missing_before: str) -> set[Key] | None:
    if change.headers.operation == DELETE or on_missing_before not in (SKIP_BEFORE, "error"):
        return None
    if on_missing_before == "error":
        raise NoBefore
    arguments = template.encode_arguments(change.value)
    if arguments is None:
        return set()
    scalars = (name for name, value in change.value.items() if _is_scalar(value) and name not in template.names)
    return _around(template, arguments) | {template.field_key(name, arguments) for name in scalars}


def _changed_fields(before: dict[str, Any], after: dict[str, Any], apart_from: Iterable[str]) -> list[str]:
    """Fields whose values differ, where both are scalars."""
    changed = []
    for name in before.keys() | after.keys():
        old, new = before.get(name, _MISSING), after.get(name, _MISSING)
        if name not in apart_from and _is_scalar(old) and _is_scalar(new) and not _same(old, new):
            changed.append(name)
    return changed


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _same(old: Any, new: Any) -> bool:
    return isinstance(old, bool) == isinstance(new, bool) and bool(old == new)

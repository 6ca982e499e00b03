"""The text of an error: what failed, for which stream, event or field, every reason, and what to do about it.

An answer's ``message`` says why; the rest is in its facts, in the address of the request, and here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

#: The most reasons that a text lists.
_MAX_REASONS = 10
#: What the address of a request names, by its first segment.
_TARGET = re.compile(r"/v1/(stream|push|tables|entities|entity-types)/([^?]+)")
_NOUNS = {"push": "event", "tables": "table", "entities": "entity_id", "entity-types": "entity_type"}
#: Facts that say what an error is about, in the order of the text.
_SUBJECTS = ("app", "stream", "event", "table", "feature", "key", "entity_type", "entity_id", "source_id", "name")
#: Facts that say where in a request something is wrong; the first that is there counts.
_POINTERS = ("pointer", "path", "field")
#: Members that hold one reason each, where a request is wrong in several ways.
_REASONS = ("failures", "problems", "errors")

#: What to do, by the code of an error, or by its message. Where neither is here, the message says it.
ADVICE = {
    "there is no such stream": "Create it with `client.stream(name).create()`; `client.streams()` has what there is.",
    "touch not enabled": 'Enable it: `stream.set_profile("state-protocol", {"touch": {"enabled": True}})`.',
    "search is not configured for this stream; see _schema": "Declare search fields: `stream.evolve(search=…)`.",
    "this stream has no search fields to filter by; see _schema": "Declare search fields: `stream.evolve(search=…)`.",
    "missing_field": "Send the field, or declare it as optional (`T | None`) or with a default.",
    "event_time_ahead": "Push an event when it has happened; look at the clock of its maker and at `timestamp_unit`.",
    "unknown_field": "Leave the field out, or add it to the declaration of the event and register that.",
    "schema_mismatch": "Send a value of the declared type; text is not converted.",
    "lens_unsound": "Change the lens or the schema; `evolve(…, dry_run=True)` shows whether it would be accepted.",
    "feature_not_in_table": "`app.registry().features` has the features of every table.",
    "batch_too_large": "Split the request.",
    "too_many_groups": "Group by fewer dimensions, narrow the query, or ask for a shorter time.",
    "unauthorized": "Pass a key: `hr.Client(url, key)`; `headrace key create` makes one.",
    "forbidden": "Use a key whose scopes and prefix allow this; `headrace key ls` shows them.",
    "reset_disabled_in_production": "Run a server in test mode.",
    "reserved_stream": "Choose another name: only the server writes to this stream.",
    "producer_fenced": "Another producer took over this id: stop this one, or give it an id of its own.",
    "producer_gap": "Send the batch whose number is expected, or begin a new epoch.",
    "unknown_event": "Register the event first: `app.register(…)`.",
    "unknown_table": "Register the table first: `app.register(…)`; `app.registry()` has what there is.",
    "unknown_entity_type": "Register the type first: `app.entities.types.register(…)`.",
    "RESOURCE_NOT_FOUND": "`app.entities.list(…)` has the ids that there are.",
    "method_not_allowed": "Use a method that the address has, or upgrade the client and the server.",
    "stream_closed": "A closed stream stays closed; `stream.fork(name)` makes an open copy.",
    "managed_stream": "Change it with `app.register(…)`.",
    "registration_conflict": "Look at what would be lost; `force=True` applies the change.",
    "version_conflict": "Read `app.registry()`, and register again with its version.",
    "owned_by": "Leave it out, and name it by `hr.upstream(name)`: another app registers it.",
    "used_by": "`cascade=True` removes what depends on it, too.",
    "name_taken": "Choose another name: a stream has it.",
    "events_do_not_fit": "Change the schema so that every stored event fits it.",
    "registry_full": "Use fewer registrations; the history of a registry is bounded.",
    "version_taken": "Raise the version.",
    "alias_taken": "Choose another name.",
    "ERR_IDEMPOTENCY_COLLISION": "Use a new idempotency key for a new request.",
    "ERR_NO_SCHEMA_FOR_ENTITY_TYPE": "Activate a version: `app.entities.types.activate(…)`.",
    "ENTITY_ALREADY_MERGED": "Use the entity that it is merged into, or `unmerge` it first.",
    "MERGE_TARGET_ALREADY_MERGED": "Merge into the entity that the target is merged into.",
    "not_representable": "Read another schema version, or leave `schema_version` out.",
    "offset_fenced": 'Use an offset that this stream has returned, or read from the start: offset "-1".',
    "offset_gone": 'Read from the first event that is left: offset "-1".',
    "precondition_failed": "Somebody else appended first: read on, and try again with the new offset.",
    "payload_too_large": "Send fewer or smaller events; `limits.body_bytes` of the server is the limit.",
    "uri_too_long": "Use a shorter name or query; search by POST.",
    "headers_too_large": "Send shorter headers.",
    "unsupported_media_type": "Send the body without Content-Encoding, or with one that the message names.",
    "request_timeout": "Ask for less at once, or again later.",
    "append_timeout": "Read the end of the stream before you append it again: it may be stored.",
    "unavailable": "Try again later.",
    "store_unavailable": "Check the object store of the server, and try again later.",
    "node_fenced": "Use the server that took over.",
    "corrupt_data": "Run `headrace verify` on the server.",
    "object_missing": "Run `headrace verify` on the server.",
    "unreachable": "Start a server with `headrace up`, or correct the URL.",
    "connection_lost": "The server may have seen the request: check before you repeat a change.",
    "bad_answer": "Check that the URL is that of a Headrace server, and that it is not older than the client.",
    "outcome_unknown": "Read the end of the stream before you append it again: it may be stored.",
    "producer_closed": "Make another producer: `stream.producer()`.",
    "history_failed": "Ask again, for fewer rows; the log of the server has more about the reason.",
}


def describe(message: str, code: str, facts: Mapping[str, Any], target: str = "") -> str:
    """The text of an error, whose request had this target."""
    details = [detail for value, detail in _details(facts, target) if not _names(message, value.strip("/"))]
    first = f"{message} ({', '.join(details)})" if details else message
    others = [reason for reason, text in _list_reasons(facts) if text not in message]
    return "\n".join([first, *list_lines(others), *_advise(message, code, facts)])


def list_lines(reasons: Sequence[str]) -> Iterator[str]:
    """The first reasons as lines, and how many are left."""
    yield from (f"  {reason}" for reason in reasons[:_MAX_REASONS])
    if len(reasons) > _MAX_REASONS:
        yield f"  … and {len(reasons) - _MAX_REASONS:,} more"


def _details(facts: Mapping[str, Any], target: str) -> Iterator[tuple[str, str]]:
    """What an error is about, and where: each value, and how the text names it."""
    subjects = {**_name_target(target), **facts}
    for name in _SUBJECTS:
        if subjects.get(name) not in (None, ""):
            yield str(subjects[name]), f"{name.replace('_', ' ')} {subjects[name]!r}"
    pointer = next((str(facts[name]) for name in _POINTERS if facts.get(name)), "body")
    if pointer != "body":
        yield pointer, f"at {pointer}"


def _name_target(target: str) -> dict[str, str]:
    match = _TARGET.match(target)
    if match is None:
        return {}
    # A stream may have slashes in its name, and no segment that begins so.
    name = match[2].partition("/_")[0] if match[1] == "stream" else match[2].partition("/")[0]
    return {_NOUNS.get(match[1], match[1]): unquote(name)}


def _list_reasons(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every reason among the facts, with where it is and without."""
    for reason in (reason for name in _REASONS for reason in facts.get(name) or ()):
        text = str(reason.get("message") or reason.get("reason"))
        pointer = str(reason.get("pointer") or reason.get("path") or "")
        event = f"event {reason['index'] + 1}" if "index" in reason else ""
        where = [part for part in (event, pointer if pointer not in text else "") if part]
        yield (f"{', '.join(where)}: {text}" if where else text), text


def _names(message: str, value: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", message) is not None


def _advise(message: str, code: str, facts: Mapping[str, Any]) -> list[str]:
    retry_after = facts.get("retry_after")
    advice = f"Try again in {retry_after} s." if retry_after is not None else ADVICE.get(message) or ADVICE.get(code)
    return [] if advice is None else [advice]

"""The profile ``evlog``: its settings, and the hook that makes envelopes of what is appended.

Bodies that are canonical already are seen to be at once: they are spelled as we spell them, no text in them begins
or ends with a blank, no key is listed, and nothing names an identifier that the envelope lacks.
Others are seen to be like events before them; what is left goes the long way, and is learnt from now and then.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from headrace import decoding
from headrace.profiles.definition import Definition, Settings, read_counterpart, read_words
from headrace.profiles.evlog.envelope import DEFAULTS, KEYS, SCHEMA, Envelope
from headrace.profiles.evlog.fast_path import FastPath
from headrace.profiles.evlog.normalise import Correlation, EventNormaliser
from headrace.profiles.hook import AppendHook, refuse_entries
from headrace.profiles.redaction import is_among
from headrace.query.document_reader import Part
from headrace.schema import entries
from headrace.schema.canonical import same
from headrace.schema.entries import Failure
from headrace.schema.routing_key import MAX_KEY_BYTES
from headrace.types import rfc3339

_CANONICAL = decoding.make_decoder(list[Envelope])
_ENCODE = msgspec.json.Encoder(decimal_format="number").encode
#: How an envelope begins.
_BEGINNING = b'{"timestamp":"'
#: Bytes of a body that may have an untrimmed or empty text, or sampling, which is searched for listed keys.
_DOUBTFUL = (b"\\", b'" ', b' "', b'""', b'"sampling":{')


class _Ids(msgspec.Struct, gc=False, rename="camel"):
    """The members of an event that may be its routing key."""

    request_id: str | None = None
    trace_id: str | None = None


_IDS = decoding.make_decoder(list[_Ids])


class EvlogHook(AppendHook):
    """Makes envelopes, and routes them by their requests or else their traces."""

    normalises = True
    suggests_keys = True

    def __init__(self, redact_keys: tuple[str, ...], correlation: Correlation) -> None:
        self._normaliser = EventNormaliser(is_among(redact_keys), correlation)
        self._fast_path = FastPath(self._normaliser)
        #: The entries that were normalised last, and their keys, which are requested next.
        self._last: tuple[bytes, list[str | None]] = (b"", [])

    def normalise(self, joined: bytes, terms: Any) -> bytes:
        """Entries as envelopes."""
        if joined.startswith(_BEGINNING) and self._is_canonical(joined):
            return joined
        now_us = terms.timestamp_us
        now = rfc3339(time.time_ns() // 1000 if now_us is None else now_us)
        made = self._fast_path.envelopes(b"[" + joined + b"]", now)
        if made is None:
            made = self._make_envelopes(joined, now)
        stored = _ENCODE(made)[1:-1]
        self._last = stored, _keys(made)
        return stored

    def guarantees(self, schema: Any) -> bool:
        """Envelopes fit the schema that they come with."""
        return same(schema, SCHEMA)

    def routing_keys(self, joined: bytes) -> list[str | None]:
        """The request of each entry, else its trace."""
        stored, keys = self._last
        if stored is joined:
            return keys
        return _keys(_IDS.decode(b"[" + joined + b"]"))

    def _make_envelopes(self, joined: bytes, now: str) -> list[Envelope]:
        """The envelopes of entries, made the long way."""
        values, failures = entries.read(joined)
        failures += [Failure(n, "", "is no object") for n, value in enumerate(values) if type(value) is not dict]
        if failures:
            refuse_entries(failures)
        if self._fast_path.wants_examples:
            self._fast_path.learn(values)
        envelope = self._normaliser.envelope
        return [envelope(value, now) for value in values]

    def _is_canonical(self, joined: bytes) -> bool:
        body = b"[" + joined + b"]"
        try:
            values = _CANONICAL.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return False
        if _ENCODE(values) != body or any(mark in body for mark in _DOUBTFUL):
            return False
        if not all(map(self._normaliser.is_settled, values)):
            return False
        self._last = joined, _keys(values)
        return True


def _keys(events: list[Envelope] | list[_Ids]) -> list[str | None]:
    """What routes each event; what is too long for a key routes nothing."""
    keys = [event.request_id or event.trace_id for event in events]
    if max(map(len, filter(None, keys)), default=0) * 4 <= MAX_KEY_BYTES:
        return keys
    return [None if key is None or len(key.encode()) > MAX_KEY_BYTES else key for key in keys]


#: What is redacted in any case.
REDACTED_KEYS = ("password", "token", "secret", "authorization", "cookie", "apikey")

_ENDS = ("traceId", "spanId", "traceparent")
_ENVELOPE = frozenset(name.lower() for name in KEYS)


def _read(part: Part) -> Settings:
    if not part.knows(("redactKeys", "correlation", "observability")):
        return {}
    settings: Settings = {}
    if part["redactKeys"].is_present:
        settings["redactKeys"] = read_words(part["redactKeys"], lowercase=True, refused=_ENVELOPE)
    if part["correlation"].is_present:
        settings["correlation"] = _correlation(part["correlation"])
    if part["observability"].is_present:
        settings["observability"] = read_counterpart(part["observability"], "tracesStream")
    return settings


def _correlation(part: Part) -> Settings:
    if not part.knows(("requestIdFields", "traceContextFields", "parseTraceparent")):
        return {}
    settings: Settings = {name: read_words(part[name]) for name in part.value if name.endswith("Fields")}
    for element in part["traceContextFields"].elements() if part["traceContextFields"].is_present else ():
        if isinstance(element.value, str) and element.value.strip().rpartition(".")[2] not in _ENDS:
            element.note(f"must end in one of {', '.join(_ENDS)}")
    if part["parseTraceparent"].is_present:
        settings["parseTraceparent"] = part["parseTraceparent"].flag()
    return settings


def _hook(settings: Settings) -> EvlogHook:
    correlation = settings.get("correlation", {})
    return EvlogHook(
        (*REDACTED_KEYS, *settings.get("redactKeys", ())),
        Correlation(
            tuple(correlation.get("requestIdFields", ())),
            tuple(correlation.get("traceContextFields", ())),
            traceparent=correlation.get("parseTraceparent", True),
        ),
    )


EVLOG = Definition(name="evlog", read=_read, hook=_hook, defaults=DEFAULTS, needs_schema=True, signal="events")

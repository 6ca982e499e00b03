"""A stream's registry, ready for use: it admits what is appended, and turns what is read into the version asked for."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.errors import BadRequest
from headrace.query.carry import EmptiedField, emptied_fields
from headrace.schema import pointer as pointers
from headrace.schema.entries import Failure
from headrace.schema.registry import Registry
from headrace.schema.routing_key import RoutingKey
from headrace.schema.view import StreamSchema, chain_of, validator

if TYPE_CHECKING:
    from headrace.engine.log.append import Terms
    from headrace.profiles.hook import AppendHook


class PendingEntries(Protocol):
    """Entries that want to be stored, joined by commas.

    Admission gives them their version and their keys: ``key`` where all have the same, else ``keys`` as JSON.
    """

    body: bytes
    count: int
    terms: Terms
    key: str | None
    keys: str | None
    version: int
    registry: StreamRegistry | None
    #: The registry that saw them to fit as they came in.
    validated_by: StreamRegistry | None
    #: The keys of those that are to be stored once, where their hook has any.
    dedupe_keys: list[str | None] | None
    #: The entries as they came, where their hook has made something else of them.
    original: bytes | None


class StreamRegistry:
    """One revision of a registry. It is never changed: a new revision is a new object."""

    __slots__ = (
        "_chain", "_emptied", "_routing", "_validator", "hook", "readable_from", "registry", "revision",
        "skips_validation", "version",
    )  # fmt: skip

    def __init__(self, registry: Registry, revision: int, hook: AppendHook | None = None) -> None:
        """``hook`` has the rules of what the stream belongs to; None for a plain stream."""
        self.registry = registry
        self.revision = revision
        self.hook = hook
        self.version = registry.current_version
        #: The first event that the lenses carry to the current version.
        self.readable_from = registry.readable_from
        self._validator = validator(msgspec.json.encode(registry.current_schema)) if self.version else None
        self._chain = chain_of(registry)
        self._emptied: list[EmptiedField] | None = None
        key = registry.routing_key
        self._routing = None if key is None else RoutingKey(pointers.parse(key.pointer) or (), key.required)
        #: Whether what the hook has made of entries fits for certain.
        self.skips_validation = hook is not None and hook.normalises and hook.guarantees(registry.current_schema)

    @property
    def has_routing_key(self) -> bool:
        """Whether events carry their own routing keys."""
        hook = self.hook
        return self._routing is not None or (hook is not None and (hook.assigns_keys or hook.suggests_keys))

    @property
    def emptied_fields(self) -> list[EmptiedField]:
        """The search fields that an earlier change left without values; computed when first needed."""
        if self._emptied is None:
            self._emptied = emptied_fields(self.registry)
        return self._emptied

    def count(self, body: bytes) -> int | None:
        """How many entries a body holds, where it is seen at a glance that it is an array of what fits."""
        if self._validator is None or body[:1] != b"[" or body[-1:] != b"]":
            return None
        if self.hook is not None and self.hook.normalises:
            return None
        return None if self._has_unfit_time(body[1:-1]) else self._validator.count(body)

    def fitting(self, joined: bytes) -> int | None:
        """How many entries are joined by commas, where it is seen at a glance that they fit as they are."""
        if self._validator is None or self._has_unfit_time(joined):
            return None
        return self._validator.count(b"[" + joined + b"]")

    def _has_unfit_time(self, joined: bytes) -> bool:
        """Whether the hook refuses the time of an entry, or cannot read it."""
        return self.hook is not None and self.hook.has_event_time and bool(self.hook.failures(joined))

    def failures(self, joined: bytes) -> list[Failure]:
        """What is wrong with entries joined by commas, as they would be stored."""
        failures = [] if self._validator is None else self._validator.failures(joined)
        return failures if failures or self.hook is None else self.hook.failures(joined)

    def admit(self, entries: PendingEntries) -> None:
        """Check entries, and give them their keys and their version."""
        hook = self.hook
        if entries.validated_by is not self:
            if entries.original is not None:
                entries.body = entries.original  # another hook has made something of them
            if hook is not None and hook.normalises:
                entries.original = entries.body
                entries.body = hook.normalise(entries.original, entries.terms)
            if not self.skips_validation and (failures := self.failures(entries.body)):
                raise _refusal(failures) if hook is None else hook.refusal(entries.body, failures)
        timestamp_us = entries.terms.timestamp_us
        has_other_time = hook is not None and hook.has_event_time and timestamp_us is not None
        if hook is not None and has_other_time and (failures := hook.failures(entries.body, timestamp_us)):
            raise hook.refusal(entries.body, failures)
        if hook is not None:
            entries.dedupe_keys = hook.dedupe_keys(entries.body) if hook.deduplicates else None
        if hook is not None and hook.assigns_keys:
            entries.key, entries.keys = stored_keys(hook.routing_keys(entries.body))
        elif self._routing is not None:
            if entries.terms.key is not None:
                raise BadRequest("events of this stream carry their own keys: leave Stream-Key out", field="Stream-Key")
            keys, failures = self._routing.keys(entries.body)
            if failures:
                raise _refusal(failures)
            entries.key, entries.keys = stored_keys(keys)
        elif hook is not None and hook.suggests_keys and entries.terms.key is None:
            entries.key, entries.keys = stored_keys(hook.routing_keys(entries.body))
        else:
            entries.key, entries.keys = entries.terms.key, None
        entries.version, entries.registry = self.version, self

    def with_hook(self, hook: AppendHook) -> StreamRegistry:
        """The same revision, with another hook of entries."""
        made = copy(self)
        made.hook = hook
        made.skips_validation = hook.normalises and hook.guarantees(made.registry.current_schema)
        return made

    def view(self, version: int | None = None) -> StreamSchema:
        """The entries as of a version; the current one if none is named."""
        wanted = self.version if version is None else version
        return StreamSchema(self._chain, self.registry.schemas.get(wanted), wanted)


def stored_keys(keys: list[str | None]) -> tuple[str | None, str | None]:
    """One key that all entries have, or all of them as JSON."""
    if keys.count(keys[0]) == len(keys):
        return keys[0], None
    return None, msgspec.json.encode(keys).decode()


def _refusal(failures: list[Failure]) -> BadRequest:
    first = failures[0]
    return BadRequest(
        f"event {first.index + 1} does not fit: {first.reason} (at {first.pointer or 'its root'})",
        field="body",
        failures=[msgspec.structs.asdict(failure) for failure in failures],
    )

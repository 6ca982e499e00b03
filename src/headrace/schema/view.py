"""Stored events in one schema version: what the server reads from its log, and workers from segments."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from headrace.errors import CorruptData, NotRepresentable
from headrace.schema.document import Validator
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.chain import LensChain
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.values import LensFailure
from headrace.schema.registry import Registry

_COMPILED = 1024


class StreamSchema:
    """How a reader sees the entries of a stream: all in one version."""

    __slots__ = ("_chain", "_schema", "version")

    def __init__(self, chain: LensChain, schema: Any, version: int) -> None:
        self._chain = chain
        self._schema = schema
        self.version = version

    def turn(self, joined: bytes, version: int) -> bytes:
        """Entries of one version, joined by commas, as entries of this view's version."""
        try:
            turned = self._chain.promote(joined, version, self.version)
        except LensFailure as failure:
            raise self._refused(version, failure.entry or 0, failure.where, failure.reason) from failure
        if self.version < version:
            # Lenses are proven one way only: what newer versions allow may be more than the older one does.
            failures = validator(msgspec.json.encode(self._schema)).failures(turned)
            failures = [failure for failure in failures if failure.reason != "is nested too deeply"]
            if failures:
                raise self._refused(version, *msgspec.structs.astuple(failures[0]))
        return turned

    def _refused(self, version: int, index: int, pointer: str, reason: str) -> NotRepresentable:
        message = f"an event of schema version {version} has no form in version {self.version}: {reason}"
        return NotRepresentable(message, index=index, pointer=pointer)


def chain_of(registry: Registry) -> LensChain:
    """The lenses of a registry, ready for use."""
    return LensChain({n: _lens(document) for n, document in registry.lenses.items()}, registry.schemas)


def view_of(registry: Registry, version: int) -> StreamSchema:
    """The events of a stream as of a version of its registry."""
    return StreamSchema(chain_of(registry), registry.schemas.get(version), version)


@lru_cache(maxsize=_COMPILED)
def validator(schema: bytes) -> Validator:
    """The compiled form of a schema; streams with the same schema share it."""
    return Validator(msgspec.json.decode(schema))


def _lens(document: Any) -> Lens:
    lens = lens_document.parse(document)
    if isinstance(lens, list):
        raise CorruptData(f"a stored lens cannot be read: {lens[0].reason}", pointer=lens[0].pointer)
    return lens

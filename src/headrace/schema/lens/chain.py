"""The lenses of a registry, chained: stored bodies are converted from any version to any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.errors import CorruptData
from headrace.schema.entries import entries_of
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.backward import backward
from headrace.schema.lens.carry import Crossing
from headrace.schema.lens.document import fill_defaults
from headrace.schema.lens.forward import Step, Steps, forward
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.values import LensFailure, Raw
from headrace.schema.registry import Registry

#: The steps between two versions, each with the source version of its lens and the number of its op.
_NumberedSteps = tuple[tuple[int, int, Step], ...]

_DOCUMENTS = msgspec.json.Decoder(list[dict[str, Raw]])
_ENCODER = msgspec.json.Encoder()


class LensChain:
    """The lenses and schemas of a registry; the steps between two versions are compiled at first use.

    Events from before the first schema, which were stored under version 0, fit it: they are of version 1.
    """

    def __init__(self, lenses: Mapping[int, Lens], schemas: Mapping[int, Any]) -> None:
        self._lenses = lenses
        self._schemas = schemas
        self._steps_between: dict[tuple[int, int], _NumberedSteps] = {}

    def promote(self, joined: bytes, source: int, target: int) -> bytes:
        """Entries joined by commas, from one version to another; bytes that no op touches stay as they are."""
        steps = self._steps_between.get((source, target))
        if steps is None:
            steps = self._steps_between[source, target] = self._compile(source, target)
        if not steps:
            return joined
        documents = _open_documents(joined)
        for entry in range(len(documents)):
            for version, number, step in steps:
                try:
                    step(documents, entry)
                except LensFailure as failure:
                    failure.version, failure.entry, failure.op = version, entry, (number, *failure.op)
                    raise
        return _ENCODER.encode(documents)[1:-1]

    def _compile(self, source: int, target: int) -> _NumberedSteps:
        source = max(source, 1)
        ahead = target >= source
        versions = range(source, target) if ahead else range(source - 1, target - 1, -1)
        return tuple((version, *numbered) for version in versions for numbered in self._steps(version, ahead))

    def _steps(self, version: int, ahead: bool) -> Steps:
        lens = self._lenses.get(version)
        if lens is None:
            failure = LensFailure(f"no lens leads from version {version} to version {version + 1}")
            failure.version = version
            raise failure
        if ahead:
            return forward(fill_defaults(lens, self._schemas.get(lens.target, True)).ops)
        return backward(lens.ops, self._schemas.get(version, True))


def _open_documents(joined: bytes) -> list[Any]:
    try:
        return _DOCUMENTS.decode(b"[" + joined + b"]")
    except (msgspec.ValidationError, RecursionError):
        # Not every entry is an object, or one is nested deeper than the decoder goes: open them one by one.
        return entries_of(joined)


class Crossings:
    """The crossing from each version of a registry to the next; made at first use."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._made: dict[int, Crossing] = {}

    def __getitem__(self, version: int) -> Crossing:
        """The crossing from a version to the next; KeyError where no lens leads on."""
        if version not in self._made:
            registry = self._registry
            lens = lens_document.parse(registry.lenses[version])
            if not isinstance(lens, Lens):
                raise CorruptData(f"a stored lens cannot be read: {lens[0].reason}", pointer=lens[0].pointer)
            self._made[version] = Crossing(registry.schemas[version], registry.schemas[version + 1], lens)
        return self._made[version]

"""The events of a source as tables fold them: stored bodies become events of its newest shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.reduce.features.event_decoder import EventDecoder
from headrace.reduce.states.definition import Folded, Told
from headrace.schema.descriptor.nodes import Event
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.chain import Chain
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.values import LensFailure
from headrace.schema.registry import Registry


class Shapes:
    """Turns the stored events of a source into its newest shape; those before a break keep the last they can have."""

    def __init__(self, registry: Registry, event: Event) -> None:
        self._registry = registry
        self._chain = Chain({n: _lens(document) for n, document in registry.lenses.items()}, registry.schemas)
        self._decoder = EventDecoder(event.schema)
        self._blank = {name: field.default for name, field in event.schema.items()}
        self._optional = [
            (name, field.default)
            for name, field in event.schema.items()
            if not field.required or field.default is not None
        ]

    def events(self, joined: bytes, version: int) -> list[dict[str, Any]]:
        """Events joined by commas, each with every field of the source."""
        current = self._registry.current_version
        target = min((cut for cut in self._registry.breaks if cut >= version), default=current)
        if version not in (target, 0):
            joined = self._promoted(joined, version, target)
        events = self._decoder.decode(joined)
        if target != current:
            return [{**self._blank, **event} for event in events]
        for event in events if self._optional else ():
            for name, default in self._optional:
                event.setdefault(name, default)
        return events

    def is_newest(self, version: int) -> bool:
        """Whether events that are stored under a version have the newest shape, apart from fields that are left out."""
        current = self._registry.current_version
        return version == current or (version == 0 and not self._registry.breaks)

    def folded(self, told: Told) -> Iterator[Folded]:
        """The same, one after the other."""
        for at, event in enumerate(self.events(told.body, told.version)):
            yield told.first_seq + at, told.times_us[at] // 1000, event

    def _promoted(self, joined: bytes, version: int, target: int) -> bytes:
        try:
            return self._chain.promote(joined, version, target)
        except LensFailure:
            return joined  # a lens is proven before it is taken; what it cannot carry all the same is taken as it is


def _lens(document: Any) -> Lens:
    lens = lens_document.parse(document)
    assert not isinstance(lens, list), "a stored lens was parsed before it was stored"
    return lens

"""The steps between the versions of a registry, for carrying pointers over them."""

from __future__ import annotations

from headrace.errors import CorruptData
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.carry import Crossing
from headrace.schema.lens.ops import Lens
from headrace.schema.registry import Registry


class Crossings:
    """The crossing from each version of a registry to the next; made when it is first asked for."""

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

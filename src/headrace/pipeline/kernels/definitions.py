"""What the registry document of a unit defines; units of one stream share it."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from headrace.errors import CorruptData
from headrace.extract.columns import Extractor
from headrace.query.definition import Definition
from headrace.reduce.work_units import Unit
from headrace.schema.registry import Registry

_KEPT = 64


def defined(unit: Unit) -> Definition:
    """What is derived from the events of a unit."""
    return _definition(_text(unit))


def extractor(unit: Unit) -> Extractor:
    """What makes columns of them."""
    return _extractor(_text(unit))


def _text(unit: Unit) -> bytes:
    return msgspec.json.encode(unit.registry, order="sorted")


@lru_cache(maxsize=_KEPT)
def _definition(registry: bytes) -> Definition:
    definition = Definition.of(Registry.load(msgspec.json.decode(registry)))
    if definition is None:
        raise CorruptData("a stream without a search configuration has nothing to derive")
    return definition


@lru_cache(maxsize=_KEPT)
def _extractor(registry: bytes) -> Extractor:
    return Extractor(_definition(registry))

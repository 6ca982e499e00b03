"""Folding the observations of a unit of the job ``snapshots``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from headrace.errors import CorruptData
from headrace.format.state.writer import Packed
from headrace.reduce.policies.batch import Told
from headrace.reduce.policies.bulk import packed
from headrace.reduce.policies.definition import TypeDefined
from headrace.reduce.policies.gather import Gathered
from headrace.reduce.work_units import Unit

_KEPT = 64


def folded(unit: Unit, batches: Iterable[Any], rest: Callable[[], None]) -> Iterator[Packed]:
    """The rows of a unit's observations, in the columns of segments; ``rest`` is called between slices of them."""
    gathered = Gathered()
    for batch in batches:
        gathered.add(batch)
        rest()
    if (count := len(gathered)) != unit.count:
        raise CorruptData(f"the segments of {unit.unit} hold {count} entries, not {unit.count}")
    return packed(defined_by(unit).reducer, _paced(gathered, rest))


def _paced(gathered: Gathered, rest: Callable[[], None]) -> Iterator[Told]:
    for told in gathered.by_entity():
        yield from told
        rest()


def defined_by(unit: Unit) -> TypeDefined:
    """The entity type of a unit, with the lives that it asks for."""
    return _restricted(msgspec.json.encode(unit.defined, order="sorted"), tuple(sorted(unit.lives or {})))


@lru_cache(maxsize=_KEPT)
def _restricted(document: bytes, names: tuple[str, ...]) -> TypeDefined:
    return TypeDefined.load(msgspec.json.decode(document)).restricted(names)

"""The identity of the companion into which adjacent ones are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from headrace.format.companion.layout import CompanionInfo, FieldShape

_MOST_ROWS = 2**31 - 1


def merge_infos(
    infos: Sequence[CompanionInfo], *, level: int, fields: Mapping[str, str], rollups: Mapping[str, str]
) -> CompanionInfo:
    """The identity of the whole, with the hashes that a definition has for it; ValueError where there is no whole."""
    first, count = infos[0], sum(info.count for info in infos)
    for before, after in pairwise(infos):
        if (before.stream, before.incarnation, before.end_seq) != (after.stream, after.incarnation, after.first_seq):
            raise ValueError(f"event {after.first_seq} cannot come where {before.end_seq} is due")
    if count > _MOST_ROWS:
        raise ValueError(f"a companion cannot have {count} rows")
    _must_be_valid(infos, fields, rollups)
    shapes = {name: _shape([info.fields[name] for info in infos], hash) for name, hash in fields.items()}
    times = [info.times for info in infos if info.times is not None]
    return CompanionInfo(
        stream=first.stream,
        incarnation=first.incarnation,
        first_seq=first.first_seq,
        count=count,
        level=level,
        segments=sum(info.segments for info in infos),
        through_version=max(info.through_version for info in infos),
        fields=shapes,
        rollups=dict(rollups),
        keys=all(info.keys for info in infos),
        times=(min(least for least, _ in times), max(greatest for _, greatest in times)) if times else None,
        words={name: _words(infos, name) for name, shape in shapes.items() if shape.kind == "text"},
        odd=sum(info.odd for info in infos),
    )


def _must_be_valid(infos: Sequence[CompanionInfo], fields: Mapping[str, str], rollups: Mapping[str, str]) -> None:
    """All hold what is wanted; hashes can be compared where the greatest schema version is that of the whole."""
    newest = max(info.through_version for info in infos)
    for info in infos:
        held = {name: shape.hash for name, shape in info.fields.items()}
        for wanted, held_hashes in ((fields, held), (rollups, info.rollups)):
            for name, hash in wanted.items():
                if name not in held_hashes or (info.through_version == newest and held_hashes[name] != hash):
                    raise ValueError(f"the companion of {info.first_seq} does not hold {name} as it is defined")


def _shape(shapes: Sequence[FieldShape], hash: str) -> FieldShape:
    if len({(shape.kind, shape.indexed) for shape in shapes}) > 1:
        raise ValueError("a field cannot be of two kinds")
    return msgspec.structs.replace(shapes[0], many=any(shape.many for shape in shapes), hash=hash)


def _words(infos: Sequence[CompanionInfo], name: str) -> tuple[int, int]:
    return sum(info.words[name][0] for info in infos), sum(info.words[name][1] for info in infos)

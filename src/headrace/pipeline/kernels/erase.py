"""Erasing: a segment is written anew without the observations that go."""

from __future__ import annotations

import secrets
from typing import Any

from headrace import decoding
from headrace.extract.erasure import Targets, rewrite
from headrace.format.decoded_columns import LruCache
from headrace.format.manifest import segment_entry
from headrace.format.object_names import segment_key
from headrace.format.segment.reader import SegmentReader
from headrace.pipeline.kernels.units import Workspace
from headrace.reduce.work_units import Unit


def perform(unit: Unit, here: Workspace) -> dict[str, Any]:
    """Write the segment of a unit anew; the object is durable when this returns."""
    (source,), targets = unit.segments, decoding.convert(unit.defined, tuple[Targets, ...])
    made = here.directory / "rewritten.parquet"
    with here.borrowed(source.key, source.bytes, "0.parquet") as path, made.open("wb") as file:
        reader = SegmentReader(path, name=source.key, decoded=LruCache(0), sha256=source.sha256)
        sealed = rewrite(reader, targets, file)
    name = f"{unit.name_begins}{secrets.token_hex(4)}.parquet"
    here.objects.upload(segment_key(unit.stream, unit.incarnation, name), made)
    # Where the stream's payload begins and ends there is known to the server.
    return {"segment": segment_entry(sealed, name, 0, 0)}

"""What records of a metrics stream go through."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace import decoding
from headrace.profiles.hook import Hook, made, refusal
from headrace.profiles.metrics.envelope import SCHEMA
from headrace.profiles.metrics.normalising import interval
from headrace.schema import entries
from headrace.schema.equality import same
from headrace.schema.routing import MAX_FAILURES

_ENCODE = msgspec.json.Encoder(decimal_format="number").encode


class _Series(msgspec.Struct, gc=False, rename="camel"):
    """What routes a record."""

    series_key: str


_SERIES = decoding.make_decoder(list[_Series])


class MetricsHook(Hook):
    """Makes intervals, and routes them by their series."""

    normalises = True
    suggests = True

    def normalised(self, joined: bytes, terms: Any) -> bytes:
        """Records as intervals."""
        values, failures = entries.read(joined)
        intervals, misfits = made(values, interval)
        failures += misfits
        if failures:
            raise refusal(sorted(failures, key=lambda failure: failure.index)[:MAX_FAILURES])
        return _ENCODE(intervals)[1:-1]

    def vouches(self, schema: Any) -> bool:
        """Intervals fit the schema that they come with."""
        return same(schema, SCHEMA)

    def routed(self, joined: bytes) -> list[str | None]:
        """The series of each record."""
        return [one.series_key for one in _SERIES.decode(b"[" + joined + b"]")]

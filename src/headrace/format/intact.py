"""What goes wrong while a file of ours is read is the fault of its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from headrace.errors import CorruptData


@contextmanager
def intact(name: str) -> Iterator[None]:
    """Raise CorruptData, naming the file, for whatever the Parquet library or a decoder finds wrong with it."""
    try:
        yield
    except (pa.ArrowException, msgspec.DecodeError, OSError, ValueError, LookupError) as reason:
        raise CorruptData(f"{name} is damaged: {reason}", object=name, check="parquet") from reason

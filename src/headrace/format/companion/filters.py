"""Bloom filters of terms: most companions can tell from a few bytes that they do not hold one.

A filter is what Parquet defines, header and all, but lies between the row groups, and only our index names it: the
writer of Parquet would keep the filters of all row groups in memory, the useless ones of a few terms too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.format.segment import bloom

#: Such that a row group that is full of terms has one byte for each.
_FALSE_POSITIVES = 0.03
#: Longer terms are not hashed.
_LONGEST = 1024
_SCHEMA = pa.schema([pa.field("term", pa.string(), nullable=False)])


def make_filter(terms: Any) -> bytes:
    """The filter of an array of terms: Parquet's writer makes it, for a file that is thrown away."""
    out = pa.BufferOutputStream()
    options = {"term": {"ndv": len(terms), "fpp": _FALSE_POSITIVES}}
    with pq.ParquetWriter(
        out, _SCHEMA, compression="none", use_dictionary=False, write_statistics=False, bloom_filter_options=options
    ) as writer:
        writer.write_table(pa.table([terms], schema=_SCHEMA), row_group_size=len(terms))
    whole = out.getvalue()
    chunk = pq.read_metadata(pa.BufferReader(whole)).row_group(0).column(0)
    return bytes(whole.slice(chunk.bloom_filter_offset, chunk.bloom_filter_length))


def may_hold(stored: bytes, term: str) -> bool:
    """Whether a term may be among those of a filter; False is certain."""
    return len(term) > _LONGEST or bloom.may_hold(stored, _hash(term))


@lru_cache(maxsize=1024)
def _hash(term: str) -> int:
    # Half of a surrogate pair is in no stored term, whatever its hash.
    return bloom.xxh64(term.encode(errors="surrogatepass"))

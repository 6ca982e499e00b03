"""Parquet's split-block Bloom filters, which pyarrow writes into files but cannot ask.

The key filters of segments are written by Parquet. Those of the terms of companions are made here, as Parquet defines
them, header and all, but lie between the row groups, and only our index names them: the writer of Parquet would keep
the filters of all row groups in memory, the useless ones of a few terms too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

#: The hash by which Parquet finds values in its filters: XXH64 with seed 0.
xxh64: Callable[[bytes], int] = xxhash.xxh64_intdigest
_SALT = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_NUM_BYTES_FIELD = 0x15
_BLOCK_BYTES = 32
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
    file = out.getvalue()
    chunk = pq.read_metadata(pa.BufferReader(file)).row_group(0).column(0)
    return bytes(file.slice(chunk.bloom_filter_offset, chunk.bloom_filter_length))


def may_hold_term(stored: bytes, term: str) -> bool:
    """Whether a term may be among those of a filter; False is certain."""
    return len(term) > _LONGEST or may_hold(stored, _term_hash(term))


@lru_cache(maxsize=1024)
def _term_hash(term: str) -> int:
    # Half of a surrogate pair is in no stored term, whatever its hash.
    return xxh64(term.encode(errors="surrogatepass"))


def may_hold(stored: bytes, key_hash: int) -> bool:
    """Whether a value with this hash may be among those the filter was made of; False is certain.

    ``stored`` is the filter with its header, as it lies in the file.
    """
    bits = stored[len(stored) - _bitset_bytes(stored) :]
    block = ((key_hash >> 32) * (len(bits) // _BLOCK_BYTES) >> 32) * _BLOCK_BYTES
    low = key_hash & 0xFFFFFFFF
    for word, salt in enumerate(_SALT):
        bit = (low * salt & 0xFFFFFFFF) >> 27
        if not bits[block + 4 * word + bit // 8] >> bit % 8 & 1:
            return False
    return True


def _bitset_bytes(stored: bytes) -> int:
    """The header's first field: a zigzag varint."""
    if stored[0] != _NUM_BYTES_FIELD:
        raise ValueError("a Bloom filter begins with its size")
    value = shift = 0
    for byte in stored[1:6]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    size = value >> 1
    if not 0 < size < len(stored) or size % _BLOCK_BYTES:
        raise ValueError(f"a Bloom filter of {len(stored)} bytes cannot hold {size}")
    return size

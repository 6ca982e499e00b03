"""Segments: runs of a stream's entries at rest, as plain Parquet that any tool reads.

Format version 1. One row per entry, in order, without gaps:

=============  =====================  ===================================================================
column         type                   holds
=============  =====================  ===================================================================
``seq``         int64                 the entry's sequence number
``append_time`` timestamp[us, UTC]    when it was appended; never decreases
``key``         string, may be null   its routing key
``version``     int32                 the schema version it was appended under; 0 is none
``first``       bool                  whether it is the first entry of its append request
``payload``     string, or binary     a JSON entry's text exactly as it was appended; else the bytes
=============  =====================  ===================================================================

Pages are zstd with checksums. Row groups hold about a mebibyte of payload, so that a read, a seek and a key cost
little, and so that neither writing nor reading needs memory in proportion to the file. ``seq``, ``append_time``,
``key`` and ``version`` have statistics; ``key`` has a Bloom filter per row group, as Parquet defines it, if the first
row group has keys. The file's metadata holds one JSON document under ``headrace``: `layout.SegmentInfo`.

A segment begins and ends where append requests do.
"""

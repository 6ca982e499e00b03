"""States: what features have folded of a run of a stream's events, for every key, as plain Parquet.

Format version 1. A state is one file. It holds what the events [first seq, first seq + count) have left in some *lives*
of the features of one table: one row for every key that an event of the run has, sorted by key.

=============  ======  ====================================================================================
column         type    holds
=============  ======  ====================================================================================
``key``        binary  the values of the key columns, as a MessagePack array
``frame``      binary  MessagePack: where the key was first and last seen in the run, and whether it restarted
``s.<life>``   binary  MessagePack: the state of this life of a feature, null where it has none
=============  ======  ====================================================================================

Pages are zstd with checksums; a row group holds at most 16,384 rows. The metadata of a file holds a JSON document
under ``headrace``, `layout.Info`.
"""

"""Companions: what is derived from a run of a stream's events, for search and aggregates, as plain Parquet.

Format version 1. A companion describes the events [first seq, first seq + count) without gaps; row r is event
first seq + r. It has up to three files.

``columns``: one row per event.

=============  =====================================  ============================================================
column         type                                   holds
=============  =====================================  ============================================================
``seq``        int64                                  the event's sequence number
``odd``        bool                                   whether the columns cannot describe it; the others are null
``f.<field>``  string, int64, double or bool, or a    its canonical values, null where there are none; lists if any
               list of these                          event has several; of a text field, in lower case, if asked for
``n.<field>``  int32                                  how many words all values of a text field have
=============  =====================================  ============================================================

``postings``: sorted by field and term in the order of code points. A term is the text of a value, or a word of a text;
the field with the empty name is the lexicon of routing keys.

=============  ======================  ==========================================================================
column         type                    holds
=============  ======================  ==========================================================================
``field``      string                  the field
``term``       string                  the term; one with very many postings has several rows, which follow each other
``rows``       list of int32           where it is, ascending; of a text field once for every occurrence
``positions``  list of int32, or null  of a text field, beside each row: ordinal of the value << 20 | index of the word
=============  ======================  ==========================================================================

``panes``: the states of rollups, sorted by rollup, interval, pane, key and measure, with the columns of ``reduce``.

Pages are zstd with checksums. A row group of postings holds whole terms of one field, or a part of one term; one of
panes holds one interval of one rollup; sizes are in `layout.Limits`. Between row groups of postings lie Bloom filters
of their terms, see `format.bloom`. The metadata of every file holds the same JSON document under ``headrace``,
`layout.CompanionInfo`, and under ``headrace.index`` the index of its row groups, see `layout`.
"""

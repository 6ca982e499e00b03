-- The registry of event sources, derivations and tables, whole after each of its changes.
CREATE TABLE feature_registry (
    version   INTEGER PRIMARY KEY,
    at_us     INTEGER NOT NULL,
    who       TEXT NOT NULL,
    app       TEXT NOT NULL,
    document  TEXT NOT NULL,
    published INTEGER NOT NULL DEFAULT 0          -- whether the object store has it
) STRICT;
CREATE INDEX feature_registry_unpublished ON feature_registry (version) WHERE published = 0;

-- What an event source remembers of events, so as not to store them again.
CREATE TABLE dedupe (
    stream INTEGER NOT NULL,
    key    TEXT NOT NULL,                         -- the value of the field, as JSON
    seq    INTEGER NOT NULL,                      -- of the event that had it first
    at_us  INTEGER NOT NULL,
    PRIMARY KEY (stream, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedupe_seq ON dedupe (stream, seq);

-- States of tables: what features hold of a range of events, by key, as files in the object store.
CREATE TABLE states (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    stream    INTEGER NOT NULL,                   -- the event source
    "table"   TEXT NOT NULL,
    name      TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    retired   INTEGER NOT NULL DEFAULT 0,         -- does not count any more, and a manifest may still list it
    document  TEXT NOT NULL
) STRICT;
CREATE INDEX states_stream ON states (stream, "table", first_seq);

-- What manages a stream, as JSON; empty where it is changed by its own routes.
ALTER TABLE streams ADD COLUMN managed TEXT NOT NULL DEFAULT '';
DROP INDEX streams_retention;
CREATE INDEX streams_retention ON streams (id)
    WHERE retention_age_us IS NOT NULL OR retention_bytes IS NOT NULL OR managed != '';

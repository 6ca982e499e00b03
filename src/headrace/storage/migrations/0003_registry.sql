-- The registry documents of a stream, one for each change; the newest counts.
CREATE TABLE registries (
    stream   INTEGER NOT NULL,
    revision INTEGER NOT NULL,                    -- 1, 2, …
    at_us    INTEGER NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (stream, revision)
) STRICT;

ALTER TABLE streams ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;  -- of the registry; 0 where there is none

-- Where the entries of a row have different keys: a JSON array of one key or null for each.
ALTER TABLE wal ADD COLUMN keys TEXT;
CREATE INDEX wal_keys ON wal (stream, seq) WHERE keys IS NOT NULL;

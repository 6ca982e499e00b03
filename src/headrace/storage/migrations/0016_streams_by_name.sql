-- Streams lie in the order of their names: a page of them is read in one go, and one is found with one look. Numbers are
-- given out by meta (last_stream) and never again, as rows of a stream may stay for a while after it is gone.
INSERT INTO meta SELECT 'last_stream', ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'streams'), 0);
ALTER TABLE streams RENAME TO streams_before;
CREATE TABLE streams (
    name             TEXT PRIMARY KEY,
    id               INTEGER NOT NULL,
    state            INTEGER NOT NULL,            -- 0 live, 1 deleted but needed by forks, 2 deleted
    content_type     TEXT NOT NULL,
    created_us       INTEGER NOT NULL,
    ttl_s            INTEGER,
    expires_us       INTEGER,                     -- as given by the creator
    deadline_us      INTEGER,                     -- when it is gone: expires_us, or the sliding window's end
    retention_age_us INTEGER,
    retention_bytes  INTEGER,
    closed           INTEGER NOT NULL,
    closed_by        TEXT,                        -- producer id, epoch and seq of the closing request
    epochs           TEXT NOT NULL,               -- [[epoch, first seq], …]
    parent           INTEGER,                     -- the stream this one was forked from
    fork_seq         INTEGER,                     -- entries below it are read from the parent
    fork_origin      TEXT,                        -- the fork as it was asked for, to answer a repeated PUT
    first_seq        INTEGER NOT NULL,            -- the first retained entry
    first_bytes      INTEGER NOT NULL,            -- payload bytes before it
    next_seq         INTEGER NOT NULL,
    last_us          INTEGER NOT NULL,
    bytes            INTEGER NOT NULL,
    stream_seq       TEXT,
    profile          TEXT NOT NULL,
    revision         INTEGER NOT NULL,            -- of the registry; 0 where there is none
    incarnation      TEXT NOT NULL,               -- tells this life of the name from others
    published_seq    INTEGER NOT NULL,            -- entries below it are in segments
    published_us     INTEGER NOT NULL,            -- when that was found out
    generation       INTEGER NOT NULL,            -- of the newest manifest
    attempted        INTEGER NOT NULL,            -- whether it may have objects
    manifest_bytes   INTEGER NOT NULL,
    managed          TEXT NOT NULL                -- what manages the stream, as JSON; empty where nothing does
) STRICT, WITHOUT ROWID;
INSERT INTO streams
SELECT name, id, state, content_type, created_us, ttl_s, expires_us, deadline_us, retention_age_us, retention_bytes,
    closed, closed_by, epochs, parent, fork_seq, fork_origin, first_seq, first_bytes, next_seq, last_us, bytes,
    stream_seq, profile, revision, incarnation, published_seq, published_us, generation, attempted, manifest_bytes,
    managed
FROM streams_before ORDER BY name;
DROP TABLE streams_before;
CREATE UNIQUE INDEX streams_id ON streams (id);
CREATE INDEX streams_deadline ON streams (deadline_us) WHERE deadline_us IS NOT NULL;
CREATE INDEX streams_parent ON streams (parent) WHERE parent IS NOT NULL;
CREATE INDEX streams_incarnation ON streams (incarnation);
CREATE INDEX streams_retention ON streams (id)
    WHERE retention_age_us IS NOT NULL OR retention_bytes IS NOT NULL OR managed != '';

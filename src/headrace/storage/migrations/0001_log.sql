-- One value per name: the next epoch, signing keys and the like.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per stream name. The head columns (next_seq … stream_seq) are as of the last time the newest
-- row of wal was trimmed or the stream had none: the newest row of wal, where there is one, knows better.
CREATE TABLE streams (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    name             TEXT NOT NULL UNIQUE,
    state            INTEGER NOT NULL,            -- 0 live, 1 deleted but needed by forks, 2 deleted
    content_type     TEXT NOT NULL,
    created_us       INTEGER NOT NULL,
    ttl_s            INTEGER,
    expires_us       INTEGER,                     -- as given by the creator
    deadline_us      INTEGER,                     -- when it is gone: expires_us, or the sliding window's end
    retention_age_us INTEGER,
    retention_bytes  INTEGER,
    closed           INTEGER NOT NULL DEFAULT 0,
    closed_by        TEXT,                        -- producer id, epoch and seq of the closing request
    epochs           TEXT NOT NULL,               -- [[epoch, first seq], …]
    parent           INTEGER,                     -- the stream this one was forked from
    fork_seq         INTEGER,                     -- entries below it are read from the parent
    fork_origin      TEXT,                        -- the fork as it was asked for, to answer a repeated PUT
    first_seq        INTEGER NOT NULL DEFAULT 0,  -- the first retained entry
    first_bytes      INTEGER NOT NULL DEFAULT 0,  -- payload bytes before it
    next_seq         INTEGER NOT NULL DEFAULT 0,
    last_us          INTEGER NOT NULL,
    bytes            INTEGER NOT NULL DEFAULT 0,
    stream_seq       TEXT,
    profile          TEXT NOT NULL DEFAULT 'generic'
) STRICT;
CREATE INDEX streams_deadline ON streams (deadline_us) WHERE deadline_us IS NOT NULL;
CREATE INDEX streams_retention ON streams (id) WHERE retention_age_us IS NOT NULL OR retention_bytes IS NOT NULL;
CREATE INDEX streams_parent ON streams (parent) WHERE parent IS NOT NULL;

-- One row per append request, in the order of commit.
CREATE TABLE wal (
    id          INTEGER PRIMARY KEY,
    stream      INTEGER NOT NULL,
    seq         INTEGER NOT NULL,                 -- of its first entry
    count       INTEGER NOT NULL,
    append_us   INTEGER NOT NULL,
    version     INTEGER NOT NULL,                 -- schema version
    key         TEXT,
    stream_seq  TEXT,                             -- the stream's Stream-Seq as of this row
    total_bytes INTEGER NOT NULL,                 -- payload bytes of the stream up to and with this row
    body        BLOB NOT NULL                     -- JSON streams: the entries with commas between
) STRICT;
CREATE UNIQUE INDEX wal_seq ON wal (stream, seq);
CREATE INDEX wal_key ON wal (stream, key, seq) WHERE key IS NOT NULL;

CREATE TABLE producers (
    stream   INTEGER NOT NULL,
    producer TEXT NOT NULL,
    epoch    INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    PRIMARY KEY (stream, producer)
) STRICT, WITHOUT ROWID;

-- Deleted streams whose rows a sweep still has to remove.
CREATE TABLE garbage (
    stream INTEGER PRIMARY KEY
) STRICT;

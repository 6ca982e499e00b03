-- Companions: what was derived from ranges of a stream's entries. Their ranges may overlap while one takes the place of
-- others.
CREATE TABLE companions (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    stream    INTEGER NOT NULL,
    name      TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    retired   INTEGER NOT NULL DEFAULT 0,         -- not used any more; its objects go once no manifest lists them
    document  TEXT NOT NULL,
    UNIQUE (stream, name, retired)
) STRICT;

-- Streams whose companions may lag behind their entries or their definition.
CREATE TABLE due (
    stream   INTEGER PRIMARY KEY,
    since_us INTEGER NOT NULL,
    mark     INTEGER NOT NULL,                    -- how often it was marked: who looked before the last has not seen all
    run      INTEGER NOT NULL                     -- asked for, however little there is to do
) STRICT;
CREATE INDEX due_since ON due (since_us);
INSERT INTO due SELECT id, 0, 1, 0 FROM streams WHERE revision > 0 AND state = 0;

-- Work that was given to workers. A lease that has ended is remembered for a while, to answer a repeated commit.
CREATE TABLE leases (
    id         TEXT PRIMARY KEY,
    token      INTEGER NOT NULL,                  -- an epoch, so none is ever given twice
    worker     TEXT NOT NULL,
    granted_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    ended_us   INTEGER,
    done       INTEGER NOT NULL DEFAULT 0,        -- as the worker reports it
    total      INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE units (
    id          TEXT PRIMARY KEY,
    lease       TEXT NOT NULL,
    stream      INTEGER NOT NULL,
    job         TEXT NOT NULL,
    first_seq   INTEGER NOT NULL,
    count       INTEGER NOT NULL,
    document    TEXT NOT NULL,                    -- as the worker got it, without the registry
    outcome     TEXT,                             -- NULL: being worked on
    reason      TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX units_lease ON units (lease);
CREATE INDEX units_stream ON units (stream) WHERE outcome IS NULL;

-- Ranges on which work has failed: tried again after a pause, or parked.
CREATE TABLE failures (
    stream    INTEGER NOT NULL,
    job       TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    attempts  INTEGER NOT NULL,
    at_us     INTEGER NOT NULL,                   -- of the last attempt
    retry_us  INTEGER NOT NULL,
    lost      INTEGER NOT NULL,                   -- a worker was lost over it: it is tried alone
    parked    INTEGER NOT NULL,
    reason    TEXT NOT NULL,
    PRIMARY KEY (stream, job, first_seq, count)
) STRICT, WITHOUT ROWID;

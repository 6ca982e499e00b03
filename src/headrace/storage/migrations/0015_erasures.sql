-- Entities that are removed for good, and what came of it.
CREATE TABLE erasures (
    id         TEXT PRIMARY KEY,
    entity_id  TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    stream     INTEGER NOT NULL,                        -- that of the entity's type
    before_seq INTEGER NOT NULL,                        -- observations from it on are of another entity
    state      TEXT NOT NULL CHECK (state IN ('running', 'done')),
    step       TEXT NOT NULL,
    begun_us   INTEGER NOT NULL,
    ended_us   INTEGER,
    targets    TEXT NOT NULL,                           -- what tells its observations apart
    plan       TEXT NOT NULL,
    report     TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX erasures_stream ON erasures (stream, state);

-- Ids whose observations before a number do not count any more, until they are gone.
CREATE TABLE erased (
    entity_id  TEXT NOT NULL,
    erasure    TEXT NOT NULL,
    before_seq INTEGER NOT NULL,
    PRIMARY KEY (entity_id, erasure)
) STRICT, WITHOUT ROWID;

-- Segments that workers have written anew, until a publication takes them.
CREATE TABLE rewrites (
    stream   INTEGER NOT NULL,
    name     TEXT NOT NULL,                             -- of the segment whose place it takes
    document TEXT NOT NULL,
    PRIMARY KEY (stream, name)
) STRICT, WITHOUT ROWID;

-- Fills unused pages of the database, so that what was in them is overwritten.
CREATE TABLE filler (
    body BLOB NOT NULL
) STRICT;

-- What of a stream is published in the object store.
ALTER TABLE streams ADD COLUMN incarnation TEXT NOT NULL DEFAULT '';         -- tells this life of the name from others
ALTER TABLE streams ADD COLUMN published_seq INTEGER NOT NULL DEFAULT 0;     -- entries below it are in segments
ALTER TABLE streams ADD COLUMN published_us INTEGER NOT NULL DEFAULT 0;      -- when that was found out
ALTER TABLE streams ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;        -- of the newest manifest
ALTER TABLE streams ADD COLUMN attempted INTEGER NOT NULL DEFAULT 0;         -- whether it may have objects
CREATE INDEX streams_incarnation ON streams (incarnation);
UPDATE streams SET incarnation = json_extract(epochs, '$[#-1][0]');

-- Segments of living streams; the entries of one stream follow each other without gaps.
CREATE TABLE segments (
    stream        INTEGER NOT NULL,
    first_seq     INTEGER NOT NULL,
    count         INTEGER NOT NULL,
    name          TEXT NOT NULL,
    bytes         INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    before_bytes  INTEGER NOT NULL,               -- payload of the stream before it, and up to its end
    total_bytes   INTEGER NOT NULL,
    min_us        INTEGER NOT NULL,
    max_us        INTEGER NOT NULL,
    sha256        TEXT NOT NULL,
    PRIMARY KEY (stream, first_seq)
) STRICT, WITHOUT ROWID;

-- Streams whose manifest no longer tells the truth, although they may have no new entries.
CREATE TABLE unpublished (
    stream   INTEGER PRIMARY KEY,
    since_us INTEGER NOT NULL
) STRICT;

-- Objects that nothing refers to any more; a sweep removes them once readers have had time to finish.
CREATE TABLE leftovers (
    key      TEXT PRIMARY KEY,
    since_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Deleted streams that may have objects in the store.
CREATE TABLE graves (
    incarnation TEXT PRIMARY KEY,
    name        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

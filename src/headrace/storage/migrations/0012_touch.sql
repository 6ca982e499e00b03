-- Streams of the state protocol whose touches are told: a cursor of another epoch means nothing.
CREATE TABLE touch (
    stream INTEGER PRIMARY KEY,
    epoch  TEXT NOT NULL
) STRICT;

-- Templates by which rows are told apart, while someone uses them.
CREATE TABLE touch_templates (
    stream      INTEGER NOT NULL,
    template    TEXT NOT NULL,                    -- 16 hex digits
    entity      TEXT NOT NULL,
    fields      TEXT NOT NULL,                    -- names and encodings, as JSON
    active_from INTEGER NOT NULL,                 -- the first event that it sees
    seen_us     INTEGER NOT NULL,
    ttl_ms      INTEGER NOT NULL,                 -- how long nobody may use it before it is retired
    PRIMARY KEY (stream, template)
) STRICT, WITHOUT ROWID;

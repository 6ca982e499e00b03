-- Rows of tables as of moments in the past, asked for together; kept for a while after they were found.
CREATE TABLE histories (
    id       TEXT PRIMARY KEY,
    stream   INTEGER NOT NULL,                    -- the event source
    "table"  TEXT NOT NULL,
    state    TEXT NOT NULL,                       -- running, done or failed
    begun_us INTEGER NOT NULL,
    ended_us INTEGER,
    target   INTEGER NOT NULL,                    -- events before it are folded
    question TEXT NOT NULL,                       -- keys, moments and features, and the table as it was defined
    answer   TEXT,                                -- the rows, once they are found
    reason   TEXT                                 -- why it failed
) STRICT, WITHOUT ROWID;
CREATE INDEX histories_running ON histories (begun_us) WHERE state = 'running';
CREATE INDEX histories_ended ON histories (ended_us) WHERE ended_us IS NOT NULL;
CREATE INDEX histories_stream ON histories (stream);

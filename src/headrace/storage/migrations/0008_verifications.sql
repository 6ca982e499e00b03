-- Checks of a proposed change on the stored events of a stream; kept for a while after they have ended.
CREATE TABLE verifications (
    id           TEXT PRIMARY KEY,
    stream       INTEGER NOT NULL,
    state        TEXT NOT NULL,                   -- running, done or failed
    from_version INTEGER NOT NULL,                -- what the proposal leads on from
    begun_us     INTEGER NOT NULL,
    ended_us     INTEGER,
    start        INTEGER NOT NULL,                -- the first event to look at, unless retention has moved on
    target       INTEGER NOT NULL,                -- up to where is looked
    tail         INTEGER NOT NULL,                -- whether that is the head: the rest is looked at by the server
    looked       TEXT NOT NULL,                   -- the ranges that were looked at
    findings     TEXT NOT NULL,
    reason       TEXT,                            -- why it failed
    proposal     TEXT                             -- the registry with the proposed version, until it has ended
) STRICT;
CREATE INDEX verifications_running ON verifications (begun_us) WHERE state = 'running';
CREATE INDEX verifications_ended ON verifications (ended_us) WHERE ended_us IS NOT NULL;
CREATE INDEX verifications_stream ON verifications (stream);

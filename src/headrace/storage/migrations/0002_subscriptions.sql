-- One row per subscription under __ds, with the wake that is in flight.
CREATE TABLE subscriptions (
    id             TEXT PRIMARY KEY,
    definition     TEXT NOT NULL,                 -- JSON, as it was asked for
    base_url       TEXT NOT NULL,                 -- of the server, as the subscriber addressed it
    created_us     INTEGER NOT NULL,
    generation     INTEGER NOT NULL,
    wake_id        TEXT,                          -- NULL: idle
    holder         TEXT,                          -- the worker that claimed the wake
    lease_until_us INTEGER,
    deliver_at_us  INTEGER,                       -- when the wake is announced (again)
    attempts       INTEGER NOT NULL,              -- failed announcements in a row
    last_error     TEXT
) STRICT, WITHOUT ROWID;

-- The streams of a subscription, each with its cursor.
CREATE TABLE links (
    subscription TEXT NOT NULL,
    path         TEXT NOT NULL,
    stream       INTEGER,                         -- NULL until the stream exists
    explicit     INTEGER NOT NULL,                -- named, and not only matched by the pattern
    acked        TEXT NOT NULL,                   -- offset up to which entries were processed
    PRIMARY KEY (subscription, path)
) STRICT, WITHOUT ROWID;

-- What webhooks are signed with: 'ed25519' signs bodies, 'token' callback tokens.
CREATE TABLE signing_keys (
    purpose TEXT PRIMARY KEY,
    secret  BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Versions of entity types. What a row says is never changed; only whether it is the active one of its owner.
CREATE TABLE schema_registry (
    id                TEXT PRIMARY KEY,                 -- a UUID
    entity_type       TEXT NOT NULL,
    schema_version    TEXT NOT NULL,
    scope             TEXT NOT NULL CHECK (scope IN ('global', 'user')),
    user_id           TEXT NOT NULL CHECK ((scope = 'user') = (user_id != '')),
    schema_definition TEXT NOT NULL,
    reducer_config    TEXT NOT NULL,
    metadata          TEXT NOT NULL,
    base_version      TEXT,                             -- the global version that a user's was made from
    created_us        INTEGER NOT NULL,
    active            INTEGER NOT NULL DEFAULT 0 CHECK (active IN (0, 1))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX schema_registry_version ON schema_registry (entity_type, scope, user_id, schema_version);
CREATE UNIQUE INDEX schema_registry_active ON schema_registry (entity_type, scope, user_id) WHERE active = 1;
CREATE INDEX schema_registry_user ON schema_registry (user_id, entity_type) WHERE active = 1;
CREATE TRIGGER schema_registry_immutable BEFORE UPDATE OF
    id, entity_type, schema_version, scope, user_id, schema_definition, reducer_config, metadata, base_version, created_us
    ON schema_registry
BEGIN
    SELECT RAISE(ABORT, 'a stored schema is never changed');
END;

-- Everything that was done to entity types: the audit, and what a recovery does again.
CREATE TABLE entity_changes (
    number      INTEGER PRIMARY KEY,
    entity_type TEXT NOT NULL,
    user_id     TEXT NOT NULL,                          -- whose schema it is; empty for the global one
    at_us       INTEGER NOT NULL,
    who         TEXT NOT NULL,
    document    TEXT NOT NULL,
    published   INTEGER NOT NULL DEFAULT 0              -- whether the object store has it
) STRICT;
CREATE INDEX entity_changes_type ON entity_changes (entity_type, number);
CREATE INDEX entity_changes_unpublished ON entity_changes (number) WHERE published = 0;

-- Other names of entity types, of their active schemas.
CREATE TABLE entity_type_aliases (
    alias       TEXT NOT NULL,
    user_id     TEXT NOT NULL,                          -- empty for an alias of everybody's
    entity_type TEXT NOT NULL,
    PRIMARY KEY (alias, user_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX entity_type_aliases_type ON entity_type_aliases (entity_type, user_id);

-- Entities that were ever observed, in the order in which they were. Ids are hashes: what is kept in their order is
-- written all over, so that is one small index.
CREATE TABLE entities (
    number         INTEGER PRIMARY KEY AUTOINCREMENT,
    entity_id      TEXT NOT NULL,
    stream         INTEGER NOT NULL,                    -- that of its type
    user_id        TEXT NOT NULL,
    canonical_name TEXT NOT NULL,
    first_seq      INTEGER NOT NULL,                    -- of its first observation
    at_us          INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX entities_id ON entities (entity_id);
CREATE INDEX entities_stream ON entities (stream, user_id, number);
CREATE INDEX entities_user ON entities (user_id, number);

-- Entities that were merged into others.
CREATE TABLE aliases (
    entity_id TEXT PRIMARY KEY,
    into_id   TEXT NOT NULL,
    user_id   TEXT NOT NULL,
    stream    INTEGER NOT NULL,
    seq       INTEGER NOT NULL,                         -- of the observation that says so
    at_us     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX aliases_into ON aliases (into_id);
CREATE INDEX aliases_stream ON aliases (stream, seq);

-- Observations that were moved to another entity.
CREATE TABLE splits (
    observation_id TEXT NOT NULL,
    entity_id      TEXT NOT NULL,                       -- which it was about
    into_id        TEXT NOT NULL,                       -- which it is about now
    user_id        TEXT NOT NULL,
    stream         INTEGER NOT NULL,
    seq            INTEGER NOT NULL,                    -- of the observation that says so
    at_us          INTEGER NOT NULL,
    PRIMARY KEY (entity_id, observation_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX splits_into ON splits (into_id);
CREATE INDEX splits_stream ON splits (stream, seq);

-- Where the observations of a source lie.
CREATE TABLE sources (
    source_id TEXT NOT NULL,
    stream    INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    user_id   TEXT NOT NULL,
    at_us     INTEGER NOT NULL,
    PRIMARY KEY (source_id, stream, first_seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX sources_stream ON sources (stream, first_seq);

-- Requests that may come again, and what they were answered.
CREATE TABLE idempotency (
    user_id TEXT NOT NULL,
    key     TEXT NOT NULL,
    digest  BLOB NOT NULL,                              -- of what was asked for
    answer  BLOB NOT NULL,                              -- packed
    at_us   INTEGER NOT NULL,
    PRIMARY KEY (user_id, key)
) STRICT;
CREATE INDEX idempotency_age ON idempotency (at_us, length(answer));

-- Whether and how types grow by themselves.
CREATE TABLE enhancement_settings (
    entity_type TEXT NOT NULL,
    user_id     TEXT NOT NULL,                          -- empty for the global schema
    document    TEXT NOT NULL,
    PRIMARY KEY (entity_type, user_id)
) STRICT, WITHOUT ROWID;

-- Analyses of fragments, and what came of them.
CREATE TABLE enhancement_runs (
    id          TEXT PRIMARY KEY,
    entity_type TEXT NOT NULL,
    user_id     TEXT NOT NULL,
    state       TEXT NOT NULL,
    begun_us    INTEGER NOT NULL,
    ended_us    INTEGER,
    document    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX enhancement_runs_type ON enhancement_runs (entity_type, user_id, begun_us);
CREATE INDEX enhancement_runs_open ON enhancement_runs (begun_us) WHERE ended_us IS NULL;

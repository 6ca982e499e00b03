-- Fields and converters that fragments speak for, and what was decided about each.
CREATE TABLE recommendations (
    entity_type TEXT NOT NULL,
    user_id     TEXT NOT NULL,                          -- whose schema it is about; empty for the global one
    field       TEXT NOT NULL,
    change      TEXT NOT NULL CHECK (change IN ('add_fields', 'add_converters')),
    status      TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'rejected', 'applied', 'auto_applied')),
    document    TEXT NOT NULL,
    PRIMARY KEY (entity_type, user_id, field, change)
) STRICT, WITHOUT ROWID;

-- Migrations of fragments whose observations do not count any more.
CREATE TABLE undone_migrations (
    entity_type TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    fields      TEXT NOT NULL,                          -- a list of names
    PRIMARY KEY (entity_type, run_id)
) STRICT, WITHOUT ROWID;

-- Types whose fragments somebody has asked about: these are counted ahead.
CREATE TABLE fragment_readers (
    entity_type TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

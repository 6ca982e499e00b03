-- What was done to streams and registries, until it stands in the stream __registry__.
CREATE TABLE notes (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    document TEXT NOT NULL
) STRICT;

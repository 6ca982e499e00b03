-- From this version on every page of the database has a checksum in its last eight bytes (SQLite's checksum VFS). The
-- tables stay as they are: a database from before is copied to a new file with room for them.
SELECT 1;

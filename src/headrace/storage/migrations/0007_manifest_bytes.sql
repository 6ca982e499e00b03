-- The size of the newest manifest, as it was written.
ALTER TABLE streams ADD COLUMN manifest_bytes INTEGER NOT NULL DEFAULT 0;

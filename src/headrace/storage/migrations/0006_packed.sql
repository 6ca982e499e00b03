-- The length of a body that is stored packed; NULL where it is stored as it came.
ALTER TABLE wal ADD COLUMN packed INTEGER;

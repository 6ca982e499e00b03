-- Every second somebody asks which streams have waited long enough; a million that have not need not be looked at.
CREATE INDEX unpublished_since ON unpublished (since_us);

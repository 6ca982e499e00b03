"""From rows of the log to published segments: what is appended here reaches the object store."""

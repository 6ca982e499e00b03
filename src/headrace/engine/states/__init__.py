"""States: what is folded of the events of a stream, by key: kept by levels, made by workers, joined with the tail."""

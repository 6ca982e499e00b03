"""States: what is folded of the events of a stream, by key: how they are defined, folded and merged."""

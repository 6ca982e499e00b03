"""Entity types: proposed, applied, written down, published, and taken over by a recovery."""

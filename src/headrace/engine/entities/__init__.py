"""Entity types and what was observed of entities."""

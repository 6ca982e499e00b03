"""Entity types: what observations may hold, how entities are identified, and how their schemas change."""

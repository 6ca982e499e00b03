"""Entity types: what observations may hold, how they are told apart, and how their schemas change."""

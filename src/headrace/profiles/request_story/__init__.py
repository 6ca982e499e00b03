"""One request, seen from its events and its spans at once."""

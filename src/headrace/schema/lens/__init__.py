"""How documents of one schema version become documents of the next, and back."""

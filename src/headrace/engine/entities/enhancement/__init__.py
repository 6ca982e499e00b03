"""Enhancement of entity types: fragments become fields, and stored values are moved into them."""

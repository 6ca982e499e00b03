"""Sets of JSON values, described from above: what a schema may admit, and what is left of it after each step."""

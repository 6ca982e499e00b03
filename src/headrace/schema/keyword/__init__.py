"""What it means that a keyword of a JSON Schema changes: one rule for each kind of keyword."""

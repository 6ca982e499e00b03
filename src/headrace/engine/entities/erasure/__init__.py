"""Erasure of entities: plans, commits, and rewritten segments."""

"""Storing observations: entities, decisions, merges and splits."""

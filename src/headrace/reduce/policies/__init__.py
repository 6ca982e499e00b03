"""Observations of entities, reduced by the merge policies of their type to states, and states to snapshots."""

"""Entities on their way out: observations found and folded to snapshots, lists and sources."""

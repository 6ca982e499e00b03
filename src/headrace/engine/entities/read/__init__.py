"""Reading entities: observations, snapshots, lists and sources."""

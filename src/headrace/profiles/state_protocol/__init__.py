"""The profile ``state-protocol``: a stream of changes of rows, and keys that say what a change touches."""

"""The profile ``state-protocol``: a stream of changes of rows, and keys of what a change touches."""

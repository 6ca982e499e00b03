"""The log: streams, appends, commits, reads, lifecycle and retention."""

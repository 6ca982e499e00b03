"""Derived data, computed on Spark: leases work from a server, runs it in executors, commits what they wrote."""

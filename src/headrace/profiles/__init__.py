"""Profiles: what a stream means, apart from its shape. One definition each, wired in one table."""

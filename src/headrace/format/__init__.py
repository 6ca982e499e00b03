"""Bytes at rest, one module per kind."""

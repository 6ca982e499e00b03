"""Queries of a stream. Pure: no files, no clocks, no network."""

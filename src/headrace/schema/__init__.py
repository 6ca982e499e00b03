"""Schemas, lenses, descriptors and entity types, and how they change. Pure: no files, no clocks, no network."""

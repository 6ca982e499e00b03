"""Fragments counted, and the fields and converters that their counts justify."""

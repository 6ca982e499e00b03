"""Proposed schemas are held against the events that are stored, by workers or by the server itself."""

"""Descriptors: event sources, derivations and tables, what they mean, and how they may change."""

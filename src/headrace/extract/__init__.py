"""Stored events as typed columns and postings: what companions are made of."""

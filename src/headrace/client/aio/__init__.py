"""Clients that await; the blocking ones of the same names are written from them by tools/blocking_client.py."""

"""Numbered SQL files, applied once each and never edited."""

"""Observations on their way in: asked for, accepted, decided in their commit, answered."""

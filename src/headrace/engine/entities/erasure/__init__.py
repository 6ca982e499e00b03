"""Erasures: planned, and carried out in the log, in segments and by workers."""

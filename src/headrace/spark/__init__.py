"""Streams as DataFrames: ``spark.read.format("headrace")``."""

from headrace.spark.source import HeadraceSource, register

__all__ = ["HeadraceSource", "register"]

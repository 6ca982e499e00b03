"""Lets Spark find the data source ``headrace`` by itself: it looks into packages whose names begin with pyspark_."""

from headrace.spark.source import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]

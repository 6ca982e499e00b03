"""The same states in Spark: panes merged by Catalyst, and sketches that the server reads.

Nothing else in this package knows Spark, and this module asks for it only when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.operators.sketches import EMPTY_TEXT, HLL_LG_K, KLL_K
from headrace.query.search import Kind
from headrace.reduce.state import KEYS, MAX_COUNT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The panes table as Spark spells its schema.
SCHEMA = (
    "rollup string, `interval` bigint, pane bigint, key string, measure string, `count` bigint, `sum` double, "
    "sum_int decimal(38,0), `min` double, `max` double, min_int bigint, max_int bigint, "
    "histogram map<int,bigint>, sketch binary"
)

#: The first byte of a sketch tells whether it is the state of an operator, the third one its family.
_IS_OPERATOR = "substring(sketch, 1, 1) = X'C1'"
_IS_DISTINCT = f"substring(sketch, 3, 1) = X'07' AND NOT {_IS_OPERATOR}"
_IS_QUANTILES = f"substring(sketch, 3, 1) = X'0F' AND NOT {_IS_OPERATOR}"
_ADDED = f"(e, a, b) -> least(coalesce(a, 0L), {MAX_COUNT}L - coalesce(b, 0L)) + coalesce(b, 0L)"
_MERGED = {
    "count": f"cast(least(sum(cast(`count` as decimal(38, 0))), {MAX_COUNT}) as bigint)",
    "sum": "sum(`sum`)",
    "sum_int": "cast(sum(sum_int) as decimal(38, 0))",
    "min": "min(`min`)",
    "max": "max(`max`)",
    "min_int": "min(min_int)",
    "max_int": "max(max_int)",
    "histogram": (
        "if(count(histogram) = 0, null, map_from_entries(array_sort(map_entries(reduce("
        f"collect_list(histogram), cast(map() as map<int, bigint>), (all, one) -> map_zip_with(all, one, {_ADDED}))))))"
    ),
    "sketch": (
        f"coalesce(if(count_if({_IS_DISTINCT}) = 0, null, hll_union_agg(if({_IS_DISTINCT}, sketch, null))), "
        f"if(count_if({_IS_QUANTILES}) = 0, null, kll_merge_agg_double(if({_IS_QUANTILES}, sketch, null), {KLL_K})), "
        # States of operators one after the other are the state of all.
        f"if(count_if({_IS_OPERATOR}) = 0, null, "
        f"reduce(collect_list(if({_IS_OPERATOR}, sketch, null)), X'', (all, one) -> concat(all, one))))"
    ),
}


def merge(panes: DataFrame, *, by: Sequence[str] = ()) -> DataFrame:
    """One row for all the rows of a pane, group and measure; ``by`` names columns that keep more apart."""
    from pyspark.sql import functions

    merged = [functions.expr(sql).alias(name) for name, sql in _MERGED.items()]
    return panes.groupBy(*by, *KEYS.names).agg(*merged)


def quantiles(number: Column) -> Column:
    """The sketch of how numbers are distributed, over a group."""
    from pyspark.sql import functions

    return functions.kll_sketch_agg_double(number.cast("double"), KLL_K)


def distinct(value: Column, kind: Kind) -> Column:
    """The sketch of how many values of a kind differ, over a group."""
    from pyspark.sql import functions

    if kind is Kind.FLOAT:
        value = functions.when(value.isNotNull(), functions.xxhash64(value))
    elif kind in {Kind.KEYWORD, Kind.TEXT}:
        value = functions.when(value == "", EMPTY_TEXT).otherwise(value)
    else:
        value = value.cast("bigint")
    return functions.hll_sketch_agg(value, HLL_LG_K)

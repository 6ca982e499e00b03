"""Touches of all streams in Prometheus metrics, in the words of ``touch/meta``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.engine.touch import report
from headrace.engine.touch.touches import Touches

_PREFIX = "headrace_touch_"
_CAPITAL = re.compile("(?<!^)(?=[A-Z])")
_LIVES = ("activated", "retired", "evicted", "denied")


def touch_metrics(touches: Touches) -> Iterator[Metric]:
    """How things stand, and what has happened since the server began."""
    modes = Counter(touching.mode for touching in touches.followed())
    streams = GaugeMetricFamily(f"{_PREFIX}streams", "Streams that are followed, by touchMode", labels=["mode"])
    for mode, count in sorted(modes.items()):
        streams.add_metric([mode], count)
    yield streams
    for name, value in report.standing(touches).items():
        yield GaugeMetricFamily(_PREFIX + _snake(name), f"{name} of touch/meta, over all streams", value=value)
    for name, total in report.totals(touches).items():
        if not name.endswith("Total"):
            continue
        text, seconds = f"{name} of touch/meta, over all streams", name.endswith("MsTotal")
        known = _snake(name.removesuffix("Total")).removesuffix("_ms") + "_seconds" * seconds
        yield CounterMetricFamily(_PREFIX + known, text, value=total / 1000 if seconds else total)
    lives = CounterMetricFamily(f"{_PREFIX}templates", "What became of templates", labels=["outcome"])
    counts = report.counted(touches)
    for outcome in _LIVES:
        lives.add_metric([outcome], getattr(counts, outcome))
    yield lives


def _snake(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()

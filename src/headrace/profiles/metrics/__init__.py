"""``metrics``: one record per interval of a series, which summaries can be merged from."""

from __future__ import annotations

from headrace.profiles.definition import Definition
from headrace.profiles.metrics.hook import MetricsHook
from headrace.profiles.metrics.registry import DEFAULTS
from headrace.profiles.settings import nothing

METRICS = Definition(name="metrics", read=nothing, hook=lambda settings: MetricsHook(), defaults=DEFAULTS)

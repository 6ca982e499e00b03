"""``metrics``: one record per interval of a series, which summaries can be merged from."""

from __future__ import annotations

from headrace.profiles.definition import Definition, read_no_settings
from headrace.profiles.metrics.envelope import DEFAULTS
from headrace.profiles.metrics.hook import MetricsHook

METRICS = Definition(name="metrics", read=read_no_settings, hook=lambda settings: MetricsHook(), defaults=DEFAULTS)

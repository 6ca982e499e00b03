"""``otel-traces``: one canonical record per span, however it was exported."""

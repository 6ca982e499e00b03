"""What only some requests need is imported where it is used, so that a server starts quickly.

These modules are loaded once the server is ready, so that no request waits for them: that takes a second or two, and
under load a request would be too late.
"""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "headrace.storage.segments",
    "headrace.engine.search.archive",
    "headrace.engine.search.search",
    "headrace.engine.search.filtered_read",
    "headrace.engine.search.aggregate",
    "headrace.reduce.policies.build",
    "headrace.engine.entities.write.appending",
    "headrace.reduce.fragments.build",
    "headrace.engine.features.defining",
    "headrace.reduce.features.definition",
    "headrace.reduce.features.build",
    "headrace.reduce.features.events",
    "headrace.engine.derive.row_lookahead",
    "headrace.reduce.states.pending_events",
    "headrace.format.segment.decoded",
    "headrace.format.segment.heap",
    "headrace.format.segment.body_runs",
    "headrace.format.state.reader",
    "headrace.reduce.answer",
    "headrace.reduce.duck",
    "headrace.reduce.features.columns",
    "headrace.reduce.request",
)


def load_modules() -> None:
    """Import them, one after the other; for a thread."""
    for name in MODULES:
        import_module(name)

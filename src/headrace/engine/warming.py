"""What only some requests need is imported where it is used, so that a server starts quickly.

These modules are loaded once the server is ready, so that no request waits for them: that takes a second or two, and
under load a request would be too late.
"""

from __future__ import annotations

from importlib import import_module

MODULES = (
    "headrace.storage.segments",
    "headrace.engine.search.archive",
    "headrace.engine.search.searching",
    "headrace.engine.search.filtering",
    "headrace.engine.search.aggregating",
    "headrace.engine.sealing.publisher",
    "headrace.engine.entities.reading.making",
    "headrace.engine.entities.storing.appending",
    "headrace.engine.entities.storing.remembering",
    "headrace.engine.entities.growing.tallying",
    "headrace.engine.features.defining",
    "headrace.engine.features.keying",
    "headrace.engine.features.making",
    "headrace.engine.features.viewing",
    "headrace.engine.states.ahead",
    "headrace.engine.states.pending",
    "headrace.format.segment.decoded",
    "headrace.format.segment.heap",
    "headrace.format.segment.stretches",
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

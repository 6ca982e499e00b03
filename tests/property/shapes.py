"""A family of shapes that turn into each other, with plain functions that turn events: the model of lenses.

A shape is a set of traits. Each trait can be taken on or given up; both are one lens, and for both this file says, in
its own words, what becomes of an event, forward and back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jsonschema_rs
from hypothesis import strategies as st

Event = dict[str, Any]
Turn = Callable[[Event], Event]
Shape = frozenset[str]

WHOLE = {"type": "integer"}
TEXTS = ("low", "high")
LEAST, MOST = -3, 12
NARROW = 9


class NoForm(Exception):
    """The event has no form in the version asked for."""


class Way(NamedTuple):
    """How a trait is taken on, or given up: the ops of the lens, and what they do to an event, forward and back."""

    ops: list[dict[str, Any]]
    forward: Turn
    back: Turn


def schema(shape: Shape) -> dict[str, Any]:
    """The JSON Schema of a shape."""
    members: dict[str, Any] = {"k": {"type": "string"}}
    members["n"] = WHOLE if "wide" in shape else {"type": "integer", "maximum": NARROW}
    members["b" if "renamed" in shape else "a"] = WHOLE
    members["t"] = {"type": "array", "items": WHOLE, "minItems": 1} if "listed" in shape else WHOLE
    members["l"] = {"enum": [0, 1]} if "numbered" in shape else {"type": "string", "enum": list(TEXTS)}
    if "extra" in shape:
        members["e"] = WHOLE
    if "inside" in shape:
        members["o"] = {
            "type": "object",
            "properties": {"i": WHOLE},
            "required": ["i"],
            "additionalProperties": False,
        }
    else:
        members["i"] = WHOLE
    required = [name for name in members if name != "k"]
    return {"type": "object", "properties": members, "required": required, "additionalProperties": False}


def fits(shape: Shape, event: Any) -> bool:
    """Whether an event is of a shape."""
    return jsonschema_rs.is_valid(schema(shape), event)


def _changed(**changes: Callable[[Event], Any]) -> Turn:
    """Members that get new values; those that get None go."""

    def turn(event: Event) -> Event:
        event = copy.deepcopy(event)
        for name, value in {name: make(event) for name, make in changes.items()}.items():
            if value is None:
                del event[name]
            else:
                event[name] = value
        return event

    return turn


def _nothing(event: Event) -> Any:
    return None


def _never(event: Event) -> Event:
    raise NoForm


def _levels(forward: dict[str, Any], back: dict[str, Any], before: str, after: str) -> list[dict[str, Any]]:
    op = {"op": "convert", "path": "/l", "fromType": before, "toType": after}
    return [{**op, "forward": {"map": forward}, "backward": {"map": back}}]


_TO_NUMBER, _TO_TEXT = {"low": 0, "high": 1}, {"0": "low", "1": "high"}
_NUMBERED = _changed(l=lambda event: TEXTS.index(event["l"]))
_SPELLED = _changed(l=lambda event: TEXTS[event["l"]])
_A_TO_B = _changed(b=lambda event: event["a"], a=_nothing)
_B_TO_A = _changed(a=lambda event: event["b"], b=_nothing)
_LISTED = _changed(t=lambda event: [event["t"]])
_FIRST = _changed(t=lambda event: event["t"][0])
_IN = _changed(o=lambda event: {"i": event["i"]}, i=_nothing)
_OUT = _changed(i=lambda event: event["o"]["i"], o=_nothing)
_WITH_EXTRA = _changed(e=lambda event: 7)
_WITHOUT = _changed(e=_nothing)
_SAME = _changed()

TAKEN: dict[str, Way] = {
    "renamed": Way([{"op": "rename", "from": "/a", "to": "/b"}], _A_TO_B, _B_TO_A),
    "listed": Way([{"op": "wrap", "path": "/t", "mode": "singleton"}], _LISTED, _FIRST),
    "numbered": Way(_levels(_TO_NUMBER, _TO_TEXT, "string", "integer"), _NUMBERED, _SPELLED),
    "extra": Way([{"op": "add", "path": "/e", "schema": WHOLE, "default": 7}], _WITH_EXTRA, _WITHOUT),
    "inside": Way([{"op": "plunge", "from": "/i", "host": "/o", "name": "i"}], _IN, _OUT),
    "wide": Way([], _SAME, _SAME),
}
GIVEN_UP: dict[str, Way] = {
    "renamed": Way([{"op": "rename", "from": "/b", "to": "/a"}], _B_TO_A, _A_TO_B),
    "listed": Way([{"op": "head", "path": "/t"}], _FIRST, _LISTED),
    "numbered": Way(_levels(_TO_TEXT, _TO_NUMBER, "integer", "string"), _SPELLED, _NUMBERED),
    # Without a default the way back is closed.
    "extra": Way([{"op": "remove", "path": "/e", "schema": WHOLE}], _WITHOUT, _never),
    "inside": Way(
        [
            {"op": "hoist", "host": "/o", "name": "i", "to": "/i"},
            {"op": "remove", "path": "/o", "schema": {"type": "object"}, "default": {}},
        ],
        _OUT,
        _IN,
    ),
}
#: No lens gives it up: what is beyond the bound has nowhere to go.
ONE_WAY = frozenset({"wide"})
TRAITS = sorted(TAKEN)


def events(shape: Shape) -> st.SearchStrategy[Event]:
    """Events of a shape, now and then beyond its bound."""
    numbers = st.integers(LEAST, MOST)
    members = {
        "n": numbers if "wide" in shape else st.integers(LEAST, NARROW),
        "b" if "renamed" in shape else "a": numbers,
        "t": st.lists(numbers, min_size=1, max_size=3) if "listed" in shape else numbers,
        "l": st.sampled_from((0, 1)) if "numbered" in shape else st.sampled_from(TEXTS),
    }
    if "extra" in shape:
        members["e"] = numbers
    members |= {"o": st.fixed_dictionaries({"i": numbers})} if "inside" in shape else {"i": numbers}
    return st.fixed_dictionaries(members, optional={"k": st.sampled_from(("x", "y"))})

"""Search documents that follow streams which change: their fields, what these can do, and rollups; from a seed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from support.changing_streams import Path, pointer


def _number(random: Random) -> dict[str, bool]:
    return {"exact": random.random() < 0.7, "column": True, "sortable": True, "aggregatable": True}


def _words(random: Random) -> dict[str, Any]:
    return {"analyzer": "unicode_word_v1", "positions": random.random() < 0.8, "contains": random.random() < 0.7}


def _keyword(random: Random) -> dict[str, Any]:
    flags = {name: random.random() < 0.6 for name in ("prefix", "column", "sortable", "contains", "exists")}
    return flags | ({"normalizer": "lowercase_v1"} if random.random() < 0.5 else {})


_FIELDS: dict[str, tuple[str, str, Callable[[Random], dict[str, Any]]]] = {
    "time": ("date", "time", lambda random: {"column": True, "sortable": True, "exact": random.random() < 0.5}),
    "seen": ("date", "seen", lambda _: {"column": True, "sortable": True, "exact": True, "aggregatable": True}),
    "service": ("keyword", "service", lambda random: {**_keyword(random), "exact": True, "aggregatable": True}),
    "tags": ("keyword", "tags", lambda random: {**_keyword(random), "exact": True, "aggregatable": True}),
    "path": ("keyword", "path", _keyword),
    "request": ("keyword", "request", _keyword),
    "label": ("keyword", "label", lambda random: {**_keyword(random), "exact": True}),
    "labels": ("keyword", "labels", lambda random: {**_keyword(random), "exact": True}),
    "code": ("keyword", "code", lambda random: {**_keyword(random), "exact": True}),
    "number": ("integer", "code", _number),
    "level": ("integer", "level", lambda random: {**_number(random), "exact": True}),
    "status": ("integer", "status", lambda random: {**_number(random), "exact": True}),
    "size": ("integer", "size", _number),
    "duration": ("float", "duration", _number),
    "error": ("bool", "error", lambda _: {"exact": True, "column": True, "sortable": True}),
    "message": ("text", "message", _words),
    "why": ("text", "why", _words),
}


class Searching:
    """A search document that follows a shape from version to version, and changes now and then."""

    def __init__(self, random: Random, places: dict[str, Path]) -> None:
        self.document: dict[str, Any] = {
            "primaryTimestampField": "time",
            "aliases": {"ts": "time", "msg": "message"} if random.random() < 0.5 else {},
            "fields": {
                name: {"kind": kind, "bindings": [_binding(1, places.get(meaning, (meaning,)))], **flags(random)}
                for name, (kind, meaning, flags) in _FIELDS.items()
            },
            "rollups": _rollups(random, places),
        }
        if random.random() < 0.7:
            self.document["defaultFields"] = [{"field": "message", "boost": 2}, {"field": "why"}, {"field": "request"}]

    def follow(self, version: int, places: dict[str, Path]) -> dict[str, Any]:
        """The document of the next version: what has moved is bound to its new place."""
        self.document = copy.deepcopy(self.document)
        for name, (_, meaning, _) in _FIELDS.items():
            bindings = self.document["fields"][name]["bindings"]
            binding = _binding(version, places.get(meaning, (meaning,)))
            if bindings[-1]["jsonPointer"] != binding["jsonPointer"]:
                bindings.append(binding)
        given = self.document["rollups"]["requests"]["measures"]["given"]
        given.update(_pointers(places))
        return self.document

    def change(self, random: Random) -> dict[str, Any]:
        """Another document of the same version: a field that can do more or less, or a rollup that counts others."""
        self.document = copy.deepcopy(self.document)
        name = random.choice(["service", "path", "message", "duration", "status", "tags"])
        kind, _, flags = _FIELDS[name]
        field = self.document["fields"][name]
        self.document["fields"][name] = {"kind": kind, "bindings": field["bindings"], **flags(random)}
        rollups = self.document["rollups"]
        if random.random() < 0.5:
            rollups["seen"]["include"] = _include(random)
        elif "plain" in rollups:
            del rollups["plain"]
        else:
            rollups["plain"] = _PLAIN
        return self.document


_PLAIN = {
    "intervals": ["1h"],
    "measures": {"events": {"kind": "count"}, "size": {"kind": "quantiles", "field": "size"}},
}


def _binding(version: int, path: Path) -> dict[str, Any]:
    return {"version": version, "jsonPointer": pointer(path)}


def _pointers(places: dict[str, Path]) -> dict[str, str]:
    given = pointer(places.get("given", ("given",)))
    return {f"{part}JsonPointer": f"{given}/{part}" for part in ("count", "sum", "min", "max", "histogram")}


def _include(random: Random) -> str:
    return random.choice(
        ["has:status", "-status:>=3", "message:ab OR error:true", "service:ab OR has:labels", "time:>0"]
    )


def _rollups(random: Random, places: dict[str, Path]) -> dict[str, Any]:
    return {
        "requests": {
            "dimensions": ["service", "status"],
            "intervals": ["1m", "1h"],
            "measures": {
                "all": {"kind": "count"},
                "failed": {"kind": "count", "include": "status:>=3 OR message:zz"},
                "duration": {"kind": "summary", "field": "duration", "histogram": "log2_v1"},
                "size": {"kind": "summary", "field": "size"},
                "spread": {"kind": "quantiles", "field": "duration"},
                "services": {"kind": "distinct", "field": "service"},
                "given": {"kind": "summary_parts", **_pointers(places)},
            },
        },
        "seen": {
            "timestampField": "seen",
            "include": _include(random),
            "dimensions": ["error", "level"],
            "intervals": ["90s", "1h"],
            "measures": {
                "events": {"kind": "count"},
                "tags": {"kind": "distinct", "field": "tags"},
                "size": {"kind": "quantiles", "field": "size"},
                "status": {"kind": "summary", "field": "status", "histogram": "log2_v1"},
            },
        },
        **({"plain": _PLAIN} if random.random() < 0.5 else {}),
    }

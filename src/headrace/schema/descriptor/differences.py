"""How one node differs from another of the same name: in the words of the wire, and what of it takes something away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.deadline import check_deadline
from headrace.schema.descriptor import durations
from headrace.schema.descriptor.canonical import alike
from headrace.schema.descriptor.generated import renamed, widens
from headrace.schema.descriptor.nodes import Derivation, Event, Field, Node, Table
from headrace.schema.descriptor.wire import write_feature, write_op


class Loss(NamedTuple):
    """Something that is taken away: of which node, where in it, and what.

    Where it is a field whose values before and after are not of one kind, ``field`` names it.
    """

    node: str
    rest: str
    message: str
    field: str | None = None


class Differences(NamedTuple):
    """What is told of a changed node, empty where nothing changed, and what it takes away."""

    told: dict[str, Any]
    losses: list[Loss]


def differences(old: Node, new: Node) -> Differences:
    """How a node changed."""
    found = _Comparison(new.name)
    if isinstance(old, Event) and isinstance(new, Event):
        found.event(old, new)
    elif isinstance(old, Table) and isinstance(new, Table):
        found.derived(old, new)
        found.table(old, new)
    elif isinstance(old, Derivation) and isinstance(new, Derivation):
        found.derived(old, new)
    else:
        found.told["kind"] = _change(kind_of(old), kind_of(new))
        found.lose(".kind", f"the {kind_of(old)} becomes a {kind_of(new)}")
    return Differences({key: value for key, value in found.told.items() if value}, found.losses)


def kind_of(node: Node) -> str:
    """The kind of a node, as the wire has it."""
    return type(node).__name__.lower()


def _change(before: Any, after: Any) -> dict[str, Any]:
    return {"from": before, "to": after}


class _Comparison:
    def __init__(self, name: str) -> None:
        self.told: dict[str, Any] = {}
        self.losses: list[Loss] = []
        self._name = name

    def lose(self, rest: str, message: str, field: str | None = None) -> None:
        """Note what is taken away."""
        self.losses.append(Loss(self._name, rest, message, field))

    def event(self, old: Event, new: Event) -> None:
        """How a source changed."""
        others = renamed(old.schema, new.schema)
        fresh = [name for name in sorted(new.schema) if name not in old.schema and name not in others.values()]
        gone = [name for name in sorted(old.schema) if name not in new.schema and name not in others]
        self.told["added_fields"] = [_added(name, new.schema[name]) for name in fresh]
        self.told["removed_fields"] = gone
        self.told["changed_fields"] = self._changed_fields(old.schema, new.schema)
        self.told["renamed_fields"] = [_change(before, after) for before, after in sorted(others.items())]
        for name in fresh:
            if new.schema[name].required and new.schema[name].default is None:
                self.lose(f".schema.{name}", f"{name!r} is required and has no default: events without it are refused")
        for name in gone:
            self.lose(f".schema.{name}", f"{name!r} is removed", name)
        for before, after in sorted(others.items()):
            self.lose(f".schema.{after}", f"{before!r} becomes {after!r}", before)
        self._settings(old, new)

    def _changed_fields(self, old: Mapping[str, Field], new: Mapping[str, Field]) -> list[dict[str, Any]]:
        told = []
        for name in sorted(name for name in old if name in new):
            check_deadline()
            before, after = old[name], new[name]
            if alike(before, after):
                continue
            plain = (before.required, before.default) == (after.required, after.default)
            told.append({"name": name, **_change(*((f.type if plain else _full(f)) for f in (before, after)))})
            self._weigh(name, before, after)
        return told

    def _weigh(self, name: str, before: Field, after: Field) -> None:
        where = f".schema.{name}"
        if not widens(before.type, after.type):
            self.lose(where, f"{name!r} becomes {after.type}, and was {before.type}", name)
        if after.required and not before.required:
            self.lose(where, f"{name!r} becomes required: events without it are refused")
        elif after.required and after.default is None and before.default is not None:
            self.lose(where, f"{name!r} loses its default: events without it are refused")

    def _settings(self, old: Event, new: Event) -> None:
        self._kept(old.keep_events_for_ms, new.keep_events_for_ms)
        cold, colder = old.cold_after_ms, new.cold_after_ms
        if cold != colder:
            before, after = (None if it is None else durations.text(it) for it in (cold, colder))
            self.told["cold_after"] = _change(before, after)
            if cold is not None and colder is not None and colder < cold:
                self.lose(".cold_after", f"entities start afresh after {after}, and not after {before}")
        if old.dedupe_key != new.dedupe_key:
            self.told["dedupe_key"] = _change(old.dedupe_key, new.dedupe_key)
            if old.dedupe_key is not None:
                told = f"the dedupe_key becomes {new.dedupe_key!r}" if new.dedupe_key else "there is no dedupe_key"
                self.lose(".dedupe_key", f"{told}: what was pushed before may be stored again")
        elif old.dedupe_window_ms != new.dedupe_window_ms:
            windows = (durations.text(old.dedupe_window_ms), durations.text(new.dedupe_window_ms))
            self.told["dedupe_window"] = _change(*windows)
            told = f"keys are remembered for {windows[1]}, and not for {windows[0]}"
            self.lose(".dedupe_window", f"{told}: what was pushed before may be stored again")

    def _kept(self, before: int | None, after: int | None) -> None:
        if before != after:
            told = _change(durations.text(before), durations.text(after))
            self.told["keep_events_for"] = told
            if after is not None and (before is None or after < before):
                self.lose(".keep_events_for", f"events are kept for {told['to']}, and not for {told['from']}")

    def derived(self, old: Derivation | Table, new: Derivation | Table) -> None:
        """How the rows of a node changed."""
        if old.upstream != new.upstream:
            self.told["upstream"] = _change(old.upstream, new.upstream)
            self.lose(".upstreams", f"rows come from {new.upstream!r}, and came from {old.upstream!r}")
        if not alike(old.ops, new.ops):
            self.told["ops"] = _change(*([write_op(op) for op in node.ops] for node in (old, new)))
            self.lose(".ops", "the steps are not what they were")

    def table(self, old: Table, new: Table) -> None:
        """How a table changed."""
        if old.key != new.key:
            self.told["key"] = _change(list(old.key), list(new.key))
            self.lose(".key", f"the key becomes {', '.join(new.key) or 'none'}, and was {', '.join(old.key) or 'none'}")
        gone = sorted(name for name in old.features if name not in new.features)
        self.told["added_features"] = sorted(name for name in new.features if name not in old.features)
        self.told["removed_features"] = gone
        changes = []
        for name in gone:
            self.lose(f".agg.{name}", f"{name!r} is removed")
        for name in sorted(name for name in old.features if name in new.features):
            before, after = old.features[name], new.features[name]
            if not alike(before, after):
                changes.append({"name": name, **_change(write_feature(before), write_feature(after))})
                self.lose(f".agg.{name}", f"{name!r} is defined otherwise, and begins afresh")
        self.told["changed_features"] = changes


def _added(name: str, field: Field) -> dict[str, Any]:
    """A new field; that it has no default is said where one would have made a difference."""
    return {"name": name, **_full(field), **({"default": field.default} if field.required else {})}


def _full(field: Field) -> dict[str, Any]:
    """All that is said of a field."""
    found: dict[str, Any] = {"type": field.type, "required": field.required}
    return found if field.default is None else {**found, "default": field.default}

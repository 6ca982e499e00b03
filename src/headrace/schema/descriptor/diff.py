"""How one set of nodes differs from another: what is told, what of it takes something away, and what features keep.

=====================================================  ===========  ==========================================
change                                                 class        state of features
=====================================================  ===========  ==========================================
node added                                             additive     born with the first event that is kept
node removed                                           destructive  dropped
from headrace.deadline import check_deadline
field added, optional or with default                  additive     kept
field added, required and without default              destructive  kept
field removed, renamed, or of a type it did not fit    destructive  of those that depend on it: zeroed
from headrace.deadline import check_deadline
from headrace.deadline import check_deadline
field widened from i64 to f64                          additive     kept
field no longer required, default changed              additive     kept
field now required, or without its default             destructive  kept
keep_events_for longer / shorter                       add. / des.  kept
cold_after set, longer or gone / shorter               add. / des.  kept
dedupe_key set where none was                          additive     kept
dedupe_key or dedupe_window changed                    destructive  kept
steps or upstream changed                              destructive  zeroed
key of a table changed                                 destructive  zeroed
feature added                                          additive     born with the first event that is kept
feature removed                                        destructive  dropped
feature changed                                        destructive  zeroed
kind of a node changed                                 destructive  dropped, or born
=====================================================  ===========  ==========================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from headrace.deadline import check_deadline
from headrace.schema.canonical import plain
from headrace.schema.descriptor import values
from headrace.schema.descriptor.generated import find_renamed_fields, widens
from headrace.schema.descriptor.nodes import Derivation, Event, EventField, Feature, Node, RowOp, Table
from headrace.schema.descriptor.operators import OPERATORS
from headrace.schema.descriptor.order import downstream
from headrace.schema.descriptor.validate import resolve_chain
from headrace.schema.descriptor.wire import write_feature, write_op
from headrace.schema.expression import parse
from headrace.schema.expression.tree import Expr, FieldReference, fold


def fingerprint(nodes: Mapping[str, Node]) -> str:
    """A hash of nodes that neither their order, nor the order of keys, nor a way to spell anything changes."""
    return sha256(canonical(dict(nodes))).hexdigest()


def canonical(value: Any) -> bytes:
    """The one spelling of a node or a part of one: keys in order, whole numbers without fraction."""
    return msgspec.json.encode(plain(msgspec.to_builtins(value)), order="sorted")


def same_definition(one: Any, other: Any) -> bool:
    """Whether two nodes, or parts, say the same; true is not 1."""
    check_deadline()
    return canonical(one) == canonical(other)


class Trace(NamedTuple):
    """How a value comes about, as a hash, and the fields of the source that it comes from."""

    mark: str
    fields: frozenset[str]


def traces(nodes: Mapping[str, Node], table: Table) -> dict[str, Trace]:
    """The trace of every feature of a table; the nodes are valid."""
    root, ops, _ = resolve_chain(nodes, table.name)
    columns = {name: Trace(_mark("field", root.name, name), frozenset([name])) for name in root.schema}
    filters: list[Trace] = []
    for op in ops:
        columns = _after(op, columns, filters)
    shared = [*filters, *(columns[name] for name in table.key)]
    frame = _mark("rows", root.name, len(table.key), *(trace.mark for trace in shared))
    fields = _fields(shared)
    return {name: _feature(feature, columns, frame, fields) for name, feature in table.features.items()}


def _feature(feature: Feature, columns: Mapping[str, Trace], frame: str, shared: frozenset[str]) -> Trace:
    told: dict[str, Any] = {}
    used: list[Trace] = []
    for name, parameter in OPERATORS[feature.op].params.items():
        value = feature.params.get(name)
        if value is not None and parameter.kind in ("field", "where"):
            trace = columns[value] if parameter.kind == "field" else _computed(parse(value), columns)
            used.append(trace)
            value = trace.mark
        told[name] = value
    return Trace(_mark("feature", frame, feature.op, told), shared | _fields(used))


def _after(op: RowOp, columns: dict[str, Trace], filters: list[Trace]) -> dict[str, Trace]:
    """The columns after a step; a filter is noted."""
    match op.op:
        case "filter":
            filters.append(_computed(parse(op.expr or ""), columns))
        case "select":
            return {name: columns[name] for name in op.fields}
        case "drop":
            return {name: trace for name, trace in columns.items() if name not in op.fields}
        case "rename":
            return {op.mapping.get(name, name): trace for name, trace in columns.items()}
        case "with_columns":
            made = dict(columns)
            for name in sorted(op.exprs):
                made[name] = _computed(parse(op.exprs[name]), made)
            return made
        case "cast":
            return columns | {name: _step("cast", to, columns[name]) for name, to in op.type_map.items()}
        case "fillna":
            return columns | {name: _step("fillna", value, columns[name]) for name, value in op.defaults.items()}
    return columns


def _computed(expr: Expr, columns: Mapping[str, Trace]) -> Trace:
    def trace(here: Expr, inner: tuple[Trace, ...]) -> Trace:
        if isinstance(here, FieldReference):
            return columns[here.name]
        said = [type(here).__name__, *(getattr(here, name, None) for name in ("sign", "target"))]
        constant = [type(here.value).__name__, here.value] if hasattr(here, "value") else []
        return Trace(_mark("expression", said, constant, *(part.mark for part in inner)), _fields(inner))

    return fold(expr, trace)


def _step(name: str, told: Any, column: Trace) -> Trace:
    return Trace(_mark(name, told, column.mark), column.fields)


def _fields(parts: list[Trace] | tuple[Trace, ...]) -> frozenset[str]:
    return frozenset(name for trace in parts for name in trace.fields)


def _mark(*said: Any) -> str:
    check_deadline()
    return sha256(canonical(list(said))).hexdigest()


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
        others = find_renamed_fields(old.schema, new.schema)
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

    def _changed_fields(self, old: Mapping[str, EventField], new: Mapping[str, EventField]) -> list[dict[str, Any]]:
        told = []
        for name in sorted(name for name in old if name in new):
            check_deadline()
            before, after = old[name], new[name]
            if same_definition(before, after):
                continue
            plain = (before.required, before.default) == (after.required, after.default)
            told.append({"name": name, **_change(*((f.type if plain else _full(f)) for f in (before, after)))})
            self._weigh(name, before, after)
        return told

    def _weigh(self, name: str, before: EventField, after: EventField) -> None:
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
            before, after = (None if it is None else values.format_duration_ms(it) for it in (cold, colder))
            self.told["cold_after"] = _change(before, after)
            if cold is not None and colder is not None and colder < cold:
                self.lose(".cold_after", f"entities start afresh after {after}, and not after {before}")
        if old.dedupe_key != new.dedupe_key:
            self.told["dedupe_key"] = _change(old.dedupe_key, new.dedupe_key)
            if old.dedupe_key is not None:
                told = f"the dedupe_key becomes {new.dedupe_key!r}" if new.dedupe_key else "there is no dedupe_key"
                self.lose(".dedupe_key", f"{told}: what was pushed before may be stored again")
        elif old.dedupe_window_ms != new.dedupe_window_ms:
            windows = (values.format_duration_ms(old.dedupe_window_ms), values.format_duration_ms(new.dedupe_window_ms))
            self.told["dedupe_window"] = _change(*windows)
            told = f"keys are remembered for {windows[1]}, and not for {windows[0]}"
            self.lose(".dedupe_window", f"{told}: what was pushed before may be stored again")

    def _kept(self, before: int | None, after: int | None) -> None:
        if before != after:
            told = _change(values.format_duration_ms(before), values.format_duration_ms(after))
            self.told["keep_events_for"] = told
            if after is not None and (before is None or after < before):
                self.lose(".keep_events_for", f"events are kept for {told['to']}, and not for {told['from']}")

    def derived(self, old: Derivation | Table, new: Derivation | Table) -> None:
        """How the rows of a node changed."""
        if old.upstream != new.upstream:
            self.told["upstream"] = _change(old.upstream, new.upstream)
            self.lose(".upstreams", f"rows come from {new.upstream!r}, and came from {old.upstream!r}")
        if not same_definition(old.ops, new.ops):
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
            if not same_definition(before, after):
                changes.append({"name": name, **_change(write_feature(before), write_feature(after))})
                self.lose(f".agg.{name}", f"{name!r} is defined otherwise, and begins afresh")
        self.told["changed_features"] = changes


def _added(name: str, field: EventField) -> dict[str, Any]:
    """A new field; that it has no default is said where one would have made a difference."""
    return {"name": name, **_full(field), **({"default": field.default} if field.required else {})}


def _full(field: EventField) -> dict[str, Any]:
    """All that is said of a field."""
    found: dict[str, Any] = {"type": field.type, "required": field.required}
    return found if field.default is None else {**found, "default": field.default}


Fate: TypeAlias = Literal["kept", "additive", "zeroed"]


class Diff(NamedTuple):
    """What changes, in the words of the wire, and what becomes of features.

    ``losses`` says what is taken away, and where; without any the change needs no force. ``cascaded`` are the removed
    nodes that do not belong to whoever registers.
    """

    added: list[str]
    removed: list[str]
    changed: list[dict[str, Any]]
    lives: dict[str, dict[str, Fate]]
    dropped: dict[str, list[str]]
    cascaded: list[str]
    losses: list[Loss]

    @property
    def destructive(self) -> bool:
        """Whether something is taken away."""
        return bool(self.losses)


def diff(old: Mapping[str, Node], new: Mapping[str, Node], owned: Collection[str] | None = None) -> Diff:
    """How valid nodes differ from valid nodes; ``owned`` are the old ones of whoever registers, None is all."""
    removed = sorted(name for name in old if name not in new)
    losses = [Loss(name, "", f"{old[name].name!r} is removed") for name in removed]
    lives = _lives(old, new)
    changed = []
    for name in sorted(name for name in new if name in old):
        check_deadline()
        found = differences(old[name], new[name])
        losses += found.losses
        item = {**found.told, **_zeroed(found, lives.get(name, {}))}
        if item:
            changed.append({"name": name, **item})
    return Diff(
        added=sorted(name for name in new if name not in old),
        removed=removed,
        changed=changed,
        lives=lives,
        dropped=_dropped(old, new),
        cascaded=[] if owned is None else [name for name in removed if name not in owned],
        losses=losses,
    )


def _zeroed(found: Differences, fates: Mapping[str, Fate]) -> dict[str, list[str]]:
    """Features that begin afresh though they are defined as before: what they depend on changed."""
    told = {change["name"] for change in found.told.get("changed_features", ())}
    names = sorted(name for name, fate in fates.items() if fate == "zeroed" and name not in told)
    return {"zeroed_features": names} if names else {}


def _dropped(old: Mapping[str, Node], new: Mapping[str, Node]) -> dict[str, list[str]]:
    found = {}
    for name, node in old.items():
        after = new.get(name)
        left = after.features if isinstance(after, Table) else {}
        if isinstance(node, Table) and (gone := [feature for feature in node.features if feature not in left]):
            found[name] = sorted(gone)
    return found


def _lives(old: Mapping[str, Node], new: Mapping[str, Node]) -> dict[str, dict[str, Fate]]:
    """What becomes of every feature of every table."""
    touched = {name for name, node in new.items() if name not in old or not same_definition(old[name], node)}
    touched.update(downstream(new, touched))
    found: dict[str, dict[str, Fate]] = {}
    for name, node in new.items():
        check_deadline()
        if isinstance(node, Table) and name not in touched:
            found[name] = dict.fromkeys(node.features, "kept")
        elif isinstance(node, Table):
            before = old.get(name)
            found[name] = _fates(old, new, before if isinstance(before, Table) else None, node)
    return found


def _fates(old: Mapping[str, Node], new: Mapping[str, Node], before: Table | None, table: Table) -> dict[str, Fate]:
    if before is None:
        return dict.fromkeys(table.features, "additive")
    was, now = traces(old, before), traces(new, table)
    source, newer = resolve_chain(old, before.name), resolve_chain(new, table.name)
    broken, rewired = _broken(source.root, newer.root), not same_definition(source.ops, newer.ops)
    found: dict[str, Fate] = {}
    for name in table.features:
        check_deadline()
        if name not in was:
            found[name] = "additive"
        elif (
            rewired
            or not _told_alike(before, table, name)
            or was[name].mark != now[name].mark
            or was[name].fields & broken
        ):
            found[name] = "zeroed"
        else:
            found[name] = "kept"
    return found


def _told_alike(before: Table, table: Table, name: str) -> bool:
    """Whether a feature is told as it was: one that is told otherwise begins afresh even if it means the same."""
    return same_definition(before.features[name], table.features[name]) and before.key == table.key


def _broken(old: Event, new: Event) -> frozenset[str]:
    """The fields of a source whose values before and after a change are not of one kind."""
    found = (loss.field for loss in differences(old, new).losses)
    return frozenset(name for name in found if name is not None)

"""How one set of nodes differs from another: the changes, which are destructive, and which features keep their state.

=====================================================  ===========  ==========================================
change                                                 class        state of features
=====================================================  ===========  ==========================================
node added                                             additive     starts at the first event that is kept
node removed                                           destructive  dropped
field added, optional or with default                  additive     kept
field added, required and without default              destructive  kept
field removed, renamed, or of a type it did not fit    destructive  of those that depend on it: zeroed
field widened from i64 to f64                          additive     kept
field no longer required, default changed              additive     kept
field now required, or without its default             destructive  kept
keep_events_for longer / shorter                       add. / des.  kept
cold_after set, longer or gone / shorter               add. / des.  kept
dedupe_key set where none was                          additive     kept
dedupe_key or dedupe_window changed                    destructive  kept
timestamp_field, timestamp_unit or late_after changed  destructive  zeroed
stream of a source, or pointer of a field, changed     destructive  zeroed
steps or upstream changed                              destructive  zeroed
key of a table changed                                 destructive  zeroed
feature added                                          additive     starts at the first event that is kept
feature removed                                        destructive  dropped
feature changed                                        destructive  zeroed
kind of a node changed                                 destructive  dropped, or started anew
=====================================================  ===========  ==========================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from headrace.deadline import check_deadline
from headrace.operators.catalogue import DECLARATIONS
from headrace.schema.canonical import plain
from headrace.schema.descriptor.generated import find_renamed_fields, widens, write_feature, write_op
from headrace.schema.descriptor.nodes import (
    Derivation,
    Event,
    EventField,
    Feature,
    Node,
    RowOp,
    Table,
    format_duration_ms,
)
from headrace.schema.descriptor.validate import downstream, resolve_chain
from headrace.schema.expression import parse
from headrace.schema.expression.tree import Expr, FieldReference, fold


def fingerprint(nodes: Mapping[str, Node]) -> str:
    """A hash of nodes that does not depend on their order, the order of keys, or spelling."""
    return sha256(canonical(dict(nodes))).hexdigest()


def canonical(value: Any) -> bytes:
    """The canonical JSON of a node or a part of one: keys in order, whole numbers without fraction."""
    return msgspec.json.encode(plain(msgspec.to_builtins(value)), order="sorted")


def same_definition(left: Any, right: Any) -> bool:
    """Whether two nodes, or parts of nodes, have equal canonical JSON; true does not equal 1."""
    check_deadline()
    return canonical(left) == canonical(right)


class Trace(NamedTuple):
    """A hash of how a value is computed, and the fields of the source that it depends on."""

    mark: str
    fields: frozenset[str]


def traces(nodes: Mapping[str, Node], table: Table) -> dict[str, Trace]:
    """The trace of every feature of a table; the nodes must be valid."""
    root, ops, _ = resolve_chain(nodes, table.name)
    columns = {name: _field_trace(root, name) for name in root.schema}
    time = () if root.timestamp_field is None else (_time_trace(root, columns[root.timestamp_field]),)
    filters: list[Trace] = []
    for op in ops:
        columns = _columns_after(op, columns, filters)
    shared = [*filters, *time, *(columns[name] for name in table.key)]
    frame = _digest("rows", root.name, len(table.key), *(trace.mark for trace in shared))
    fields = _source_fields(shared)
    return {name: _feature_trace(feature, columns, frame, fields) for name, feature in table.features.items()}


def _field_trace(source: Event, name: str) -> Trace:
    origin = [] if source.stream is None else [source.stream, source.schema[name].pointer]
    return Trace(_digest("field", source.name, name, *origin), frozenset([name]))


def _time_trace(source: Event, column: Trace) -> Trace:
    """The trace of the event time, and of which events are late."""
    return _step_trace("time", [source.timestamp_unit, source.late_after_ms], column)


def _feature_trace(feature: Feature, columns: Mapping[str, Trace], frame: str, shared: frozenset[str]) -> Trace:
    params: dict[str, Any] = {}
    used: list[Trace] = []
    for name, parameter in DECLARATIONS[feature.op].params.items():
        value = feature.params.get(name)
        if value is not None and parameter.kind in ("field", "where"):
            trace = columns[value] if parameter.kind == "field" else _expression_trace(parse(value), columns)
            used.append(trace)
            value = trace.mark
        params[name] = value
    return Trace(_digest("feature", frame, feature.op, params), shared | _source_fields(used))


def _columns_after(op: RowOp, columns: dict[str, Trace], filters: list[Trace]) -> dict[str, Trace]:
    """The columns after a step; filters are added to the trace."""
    match op.op:
        case "filter":
            filters.append(_expression_trace(parse(op.expr or ""), columns))
        case "select":
            return {name: columns[name] for name in op.fields}
        case "drop":
            return {name: trace for name, trace in columns.items() if name not in op.fields}
        case "rename":
            return {op.mapping.get(name, name): trace for name, trace in columns.items()}
        case "with_columns":
            made = dict(columns)
            for name in sorted(op.exprs):
                made[name] = _expression_trace(parse(op.exprs[name]), made)
            return made
        case "cast":
            return columns | {name: _step_trace("cast", to, columns[name]) for name, to in op.type_map.items()}
        case "fillna":
            return columns | {name: _step_trace("fillna", value, columns[name]) for name, value in op.defaults.items()}
    return columns


def _expression_trace(expr: Expr, columns: Mapping[str, Trace]) -> Trace:
    def trace(here: Expr, inner: tuple[Trace, ...]) -> Trace:
        if isinstance(here, FieldReference):
            return columns[here.name]
        description = [type(here).__name__, *(getattr(here, name, None) for name in ("sign", "target"))]
        constant = [type(here.value).__name__, here.value] if hasattr(here, "value") else []
        return Trace(
            _digest("expression", description, constant, *(part.mark for part in inner)), _source_fields(inner)
        )

    return fold(expr, trace)


def _step_trace(name: str, argument: Any, column: Trace) -> Trace:
    return Trace(_digest(name, argument, column.mark), column.fields)


def _source_fields(parts: list[Trace] | tuple[Trace, ...]) -> frozenset[str]:
    return frozenset(name for trace in parts for name in trace.fields)


def _digest(*parts: Any) -> str:
    check_deadline()
    return sha256(canonical(list(parts))).hexdigest()


class Loss(NamedTuple):
    """A destructive change: the node, the path inside it, and a description of what is lost.

    Where it is a field whose values before and after are not of one kind, ``field`` names it.
    """

    node: str
    rest: str
    message: str
    field: str | None = None


class Differences(NamedTuple):
    """The changes of a node as sent to clients, empty where nothing changed, and its losses."""

    changes: dict[str, Any]
    losses: list[Loss]


def differences(old: Node, new: Node) -> Differences:
    """Return the differences between two versions of a node."""
    comparison = _Comparison(new.name)
    if isinstance(old, Event) and isinstance(new, Event):
        comparison.event(old, new)
    elif isinstance(old, Table) and isinstance(new, Table):
        comparison.derived(old, new)
        comparison.table(old, new)
    elif isinstance(old, Derivation) and isinstance(new, Derivation):
        comparison.derived(old, new)
    else:
        comparison.changes["kind"] = _from_to(kind_of(old), kind_of(new))
        comparison.lose(".kind", f"the {kind_of(old)} becomes a {kind_of(new)}")
    return Differences({key: value for key, value in comparison.changes.items() if value}, comparison.losses)


def kind_of(node: Node) -> str:
    """The kind of a node, as it is named in requests and answers."""
    return type(node).__name__.lower()


def _from_to(before: Any, after: Any) -> dict[str, Any]:
    return {"from": before, "to": after}


class _Comparison:
    def __init__(self, name: str) -> None:
        self.changes: dict[str, Any] = {}
        self.losses: list[Loss] = []
        self._name = name

    def lose(self, rest: str, message: str, field: str | None = None) -> None:
        """Record a loss."""
        self.losses.append(Loss(self._name, rest, message, field))

    def event(self, old: Event, new: Event) -> None:
        """Compare two versions of an event source."""
        others = find_renamed_fields(old.schema, new.schema)
        fresh = [name for name in sorted(new.schema) if name not in old.schema and name not in others.values()]
        gone = [name for name in sorted(old.schema) if name not in new.schema and name not in others]
        self.changes["added_fields"] = [_dump_added_field(name, new.schema[name]) for name in fresh]
        self.changes["removed_fields"] = gone
        self.changes["changed_fields"] = self._changed_fields(old.schema, new.schema)
        self.changes["renamed_fields"] = [_from_to(before, after) for before, after in sorted(others.items())]
        for name in fresh:
            if new.schema[name].required and new.schema[name].default is None:
                self.lose(f".schema.{name}", f"{name!r} is required and has no default: events without it are refused")
        for name in gone:
            self.lose(f".schema.{name}", f"{name!r} is removed", name)
        for before, after in sorted(others.items()):
            self.lose(f".schema.{after}", f"{before!r} becomes {after!r}", before)
        self._settings(old, new)

    def _changed_fields(self, old: Mapping[str, EventField], new: Mapping[str, EventField]) -> list[dict[str, Any]]:
        changes = []
        for name in sorted(name for name in old if name in new):
            check_deadline()
            before, after = old[name], new[name]
            if same_definition(before, after):
                continue
            plain = all(getattr(before, part) == getattr(after, part) for part in ("required", "default", "pointer"))
            changes.append(
                {"name": name, **_from_to(*((f.type if plain else _dump_field(f)) for f in (before, after)))}
            )
            self._note_field_losses(name, before, after)
        return changes

    def _note_field_losses(self, name: str, before: EventField, after: EventField) -> None:
        where = f".schema.{name}"
        if not widens(before.type, after.type):
            self.lose(where, f"{name!r} becomes {after.type}, and was {before.type}", name)
        if after.required and not before.required:
            self.lose(where, f"{name!r} becomes required: events without it are refused")
        elif after.required and after.default is None and before.default is not None:
            self.lose(where, f"{name!r} loses its default: events without it are refused")
        if before.pointer != after.pointer:
            self.lose(where, f"{name!r} is taken from elsewhere in the events of the stream", name)

    def _settings(self, old: Event, new: Event) -> None:
        self._retention(old.keep_events_for_ms, new.keep_events_for_ms)
        cold, colder = old.cold_after_ms, new.cold_after_ms
        if cold != colder:
            before, after = (None if it is None else format_duration_ms(it) for it in (cold, colder))
            self.changes["cold_after"] = _from_to(before, after)
            if cold is not None and colder is not None and colder < cold:
                self.lose(".cold_after", f"entities start afresh after {after}, and not after {before}")
        if old.dedupe_key != new.dedupe_key:
            self.changes["dedupe_key"] = _from_to(old.dedupe_key, new.dedupe_key)
            if old.dedupe_key is not None:
                message = f"the dedupe_key becomes {new.dedupe_key!r}" if new.dedupe_key else "there is no dedupe_key"
                self.lose(".dedupe_key", f"{message}: what was pushed before may be stored again")
        elif old.dedupe_window_ms != new.dedupe_window_ms:
            windows = (format_duration_ms(old.dedupe_window_ms), format_duration_ms(new.dedupe_window_ms))
            self.changes["dedupe_window"] = _from_to(*windows)
            message = f"keys are remembered for {windows[1]}, and not for {windows[0]}"
            self.lose(".dedupe_window", f"{message}: what was pushed before may be stored again")

        for member in ("timestamp_field", "timestamp_unit", "stream"):
            self._replace(member, getattr(old, member), getattr(new, member))
        late = (None if it is None else format_duration_ms(it) for it in (old.late_after_ms, new.late_after_ms))
        self._replace("late_after", *late)

    def _replace(self, member: str, before: str | None, after: str | None) -> None:
        """Compare a setting whose every change makes the features of the source begin afresh."""
        if before != after:
            self.changes[member] = _from_to(before, after)
            self.lose(
                f".{member}", f"{member} becomes {after or 'none'}, and was {before or 'none'}: features begin afresh"
            )

    def _retention(self, before: int | None, after: int | None) -> None:
        if before != after:
            change = _from_to(format_duration_ms(before), format_duration_ms(after))
            self.changes["keep_events_for"] = change
            if after is not None and (before is None or after < before):
                self.lose(".keep_events_for", f"events are kept for {change['to']}, and not for {change['from']}")

    def derived(self, old: Derivation | Table, new: Derivation | Table) -> None:
        """Compare the upstream and the steps of a node."""
        if old.upstream != new.upstream:
            self.changes["upstream"] = _from_to(old.upstream, new.upstream)
            self.lose(".upstreams", f"rows come from {new.upstream!r}, and came from {old.upstream!r}")
        if not same_definition(old.ops, new.ops):
            self.changes["ops"] = _from_to(*([write_op(op) for op in node.ops] for node in (old, new)))
            self.lose(".ops", "the steps are not what they were")

    def table(self, old: Table, new: Table) -> None:
        """Compare the key and the features of a table."""
        if old.key != new.key:
            self.changes["key"] = _from_to(list(old.key), list(new.key))
            self.lose(".key", f"the key becomes {', '.join(new.key) or 'none'}, and was {', '.join(old.key) or 'none'}")
        gone = sorted(name for name in old.features if name not in new.features)
        self.changes["added_features"] = sorted(name for name in new.features if name not in old.features)
        self.changes["removed_features"] = gone
        changes = []
        for name in gone:
            self.lose(f".agg.{name}", f"{name!r} is removed")
        for name in sorted(name for name in old.features if name in new.features):
            before, after = old.features[name], new.features[name]
            if not same_definition(before, after):
                changes.append({"name": name, **_from_to(write_feature(before), write_feature(after))})
                self.lose(f".agg.{name}", f"{name!r} is defined otherwise, and begins afresh")
        self.changes["changed_features"] = changes


def _dump_added_field(name: str, field: EventField) -> dict[str, Any]:
    """A new field; a required one always shows its default, even null."""
    return {"name": name, **_dump_field(field), **({"default": field.default} if field.required else {})}


def _dump_field(field: EventField) -> dict[str, Any]:
    """A field as sent to clients."""
    document: dict[str, Any] = {"type": field.type, "required": field.required}
    for name in ("default", "pointer"):
        if (value := getattr(field, name)) is not None:
            document[name] = value
    return document


StateEffect: TypeAlias = Literal["kept", "additive", "zeroed"]


class Diff(NamedTuple):
    """The changes as sent to clients, and the effect on the state of each feature.

    ``losses`` are the destructive changes; without any the change needs no force. ``cascaded`` are the removed
    nodes of other apps.
    """

    added: list[str]
    removed: list[str]
    changed: list[dict[str, Any]]
    state_effects: dict[str, dict[str, StateEffect]]
    dropped: dict[str, list[str]]
    cascaded: list[str]
    losses: list[Loss]

    @property
    def destructive(self) -> bool:
        """Whether there are losses."""
        return bool(self.losses)


def diff(old: Mapping[str, Node], new: Mapping[str, Node], owned: Collection[str] | None = None) -> Diff:
    """Compare two sets of valid nodes; ``owned`` are the old nodes of the registering app, None means all of them."""
    removed = sorted(name for name in old if name not in new)
    losses = [Loss(name, "", f"{old[name].name!r} is removed") for name in removed]
    state_effects = _feature_state_effects(old, new)
    changed = []
    for name in sorted(name for name in new if name in old):
        check_deadline()
        node_differences = differences(old[name], new[name])
        losses += node_differences.losses
        item = {**node_differences.changes, **_zeroed_features(node_differences, state_effects.get(name, {}))}
        if item:
            changed.append({"name": name, **item})
    return Diff(
        added=sorted(name for name in new if name not in old),
        removed=removed,
        changed=changed,
        state_effects=state_effects,
        dropped=_dropped_features(old, new),
        cascaded=[] if owned is None else [name for name in removed if name not in owned],
        losses=losses,
    )


def _zeroed_features(node_differences: Differences, state_effects: Mapping[str, StateEffect]) -> dict[str, list[str]]:
    """Features that lose their state because something they depend on changed, not their own definition."""
    changed_features = {change["name"] for change in node_differences.changes.get("changed_features", ())}
    names = sorted(
        name for name, effect in state_effects.items() if effect == "zeroed" and name not in changed_features
    )
    return {"zeroed_features": names} if names else {}


def _dropped_features(old: Mapping[str, Node], new: Mapping[str, Node]) -> dict[str, list[str]]:
    dropped = {}
    for name, node in old.items():
        after = new.get(name)
        left = after.features if isinstance(after, Table) else {}
        if isinstance(node, Table) and (gone := [feature for feature in node.features if feature not in left]):
            dropped[name] = sorted(gone)
    return dropped


def _feature_state_effects(old: Mapping[str, Node], new: Mapping[str, Node]) -> dict[str, dict[str, StateEffect]]:
    """The effect of the change on the state of every feature, by table."""
    touched = {name for name, node in new.items() if name not in old or not same_definition(old[name], node)}
    touched.update(downstream(new, touched))
    state_effects: dict[str, dict[str, StateEffect]] = {}
    for name, node in new.items():
        check_deadline()
        if isinstance(node, Table) and name not in touched:
            state_effects[name] = dict.fromkeys(node.features, "kept")
        elif isinstance(node, Table):
            before = old.get(name)
            state_effects[name] = _table_state_effects(old, new, before if isinstance(before, Table) else None, node)
    return state_effects


def _table_state_effects(
    old: Mapping[str, Node], new: Mapping[str, Node], before: Table | None, table: Table
) -> dict[str, StateEffect]:
    if before is None:
        return dict.fromkeys(table.features, "additive")
    was, now = traces(old, before), traces(new, table)
    source, newer = resolve_chain(old, before.name), resolve_chain(new, table.name)
    broken, rewired = _incompatible_fields(source.root, newer.root), not same_definition(source.ops, newer.ops)
    state_effects: dict[str, StateEffect] = {}
    for name in table.features:
        check_deadline()
        if name not in was:
            state_effects[name] = "additive"
        elif (
            rewired
            or not _same_feature(before, table, name)
            or was[name].mark != now[name].mark
            or was[name].fields & broken
        ):
            state_effects[name] = "zeroed"
        else:
            state_effects[name] = "kept"
    return state_effects


def _same_feature(before: Table, table: Table, name: str) -> bool:
    """Whether the definition of a feature is unchanged; a rewritten one loses its state even if it is equivalent."""
    return same_definition(before.features[name], table.features[name]) and before.key == table.key


def _incompatible_fields(old: Event, new: Event) -> frozenset[str]:
    """The fields of a source whose old values do not fit their new type."""
    fields = (loss.field for loss in differences(old, new).losses)
    return frozenset(name for name in fields if name is not None)

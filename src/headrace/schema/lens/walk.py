"""A lens run on shapes instead of documents: each op takes the shape of events before it to that of events after it.

An op must be proven to succeed on every value of the shape before it. Where it may fail, the problem is noted and the
walk continues with the values on which it succeeds, so that all problems are found at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from headrace.deadline import check_deadline
from headrace.schema import pointer
from headrace.schema.containment import find_gaps
from headrace.schema.containment.check import Oracle, describe_alternative, format_json
from headrace.schema.lens import ops
from headrace.schema.lens.conversions import convert_shape
from headrace.schema.lens.ops import Op
from headrace.schema.pointer import Pointer
from headrace.schema.shape.algebra import child, element, empty, member, merge, union, vacant
from headrace.schema.shape.edit import drop, edit, put, split, value_at
from headrace.schema.shape.model import NOTHING, Alternative, Array, Object, Shape, replace_values, shape_of_values
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root

Change = Callable[[Shape], Shape]

_NEW_OBJECT = Shape((Object(rest=NOTHING),))


class Unproven(NamedTuple):
    """Something that could not be proven: the op, the pointer, the rule, and why."""

    op: str
    pointer: str
    rule: str
    reason: str

    @property
    def message(self) -> str:
        """The reason, as a sentence that names what it is about."""
        return self.reason if self.reason.endswith(".") else f"{self.pointer or 'the event'}: {self.reason}"


class OpLocation(NamedTuple):
    """The location of an op: the numbers of nested ops, and the pointer that its pointers are relative to."""

    numbers: tuple[int, ...] = ()
    base: Pointer = ()
    before: Shape = NOTHING
    """The shape before the op, all alternatives together."""

    def at(self, number: int, before: Shape = NOTHING) -> OpLocation:
        """At an op."""
        return OpLocation((*self.numbers, number), self.base, before)

    def inside(self, names: Pointer) -> OpLocation:
        """Among the ops of an op."""
        return OpLocation(self.numbers, self.base + names)


class Walk:
    """Applies the ops of a lens to shapes; ``problems`` holds what could not be proven."""

    def __init__(self, oracle: Oracle | None) -> None:
        self.problems: list[Unproven] = []
        self._oracle = oracle

    def through(self, steps: Iterable[Op], shape: Shape, location: OpLocation) -> Shape:
        """The shape after all ops."""
        for number, op in enumerate(steps):
            shape = self._op(op, shape, location.at(number, shape))
        return shape

    def _op(self, op: Op, shape: Shape, location: OpLocation) -> Shape:
        """Apply an op to each alternative on its own, so that correlated facts stay together."""
        check_deadline()
        step = _STEPS[type(op)]
        return union(
            *(
                step(self, op, Shape((alternative,)), location)
                for alternative in shape.alternatives
                if not empty(alternative)
            )
        )

    def note(self, location: OpLocation, names: Pointer, rule: str, reason: str) -> None:
        """Note something that could not be proven."""
        check_deadline()
        where = "".join(f"/ops/{number}" for number in location.numbers)
        problem = Unproven(where, pointer.text(location.base + names), rule, reason)
        if problem not in self.problems:
            self.problems.append(problem)

    def where_present(self, op: Op, shape: Shape, names: Pointer, location: OpLocation, change: Change) -> Shape:
        """Change the values that hold something at a pointer; all of them must, unless the op is optional."""
        present, absent = split(shape, names)
        if vacant(present):
            if not op.optional:
                self._note_missing(location, names)
            return shape
        if vacant(absent):
            return change(present)
        if op.optional:
            return merge(change(present), absent)
        self._note_missing(location, names)
        return change(present)

    def _note_missing(self, location: OpLocation, names: Pointer) -> None:
        if vacant(split(location.before, names)[0]):
            self.note(location, names, "source_absent", "there is never a value; the op needs one")
        else:
            self.note(location, names, "source_optional", "it may be missing; the op needs it, or must be optional")

    def put(self, shape: Shape, names: Pointer, value: Shape, location: OpLocation) -> Shape:
        """Put a value at a pointer; all containers on its path must exist."""
        if not names:
            return value
        parent = names[:-1]
        present, absent = split(shape, parent)
        if not vacant(absent):
            self.note(location, parent, "target_parent_optional", "it may be missing; the op puts a value into it")
        if vacant(present):
            return shape
        for alternative in value_at(present, parent).alternatives:
            if not _can_hold(alternative, names[-1]) and not empty(alternative):
                reason = (
                    f"it may be {describe_alternative(alternative)}, which has no place for {format_json(names[-1])}"
                )
                self.note(location, parent, "target_parent_kind", reason)
        return put(present, names, value)

    def only(self, kind: type[Alternative], shape: Shape, names: Pointer, location: OpLocation, rule: str) -> Shape:
        """The alternatives of a kind; there must be no others."""
        for alternative in shape.alternatives:
            if not isinstance(alternative, kind) and not empty(alternative):
                self.note(
                    location, names, rule, f"it may be {describe_alternative(alternative)}; the op needs an {kind.kind}"
                )
        return Shape(tuple(alternative for alternative in shape.alternatives if isinstance(alternative, kind)))

    def carry(self, shape: Shape, source: Pointer, target: Pointer, location: OpLocation, *, moves: bool) -> Shape:
        """Copy the value at the source to the target, or move it there."""
        moved = self.put(shape, target, value_at(shape, source), location)
        # A value that takes the place of something around it leaves nothing behind.
        return moved if not moves or pointer.has_prefix(source, target) else drop(moved, source)

    def inspect(self, steps: Iterable[Op], location: OpLocation) -> None:
        """Check what does not depend on the shape: defaults fit, and no value moves into itself."""
        for number, op in enumerate(steps):
            here = location.at(number)
            match op:
                case ops.Add():
                    self._inspect_default(op, here)
                case ops.Rename(source=source, target=target) | ops.Copy(source=source, target=target):
                    self._inspect_move(source, target, here, isinstance(op, ops.Rename))
                case ops.Hoist():
                    self._inspect_move((*op.host, op.member), op.target, here, op.remove_from_host)
                case ops.Plunge():
                    self._inspect_move(op.source, (*op.host, op.member), here, True)
                case ops.In() | ops.Map():
                    self.inspect(op.ops, here.inside(_inner_path(op)))

    def _inspect_default(self, op: ops.Add, location: OpLocation) -> None:
        if op.default is msgspec.UNSET:
            self.note(location, op.path, "default_missing", "no default is given, and none follows from the schemas")
            return
        for gap in find_gaps(shape_of_values([op.default]), Root(op.schema).source, self._oracle):
            self.note(location, op.path + gap.pointer, "default_invalid", f"the default does not fit: {gap.reason}")

    def _inspect_move(self, source: Pointer, target: Pointer, location: OpLocation, moves: bool) -> None:
        if source == target or (moves and pointer.has_prefix(target, source)):
            self.note(location, target, "target_inside_source", "the value is there already, or would move into itself")

    def added(self, op: ops.Add) -> Shape:
        """The shape of the value that an op adds."""
        return shape_of(Root(op.schema).source) if op.default is msgspec.UNSET else shape_of_values([op.default])


def _inner_path(op: ops.In | ops.Map) -> Pointer:
    return (*op.path, "*") if isinstance(op, ops.Map) else op.path


def _can_hold(alternative: Alternative, name: str) -> bool:
    return isinstance(alternative, Object) or child(alternative, name).required


def _rename(walk: Walk, op: ops.Rename, shape: Shape, location: OpLocation) -> Shape:

    def change(present: Shape) -> Shape:
        return walk.carry(present, op.source, op.target, location, moves=True)

    return walk.where_present(op, shape, op.source, location, change)


def _copy(walk: Walk, op: ops.Copy, shape: Shape, location: OpLocation) -> Shape:

    def change(present: Shape) -> Shape:
        return walk.carry(present, op.source, op.target, location, moves=False)

    return walk.where_present(op, shape, op.source, location, change)


def _add(walk: Walk, op: ops.Add, shape: Shape, location: OpLocation) -> Shape:
    value = walk.added(op)

    def change(present: Shape) -> Shape:
        fixed = any(isinstance(alternative, Array) for alternative in value_at(present, op.path[:-1]).alternatives)
        if not op.overwrite and (fixed or not vacant(value_at(present, op.path))):
            where = pointer.text(location.base + op.path)
            reason = f'Old events may already contain {where}. Set "overwrite": true on this operation.'
            walk.note(location, op.path, "may_overwrite", reason)
        return walk.put(present, op.path, value, location)

    if not op.optional:
        return change(shape)
    return walk.where_present(op, shape, op.path[:-1], location, change)


def _remove(walk: Walk, op: ops.Remove, shape: Shape, location: OpLocation) -> Shape:
    return walk.where_present(op, shape, op.path, location, lambda present: drop(present, op.path))


def _hoist(walk: Walk, op: ops.Hoist, shape: Shape, location: OpLocation) -> Shape:
    source = (*op.host, op.member)
    walk.only(Object, value_at(split(shape, op.host)[0], op.host), op.host, location, "host_kind")

    def change(present: Shape) -> Shape:
        return walk.carry(present, source, op.target, location, moves=op.remove_from_host)

    return walk.where_present(op, shape, source, location, change)


def _plunge(walk: Walk, op: ops.Plunge, shape: Shape, location: OpLocation) -> Shape:
    target = (*op.host, op.member)

    def change(present: Shape) -> Shape:
        hosting = _make_objects(walk, present, op.host, location, ()) if op.create_host else present
        walk.only(Object, value_at(split(hosting, op.host)[0], op.host), op.host, location, "host_kind")
        return walk.carry(hosting, op.source, target, location, moves=op.remove_from_source)

    return walk.where_present(op, shape, op.source, location, change)


def _make_objects(walk: Walk, shape: Shape, names: Pointer, location: OpLocation, above: Pointer) -> Shape:
    """The values with the missing objects on the path of a pointer, and at it, added."""
    if not names:
        return shape
    name, further = names[0], names[1:]

    def inner(member_shape: Shape) -> Shape:
        return _make_objects(walk, member_shape, further, location, (*above, name))

    def made(alternative: Alternative) -> Alternative:
        if not isinstance(alternative, Object):
            if not _can_hold(alternative, name):
                reason = f"it may be {describe_alternative(alternative)}, which has no place for {format_json(name)}"
                walk.note(location, above, "target_parent_kind", reason)
                return alternative
            return edit(Shape((alternative,)), (name,), inner).alternatives[0]
        existing = member(alternative, name)
        if existing.required:
            return edit(Shape((alternative,)), (name,), inner).alternatives[0] if further else alternative
        return put(Shape((alternative,)), (name,), inner(union(existing.shape, _NEW_OBJECT))).alternatives[0]

    return Shape(tuple(map(made, shape.alternatives)))


def _wrap(walk: Walk, op: ops.Wrap, shape: Shape, location: OpLocation) -> Shape:
    def wrapped(value: Shape) -> Shape:
        return Shape((Array(prefix=(value,), rest=NOTHING, low=1, high=1, unique=True),))

    return walk.where_present(op, shape, op.path, location, lambda present: edit(present, op.path, wrapped))


def _head(walk: Walk, op: ops.Head, shape: Shape, location: OpLocation) -> Shape:
    def first(value: Shape) -> Shape:
        arrays = walk.only(Array, value, op.path, location, "type_mismatch")
        if not all(
            element(alternative, 0).required for alternative in arrays.alternatives if isinstance(alternative, Array)
        ):
            walk.note(
                location, op.path, "array_may_be_empty", "the array may be empty, so it may have no first element"
            )
        return value_at(arrays, ("0",))

    return walk.where_present(op, shape, op.path, location, lambda present: edit(present, op.path, first))


def _convert(walk: Walk, op: ops.Convert, shape: Shape, location: OpLocation) -> Shape:
    def image(value: Shape) -> Shape:
        converted = convert_shape(op, value)
        for complaint in converted.complaints:
            walk.note(location, op.path, complaint.rule, complaint.reason)
        return converted.shape

    return walk.where_present(op, shape, op.path, location, lambda present: edit(present, op.path, image))


def _in(walk: Walk, op: ops.In, shape: Shape, location: OpLocation) -> Shape:
    def walk_inner(value: Shape) -> Shape:
        return walk.through(
            op.ops, walk.only(Object, value, op.path, location, "type_mismatch"), location.inside(_inner_path(op))
        )

    return walk.where_present(op, shape, op.path, location, lambda present: edit(present, op.path, walk_inner))


def _map(walk: Walk, op: ops.Map, shape: Shape, location: OpLocation) -> Shape:
    inside = location.inside(_inner_path(op))

    def mapped(value: Shape) -> Shape:
        arrays = walk.only(Array, value, op.path, location, "type_mismatch")
        return Shape(tuple(each(alternative) for alternative in arrays.alternatives if isinstance(alternative, Array)))

    def each(alternative: Array) -> Array:
        elements = [element(alternative, position).shape for position in range(len(alternative.prefix) + 1)]
        *prefix, rest = [walk.through(op.ops, shape, inside) for shape in elements]
        return replace_values(alternative, prefix=tuple(prefix), rest=rest, unique=False)

    return walk.where_present(op, shape, op.path, location, lambda present: edit(present, op.path, mapped))


_STEPS: dict[type[Op], Callable[[Walk, Any, Shape, OpLocation], Shape]] = {
    ops.Rename: _rename,
    ops.Copy: _copy,
    ops.Add: _add,
    ops.Remove: _remove,
    ops.Hoist: _hoist,
    ops.Plunge: _plunge,
    ops.Wrap: _wrap,
    ops.Head: _head,
    ops.Convert: _convert,
    ops.In: _in,
    ops.Map: _map,
}

"""A lens, compiled once to closures that convert documents back to the version before.

The ops are undone in reverse order. A removed value is restored only where the lens gives a default, and an overwritten
one is not restored. The old schema tells which objects existed before the lens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from headrace.schema import pointer as pointers
from headrace.schema.lens import ops
from headrace.schema.lens.conversions import make_conversion
from headrace.schema.lens.document import admits, default_of, required
from headrace.schema.lens.forward import (
    Step,
    Steps,
    convert_step,
    each_element_step,
    head_step,
    inside_step,
    make_objects,
    source_finder,
    target_finder,
    wrap_step,
)
from headrace.schema.lens.ops import Op
from headrace.schema.lens.pullback import Absent, ConstantSource, Either, Stored, ValueSource, existence, trace_source
from headrace.schema.lens.values import LensFailure, Slot, encode_value, find_value_slot, open_container
from headrace.schema.pointer import Pointer


class _Before(NamedTuple):
    """Facts about documents before an op: the old schema, and the ops that ran since."""

    schema: Any
    scopes: tuple[tuple[Pointer, tuple[Op, ...]], ...] = ()
    base: Pointer = ()

    def certain(self, names: Pointer) -> bool:
        """Whether every document that had the container of a pointer also had a value at it."""
        around = self._implied(self._origin(self.base)) + self._implied(self._origin((self.base + names)[:-1]))
        return self._is_present(self._origin(self.base + names), around)

    def untouched(self, names: Pointer) -> bool:
        """Whether no op changed a value."""
        pointer = self.base + names
        return trace_source(self.scopes, pointer) == Stored(pointer) and self._origin(pointer[:-1]) == Stored(
            pointer[:-1]
        )

    def _origin(self, pointer: Pointer) -> ValueSource | None:
        return existence(trace_source(self.scopes, pointer))

    def _implied(self, source: ValueSource | None) -> list[Pointer]:
        """The pointers in an old document that have values where a source has one."""
        match source:
            case Stored(pointer):
                return [pointer]
            case Either(test, present, absent) if not self._possible(absent):
                return [test, *self._implied(present)]
            case Either(_, present, absent) if not self._possible(present):
                return self._implied(absent)
        return []

    def _possible(self, source: ValueSource) -> bool:
        match source:
            case Stored(pointer):
                return admits(self.schema, pointer)
            case Either(test, present, absent):
                return (admits(self.schema, test) and self._possible(present)) or self._possible(absent)
        return not isinstance(source, Absent)

    def _is_present(self, source: ValueSource | None, present_pointers: list[Pointer]) -> bool:
        match source:
            case Stored(pointer):
                return required(self.schema, pointer, present_pointers)
            case Either(test, present, absent):
                there = self._is_present(present, present_pointers)
                return there and (
                    required(self.schema, test, present_pointers) or self._is_present(absent, present_pointers)
                )
        return isinstance(source, ConstantSource)

    def inside(self, path: Pointer) -> _Before:
        return self._replace(base=self.base + path)


def backward(lens_ops: tuple[Op, ...], schema: Any) -> Steps:
    """The steps back of a lens that leads on from a schema."""
    return _backward(lens_ops, _Before(schema))


def _backward(lens_ops: tuple[Op, ...], before: _Before) -> Steps:
    steps = [
        (number, _COMPILE[type(op)](op, before._replace(scopes=(*before.scopes, (before.base, lens_ops[:number])))))
        for number, op in enumerate(lens_ops)
    ]
    return tuple(reversed(steps))


def _nothing(holder: Any, key: Any) -> None:
    """The document stays as it is."""


def _impossible(reason: str, names: Pointer) -> Step:
    def step(holder: Any, key: Any) -> None:
        raise LensFailure(reason, names)

    return step


def _move_back(source: Pointer, target: Pointer, optional: bool, before: _Before) -> Step:
    """Undo a move: bring the value back to its source."""
    if pointers.has_prefix(source, target):
        return _unfold(target, source[len(target) :], optional)
    if before.certain(target):
        return _nothing if optional else _impossible("what was here was overwritten", target)
    find = source_finder(target, optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is None:
            return
        at, name = slot
        if type(at) is list or _shifted(holder, key, source, target):
            raise LensFailure("an array was changed here", target)
        _put_back(holder, key, source, at.pop(name))

    return step


def _unfold(target: Pointer, names: Pointer, optional: bool) -> Step:
    """Undo a move that replaced an object by a value from inside it."""
    if any(pointers.index(name) is not None for name in names):
        return _impossible("what was here was overwritten", target)
    find = source_finder(target, optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is not None:
            at, name = slot
            for member in reversed(names):
                at[name] = {member: at[name]}

    return step


def _shifted(holder: Any, key: Any, source: Pointer, target: Pointer) -> bool:
    """Whether the source was taken from an array that also leads to the target."""
    parent = source[:-1]
    if target[: len(parent)] != parent or len(target) == len(parent):
        return False
    slot = find_value_slot(holder, key, parent)
    return slot is not None and type(open_container(*slot)) is list


def _put_back(holder: Any, key: Any, names: Pointer, value: Any) -> None:
    """Put a value where it was taken from: into an array it is inserted."""
    make_objects(holder, key, names[:-1])
    at, name = _gap(holder, key, names)
    if type(at) is list:
        at.insert(name, value)
    else:
        at[name] = value


def _gap(holder: Any, key: Any, names: Pointer) -> Slot:
    host = find_value_slot(holder, key, names[:-1])
    array = None if host is None else open_container(*host)
    index = pointers.index(names[-1])
    if type(array) is list and index == len(array):
        return array, index
    return target_finder(names)(holder, key)


def _copy_back(source: Pointer, target: Pointer, optional: bool, before: _Before) -> Step:
    """Undo a copy: remove it, or move it back to its source where only the copy is left."""
    if pointers.has_prefix(source, target):
        return _unfold(target, source[len(target) :], optional)
    if before.certain(target):
        return _nothing
    find = source_finder(target, optional=False)

    def step(holder: Any, key: Any) -> None:
        if find_value_slot(holder, key, source) is not None:
            _take_away(find_value_slot(holder, key, target))
        elif not optional:
            slot = find(holder, key)
            value = encode_value(slot[0][slot[1]]) if slot else None
            _take_away(slot)
            _put_back(holder, key, source, value)

    return step


def _take_away(slot: Slot | None) -> None:
    """Delete a member; an element of an array, which was overwritten and not added, stays."""
    if slot is not None and type(slot[0]) is dict:
        del slot[0][slot[1]]


def _rename(op: ops.Rename, before: _Before) -> Step:
    return _move_back(op.source, op.target, op.optional, before)


def _copy(op: ops.Copy, before: _Before) -> Step:
    return _copy_back(op.source, op.target, op.optional, before)


def _add(op: ops.Add, before: _Before) -> Step:
    if op.overwrite and before.certain(op.path):
        return _nothing

    def step(holder: Any, key: Any) -> None:
        _take_away(find_value_slot(holder, key, op.path))

    return step


def _remove(op: ops.Remove, before: _Before) -> Step:
    if op.optional and not before.certain(op.path) and not _has_explicit_default(op, before):
        return _nothing
    default = default_of(op.schema) if op.default is msgspec.UNSET else op.default
    if default is msgspec.UNSET:
        return _impossible("what was removed here has no default", op.path)
    value = encode_value(default)

    def step(holder: Any, key: Any) -> None:
        host = find_value_slot(holder, key, op.path[:-1])
        if op.optional and (host is None or type(open_container(*host)) is not dict):
            return
        slot = find_value_slot(holder, key, op.path)
        if slot is None or type(slot[0]) is list:
            _put_back(holder, key, op.path, value)

    return step


def _has_explicit_default(op: ops.Remove, before: _Before) -> bool:
    """Whether the lens gives a default for an optional value that no earlier op touched."""
    return op.default is not msgspec.UNSET and before.untouched(op.path)


def _hoist(op: ops.Hoist, before: _Before) -> Step:
    undo = _move_back if op.remove_from_host else _copy_back
    return undo((*op.host, op.member), op.target, op.optional, before)


def _plunge(op: ops.Plunge, before: _Before) -> Step:
    undo = _move_back if op.remove_from_source else _copy_back
    back = undo(op.source, (*op.host, op.member), op.optional, before)
    made = {host for host in _prefixes(op.host) if op.create_host and not before.certain(host)}

    def step(holder: Any, key: Any) -> None:
        was_there = find_value_slot(holder, key, (*op.host, op.member)) is not None
        back(holder, key)
        if was_there:
            _prune(holder, key, op.host, made)

    return step


def _prefixes(names: Pointer) -> list[Pointer]:
    return [names[:end] for end in range(1, len(names) + 1)]


def _prune(holder: Any, key: Any, host: Pointer, made: set[Pointer]) -> None:
    """Delete the outermost object on the path to a host that the op may have made and that is empty now."""
    for names in _prefixes(host):
        slot = find_value_slot(holder, key, names)
        if names in made and slot is not None and _hollow(slot[0][slot[1]], host[len(names) :]):
            _take_away(slot)
            return


def _hollow(value: Any, names: Pointer) -> bool:
    if type(value) is not dict or len(value) > bool(names):
        return False
    return not value or (names[0] in value and _hollow(value[names[0]], names[1:]))


def _convert(op: ops.Convert, before: _Before) -> Step:
    return convert_step(op.path, op.optional, make_conversion(op.to_type, op.from_type, op.backward))


def _in(op: ops.In, before: _Before) -> Step:
    # Steps on the whole object may have made something else of it.
    return inside_step(op.path, op.optional, _backward(op.ops, before.inside(op.path)), lambda slot, path: None)


def _map(op: ops.Map, before: _Before) -> Step:
    return each_element_step(op.path, op.optional, _backward(op.ops, before.inside((*op.path, "0"))))


_COMPILE: dict[type[Op], Callable[[Any, _Before], Step]] = {
    ops.Rename: _rename,
    ops.Copy: _copy,
    ops.Add: _add,
    ops.Remove: _remove,
    ops.Hoist: _hoist,
    ops.Plunge: _plunge,
    ops.Wrap: lambda op, before: head_step(op.path, op.optional),
    ops.Head: lambda op, before: wrap_step(op.path, op.optional),
    ops.Convert: _convert,
    ops.In: _in,
    ops.Map: _map,
}

"""A lens, compiled once to closures that convert documents to the next version.

A step works on the value in a slot. Values are moved, never built anew, so what no step opens keeps its bytes. A value
that is put into two places is encoded first, so that no two places share a container that can change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from headrace.schema import pointer as pointers
from headrace.schema.lens import ops
from headrace.schema.lens.conversions import Conversion, make_conversion
from headrace.schema.lens.ops import Op
from headrace.schema.lens.values import LensFailure, Slot, encode_value, find_slot, find_value_slot, open_container
from headrace.schema.pointer import Pointer

Step = Callable[[Any, Any], None]

#: Steps in the order they run, each with the number of its op.
Steps = tuple[tuple[int, Step], ...]


def forward(lens_ops: Iterable[Op]) -> Steps:
    """The steps of a lens, or of an op that holds ops."""
    return tuple((number, _COMPILE[type(op)](op)) for number, op in enumerate(lens_ops))


def run(steps: Steps, holder: Any, key: Any) -> None:
    """Run the steps on the value in a slot; a failure names the op."""
    for number, step in steps:
        try:
            step(holder, key)
        except LensFailure as failure:
            failure.op = (number, *failure.op)
            raise


def source_finder(names: Pointer, optional: bool) -> Callable[[Any, Any], Slot | None]:
    """A function that finds the slot of a source, or None where it is absent and optional."""
    last = names[-1] if len(names) == 1 else None

    def find(holder: Any, key: Any) -> Slot | None:
        container = holder[key]
        if type(container) is dict and last in container:  # most pointers name a member of the event
            return container, last
        slot = find_value_slot(holder, key, names)
        if slot is None and not optional:
            raise LensFailure("there is no value", names)
        return slot

    return find


def target_finder(names: Pointer) -> Callable[[Any, Any], Slot]:
    """A function that finds the slot of a target, whose parents must exist."""
    last = names[-1] if len(names) == 1 else None

    def find(holder: Any, key: Any) -> Slot:
        container = holder[key]
        if type(container) is dict and last is not None:
            return container, last
        slot = find_slot(holder, key, names)
        if slot is None:
            raise LensFailure("there is nothing to put a value into", names)
        return slot

    return find


def _carry(source: Pointer, optional: bool, moves: bool, find_target: Callable[[Any, Any], Slot]) -> Step:
    """A step that copies the value at the source to the target, or moves it there."""
    find = source_finder(source, optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is None:
            return
        at, name = slot
        value = at[name] if moves else encode_value(at[name])
        to, member = find_target(holder, key)
        to[member] = value
        if moves:
            del at[name]

    return step


def _rename(op: ops.Rename) -> Step:
    carry = _carry(op.source, op.optional, True, target_finder(op.target))
    if len(op.source) != 1 or len(op.target) != 1:
        return carry
    (source,), (target,) = op.source, op.target

    def step(holder: Any, key: Any) -> None:
        event = holder[key]
        if type(event) is dict and source in event:  # most events
            event[target] = event[source]
            del event[source]
        else:
            carry(holder, key)

    return step


def _copy(op: ops.Copy) -> Step:
    return _carry(op.source, op.optional, False, target_finder(op.target))


def _hoist(op: ops.Hoist) -> Step:
    find = source_finder(op.host, op.optional)
    carry = _carry((*op.host, op.member), op.optional, op.remove_from_host, target_finder(op.target))

    def step(holder: Any, key: Any) -> None:
        host = find(holder, key)
        if host is not None:
            object_at(host, op.host)
            carry(holder, key)

    return step


def _plunge(op: ops.Plunge) -> Step:
    find_host = source_finder(op.host, False)

    def find_target(holder: Any, key: Any) -> Slot:
        if op.create_host:
            make_objects(holder, key, op.host)
        host = find_host(holder, key)
        assert host is not None, "only an optional source may be absent"
        return object_at(host, op.host), op.member

    return _carry(op.source, op.optional, op.remove_from_source, find_target)


def make_objects(holder: Any, key: Any, names: Pointer) -> None:
    """Make the missing objects on the path of a pointer and at it."""
    for end in range(1, len(names) + 1):
        at, name = target_finder(names[:end])(holder, key)
        if type(at) is dict and name not in at:
            at[name] = {}


def object_at(slot: Slot, names: Pointer) -> dict[str, Any]:
    """The object in a slot, opened; anything else is a failure."""
    container = open_container(*slot)
    if type(container) is not dict:
        raise LensFailure("the value is no object", names)
    return container


def array_at(slot: Slot, names: Pointer) -> list[Any]:
    """The array in a slot, opened; anything else is a failure."""
    container = open_container(*slot)
    if type(container) is not list:
        raise LensFailure("the value is no array", names)
    return container


def _add(op: ops.Add) -> Step:
    if op.default is msgspec.UNSET:
        raise ValueError(f"add {pointers.text(op.path)} has no default")
    default = encode_value(op.default)
    find = target_finder(op.path)
    optional, overwrite = op.optional, op.overwrite

    def step(holder: Any, key: Any) -> None:
        if optional and find_value_slot(holder, key, op.path[:-1]) is None:
            return
        at, name = find(holder, key)
        if not overwrite and (type(at) is list or name in at):
            raise LensFailure("there is a value already", op.path)
        at[name] = default

    return step


def _remove(op: ops.Remove) -> Step:
    find = source_finder(op.path, op.optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is not None:
            at, name = slot
            del at[name]

    return step


def wrap_step(path: Pointer, optional: bool) -> Step:
    """x becomes [x]."""
    find = source_finder(path, optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is not None:
            at, name = slot
            at[name] = [at[name]]

    return step


def head_step(path: Pointer, optional: bool) -> Step:
    """[x, …] becomes x."""
    find = source_finder(path, optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is not None:
            array = array_at(slot, path)
            if not array:
                raise LensFailure("the array is empty", path)
            at, name = slot
            at[name] = array[0]

    return step


def convert_step(path: Pointer, optional: bool, convert: Conversion) -> Step:
    """x becomes the result of a conversion."""
    find = source_finder(path, optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is None:
            return
        at, name = slot
        try:
            at[name] = convert(at[name])
        except LensFailure as failure:
            failure.pointer = path
            raise

    return step


def inside_step(path: Pointer, optional: bool, steps: Steps, check: Callable[[Slot, Pointer], object]) -> Step:
    """Run steps inside an object, after a check."""
    find = source_finder(path, optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is None:
            return
        check(slot, path)
        try:
            run(steps, *slot)
        except LensFailure as failure:
            failure.pointer = path + failure.pointer
            raise

    return step


def each_element_step(path: Pointer, optional: bool, steps: Steps) -> Step:
    """Run steps inside each element of an array."""
    find = source_finder(path, optional)

    def step(holder: Any, key: Any) -> None:
        slot = find(holder, key)
        if slot is None:
            return
        array = array_at(slot, path)
        number = 0
        try:
            for number in range(len(array)):
                run(steps, array, number)
        except LensFailure as failure:
            failure.pointer = (*path, str(number), *failure.pointer)
            raise

    return step


def _convert(op: ops.Convert) -> Step:
    return convert_step(op.path, op.optional, make_conversion(op.from_type, op.to_type, op.forward))


_COMPILE: dict[type[Op], Callable[[Any], Step]] = {
    ops.Rename: _rename,
    ops.Copy: _copy,
    ops.Add: _add,
    ops.Remove: _remove,
    ops.Hoist: _hoist,
    ops.Plunge: _plunge,
    ops.Wrap: lambda op: wrap_step(op.path, op.optional),
    ops.Head: lambda op: head_step(op.path, op.optional),
    ops.Convert: _convert,
    ops.In: lambda op: inside_step(op.path, op.optional, forward(op.ops), object_at),
    ops.Map: lambda op: each_element_step(op.path, op.optional, forward(op.ops)),
}

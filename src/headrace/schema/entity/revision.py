"""How a field differs from what it was."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.deadline import check_deadline
from headrace.schema.entity.difference import Difference, Site
from headrace.schema.entity.nodes import Constraints, Field
from headrace.schema.equality import same
from headrace.schema.shape.canonical import value_text


def field_differences(name: str, old: Field | None, new: Field | None, rejects: bool) -> Iterator[Difference]:
    """Every difference of a field that was, is, or both; ``rejects`` says that broken constraints reject."""
    check_deadline()
    site = Site(("schema_definition", "fields", name))
    if old is None and new is not None:
        yield _added(site, name, new)
    elif new is None:
        yield site.breaks("field_removed", f"{name} is hidden; its observations stay, and it can be added again")
    elif old is not None and old != new:
        yield from _revised(site, name, old, new, rejects)


def _added(site: Site, name: str, new: Field) -> Difference:
    if new.required:
        return site.breaks("required_field_added", f"{name} is new and required, and no entity has it")
    return site.adds("field_added", f"{name} is new")


def _revised(site: Site, name: str, old: Field, new: Field, rejects: bool) -> Iterator[Difference]:
    if old.type != new.type:
        yield site.breaks("type_changed", f"{name} was a {old.type} and is a {new.type}")
    if new.required and not old.required:
        yield site.breaks("field_required", f"{name} becomes required")
    if old.required and not new.required:
        yield site.widens("field_optional", f"{name} is no longer required")
    yield from _converters(site, name, old, new)
    yield from _validator(site, name, old, new)
    yield from _constraints(site, name, old.constraints, new.constraints, rejects)
    if old.preserve_case != new.preserve_case:
        yield site.rewords("case_changed", f"{name} {'keeps' if new.preserve_case else 'loses'} its case in names")
    if (old.description, old.sensitivity_class) != (new.description, new.sensitivity_class):
        yield site.rewords("description_changed", f"{name} is described otherwise")


def _converters(site: Site, name: str, old: Field, new: Field) -> Iterator[Difference]:
    was, now = old.converters, new.converters
    if was == now:
        return
    if now[: len(was)] == was:
        added = ", ".join(converter.function for converter in now[len(was) :])
        yield site.widens("converter_added", f"{name} takes what {added} converts")
    elif all(converter in now for converter in was):
        yield site.breaks("converters_reordered", f"{name} tries other converters first")
    else:
        gone = ", ".join(converter.function for converter in was if converter not in now)
        yield site.breaks("converter_removed", f"{name} no longer takes what {gone} converts")


def _validator(site: Site, name: str, old: Field, new: Field) -> Iterator[Difference]:
    if old.validator == new.validator:
        return
    if new.validator is None:
        yield site.widens("validator_removed", f"{name} takes more than {old.validator} accepts")
    else:
        yield site.breaks("validator_changed", f"{name} takes only what {new.validator} accepts")


def _constraints(
    site: Site, name: str, old: Constraints | None, new: Constraints | None, rejects: bool
) -> Iterator[Difference]:
    was, now = old or Constraints(), new or Constraints()
    if same_limits(was, now):
        return
    if _looser(was, now):
        yield site.widens("constraint_loosened", f"{name} takes values that it did not")
    elif rejects:
        yield site.breaks("constraint_tightened", f"{name} rejects values that it took")
    else:
        yield site.adds("constraint_tightened", f"{name} warns of values that it took")


def same_limits(old: Constraints, new: Constraints) -> bool:
    """Whether the same values are allowed, by what is written."""
    return same(_plain(old), _plain(new))


def _plain(limits: Constraints) -> list[object]:
    enum, banned = (sorted({*map(value_text, values)}) for values in (limits.enum, limits.banned))
    return [limits.min, limits.max, enum, limits.pattern, banned]


def _looser(old: Constraints, new: Constraints) -> bool:
    """Whether every value that was allowed still is."""
    return (
        (new.min is None or (old.min is not None and new.min <= old.min))
        and (new.max is None or (old.max is not None and new.max >= old.max))
        and (not new.enum or (bool(old.enum) and set(old.enum) <= set(new.enum)))
        and new.pattern in (None, old.pattern)
        and set(new.banned) <= set(old.banned)
    )

"""Plan an update of a registry, with every refusal at once.

The plan is made for one head of the stream. The commit takes the registry of the plan and moves the boundary to where
the stream ends then (``Registry.bounded``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from headrace.deadline import check_deadline
from headrace.schema import document
from headrace.schema import pointer as pointers
from headrace.schema.canonical import same
from headrace.schema.change import Change, Classification
from headrace.schema.diff import diff, judge
from headrace.schema.keyword_changes import (
    MAY_STILL_HOLD,
    NEW_AND_REQUIRED,
    NO_LONGER_ALLOWED,
    NO_LONGER_DESCRIBED,
    NOW_REQUIRED,
    REMOVE_REMEDY,
    WAS_OPEN,
)
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.carry import CarryEffect, Crossing, KeyReader
from headrace.schema.lens.chain import Crossings
from headrace.schema.lens.ops import Add, In, Lens, Map, Op, Remove
from headrace.schema.lens.proof import is_runnable, prove
from headrace.schema.plan import Plan, PlannedLens, Refusal, ValueImpact
from headrace.schema.problem import Problem
from headrace.schema.registry import MAX_BOUNDARY, Registry
from headrace.schema.update import UNSET, SchemaUpdate, routing_key_carried, routing_key_changes, search_changes

MAX_REFUSALS = 200

#: Everything that is wrong with a search configuration for a schema version.
CheckSearch = Callable[[Any, int, Any], Iterable[Problem]]


class CarriedSearch(NamedTuple):
    """A search configuration with the bindings that were written, the changes that make it so, and its impact."""

    search: Any
    changes: tuple[Change, ...] = ()
    impact: tuple[ValueImpact, ...] = ()


#: Lets a valid search configuration follow its data from one registry to the next.
CarrySearch = Callable[[Registry, Any, Registry, Crossings], CarriedSearch]


class SearchRules(NamedTuple):
    """How search configurations are checked, beside the previous one, and carried to the next version."""

    check: CheckSearch
    carry: CarrySearch


def apply(
    registry: Registry, update: SchemaUpdate, *, next_seq: int, is_empty: bool, search_rules: SearchRules
) -> Plan[Registry]:
    """The plan of an update for a stream whose next event gets the number ``next_seq``."""
    version = registry.current_version
    plan = Plan(subject=registry.schema, from_version=version, to_version=version, registry=registry)
    if update.schema is not UNSET and not _repeats_schema(registry, update):
        plan = (
            _plan_first_version(plan, update, is_empty) if version == 0 else _plan_next_version(plan, update, next_seq)
        )
    crossings = Crossings(plan.registry)
    if plan.lens is not None and not plan.refusals:
        plan = replace(plan, changes=tuple(_explained_changes(plan.changes, crossings[version])))
    plan = _apply_search(_apply_routing_key(plan, update, crossings), registry, update, search_rules, crossings)
    if not plan.refusals:
        return plan
    return replace(plan, registry=registry, lens=None, reasons=(), impact=(), refusals=_limit_refusals(plan.refusals))


#: Codes of refusals of input that cannot be read, so that no registry can be proposed.
_UNREADABLE = ("schema_invalid", "lens_invalid", "conflict")


def propose_registry(
    registry: Registry, update: SchemaUpdate, plan: Plan[Registry], *, next_seq: int
) -> Registry | None:
    """The registry with the version of an update, whether or not the plan of it is refused.

    None where the update makes no version, or one that no event can be checked against.
    """
    if plan.to_version == plan.from_version or any(map(_is_unreadable, plan.refusals)):
        return None
    if not registry.current_version:
        # Only a key that comes with the schema has to be that of every stored event.
        key = None if update.routing_key is UNSET else update.routing_key
        return replace(registry.advanced(update.schema, None, next_seq), routing_key=key)
    lens = _empty_lens(registry) if update.lens is UNSET else update.lens
    parsed = lens_document.parse(lens)
    if not isinstance(parsed, Lens) or not is_runnable(update.schema, parsed.ops):
        return None
    return registry.advanced(update.schema, lens, next_seq)


def _is_unreadable(refusal: Refusal) -> bool:
    return refusal.code in _UNREADABLE or refusal.pointer == "/lens/schema"


def _limit_refusals(refusals: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    """The first refusals, and how many more there are."""
    if len(refusals) <= MAX_REFUSALS:
        return refusals
    more = len(refusals) - MAX_REFUSALS
    return (*refusals[:MAX_REFUSALS], Refusal(refusals[0].code, "", f"and {more} more reasons"))


def _repeats_schema(registry: Registry, update: SchemaUpdate) -> bool:
    """Whether the update sends the current schema again."""
    return registry.current_version > 0 and update.lens is UNSET and same(registry.current_schema, update.schema)


def _plan_first_version(plan: Plan[Registry], update: SchemaUpdate, is_empty: bool) -> Plan[Registry]:
    """The first version; a lens that leads to it has nothing to carry."""
    refusals = _refusals("schema_invalid", "/schema", document.problems(update.schema))
    if not is_empty and not update.first_on_data:
        reason = "the first schema needs an empty stream, and this one has events; with first_on_data=true it is "
        refusals.append(Refusal("bad_request", "/schema", reason + "installed if every one of them fits"))
    if update.lens is not UNSET:
        refusals += _lens_refusals(plan.registry, lens_document.parse(update.lens))
    change = Change("", "schema_installed", Classification.ADDITIVE, "the stream gets its first schema")
    return replace(
        plan,
        to_version=1,
        changes=(change,),
        reasons=() if is_empty else (_ON_DATA,),
        registry=plan.registry.advanced(update.schema, None, 0),
        refusals=tuple(refusals),
    )


def _plan_next_version(plan: Plan[Registry], update: SchemaUpdate, next_seq: int) -> Plan[Registry]:
    """The next version, and the lens that leads to it: the one that was sent, or an empty one."""
    registry, written = plan.registry, update.lens is UNSET
    refusals = _refusals("schema_invalid", "/schema", document.problems(update.schema))
    changes = () if refusals else diff(registry.current_schema, update.schema)
    if next_seq > MAX_BOUNDARY:
        refusals.append(Refusal("bad_request", "/schema", f"a version cannot begin beyond event {MAX_BOUNDARY}"))
    refusals += (
        _lens_required_refusals(changes)
        if written
        else _unproven_lens_refusals(registry, update, provable=not refusals)
    )
    lens = _empty_lens(registry) if written else update.lens
    return replace(
        plan,
        to_version=registry.current_version + 1,
        changes=changes,
        reasons=(_WRITTEN if written else _PROVEN,),
        lens=PlannedLens(lens, written=written),
        registry=registry.advanced(update.schema, lens, next_seq),
        refusals=tuple(refusals),
    )


_ON_DATA = "it is installed only if every stored event fits; from then on these are read as events of version 1"
_WRITTEN = "every event that was valid stays valid, so a lens without operations is written"
_PROVEN = "the lens is proven to make every event that was valid a valid one of the new version"


def _empty_lens(registry: Registry) -> dict[str, Any]:
    version = registry.current_version
    return lens_document.dump(Lens(schema=registry.schema, source=version, target=version + 1, ops=()))


def _lens_required_refusals(changes: Iterable[Change]) -> list[Refusal]:
    return [
        Refusal("lens_required", f"/schema{change.schema_pointer}", f"lens required: {change.reason}")
        for change in changes
        if change.classification.breaking
    ]


def _unproven_lens_refusals(registry: Registry, update: SchemaUpdate, *, provable: bool) -> list[Refusal]:
    """Why a lens that was sent does not lead from the current schema to the next; the first reason has an example."""
    lens = lens_document.parse(update.lens)
    refusals = _lens_refusals(registry, lens)
    if refusals or not provable or not isinstance(lens, Lens):
        return refusals
    proof = prove(registry.current_schema, update.schema, lens.ops, judge)
    example = {} if proof.counter_example is UNSET else {"counter_example": proof.counter_example}
    return [
        Refusal(
            "lens_unsound",
            f"/lens{gap.op}",
            gap.message,
            {"event_pointer": gap.pointer, "rule": gap.rule, **({} if number else example)},
        )
        for number, gap in enumerate(proof.problems)
    ]


def _lens_refusals(registry: Registry, lens: Lens | list[Problem]) -> list[Refusal]:
    """Refusals of a lens before any proof: its structure, its versions, its name."""
    if not isinstance(lens, Lens):
        return _refusals("lens_invalid", "/lens", lens)
    refusals = _refusals("lens_invalid", "/lens", _op_problems(lens.ops, ""))
    version = registry.current_version
    if (lens.source, lens.target) != (version, version + 1):
        reason = f"lens version mismatch: the lens leads from {lens.source} to {lens.target}"
        refusals.append(Refusal("conflict", "/lens", f"{reason}, and this change from {version} to {version + 1}"))
    if lens.schema != registry.schema:
        reason = f"the lens is for {lens.schema!r}, and this registry belongs to {registry.schema!r}"
        refusals.append(Refusal("bad_request", "/lens/schema", reason))
    return refusals


def _op_problems(ops: Iterable[Op], base: str) -> Iterator[Problem]:
    """Problems of the schemas in operations."""
    for number, op in enumerate(ops):
        check_deadline()
        here = f"{base}/ops/{number}"
        if isinstance(op, Add | Remove):
            for pointer, reason in document.problems(op.schema):
                yield Problem(f"{here}/schema{pointer}", reason)
        elif isinstance(op, In | Map):
            yield from _op_problems(op.ops, here)


def _explained_changes(changes: Iterable[Change], crossing: Crossing) -> Iterator[Change]:
    """The changes; where the lens handles older events, the reason says how, instead of suggesting a remedy."""
    for change in changes:
        check_deadline()
        where = f"{change.pointer}: "
        names = pointers.parse(change.pointer) or ()
        if not crossing.ops:
            yield change
        elif change.reason.startswith((where + NEW_AND_REQUIRED, where + NOW_REQUIRED)):
            filled = f"{where}is required from now on; the lens gives it to older events"
            yield replace(change, reason=filled) if crossing.always_holds(names) else change
        elif WAS_OPEN in change.reason:
            handled = "; the lens replaces or removes what older events hold there"
            yield replace(change, reason=change.reason.partition(WAS_OPEN)[0] + handled)
        elif change.reason.startswith((where + NO_LONGER_ALLOWED, where + NO_LONGER_DESCRIBED)):
            reason = change.reason.partition(f"; {REMOVE_REMEDY}")[0]
            if effect := _describe_removal(names, crossing):
                reason = f"{reason.removesuffix(MAY_STILL_HOLD)}; the lens {effect}"
            elif not reason.endswith(MAY_STILL_HOLD):
                reason += "; the lens changes it in older events"
            yield replace(change, reason=reason)
        else:
            yield change


def _describe_removal(names: pointers.Pointer, crossing: Crossing) -> str | None:
    """Where a lens takes a value of older events; None where it may leave one there."""
    carried = crossing.carry(names, KeyReader())
    if carried.effect is None and carried.pointer != names:
        return f"moves it to {pointers.text(carried.pointer)}"
    return "takes it out of older events" if crossing.never_holds(names) else None


def _apply_routing_key(plan: Plan[Registry], update: SchemaUpdate, crossings: Crossings) -> Plan[Registry]:
    """The plan with the routing key of the update, or with the current one carried through the lens."""
    wanted, current = update.routing_key, plan.registry.routing_key
    if wanted is not UNSET:
        changes = (*plan.changes, *routing_key_changes(current, wanted))
        return replace(plan, changes=changes, registry=replace(plan.registry, routing_key=wanted))
    if current is None or plan.lens is None or plan.refusals:
        return plan
    version = plan.registry.current_version
    carried = crossings[version - 1].carry(pointers.parse(current.pointer) or (), KeyReader())
    moved = replace(current, pointer=pointers.text(carried.pointer))
    changes = (*plan.changes, *routing_key_carried(current, moved, lost=carried.effect is CarryEffect.LOST))
    impact = plan.impact
    if carried.effect is not None:
        what = (
            "no event has the routing key" if carried.effect is CarryEffect.LOST else "events have other routing keys"
        )
        reason = f"{what} from version {version} on; stored events keep their keys"
        impact += (ValueImpact("/routingKey", carried.effect, version, reason, f"/lens{carried.op}"),)
    return replace(plan, changes=changes, impact=impact, registry=replace(plan.registry, routing_key=moved))


def _apply_search(
    plan: Plan[Registry], registry: Registry, update: SchemaUpdate, rules: SearchRules, crossings: Crossings
) -> Plan[Registry]:
    """The plan with the search configuration of the update, or the current one; checked if it or the version is new."""
    current = plan.registry.search
    wanted = current if update.search is UNSET else update.search
    version = plan.registry.current_version
    refusals: list[Refusal] = []
    if wanted is not None and version == 0:
        reason = "search needs a schema version; send `schema` and `search` together"
        refusals = [Refusal("bad_request", "/search", reason)]
    elif wanted is not None and (not same(current, wanted) or plan.to_version != plan.from_version):
        refusals = _refusals("search_invalid", "/search", rules.check(wanted, version, current))
    if plan.refusals or refusals or wanted is None:
        changes = tuple(search_changes(current, wanted))
        return replace(
            plan,
            changes=plan.changes + changes,
            registry=replace(plan.registry, search=wanted),
            refusals=(*plan.refusals, *refusals),
        )
    carried = rules.carry(registry, wanted, plan.registry, crossings)
    plan = replace(plan, impact=plan.impact + carried.impact)
    if same(carried.search, current):
        # Bindings that are there already are no change; what is lost is one.
        changes = tuple(change for change in carried.changes if change.classification.breaking)
        return replace(plan, changes=plan.changes + changes)
    base = current
    if update.search is UNSET:
        base = carried.search
    elif current is not None:
        base = rules.carry(registry, current, plan.registry, crossings).search
    return replace(
        plan,
        changes=(*plan.changes, *search_changes(base, carried.search), *carried.changes),
        registry=replace(plan.registry, search=carried.search),
    )


def _refusals(code: str, base: str, problems: Iterable[Problem]) -> list[Refusal]:
    return [Refusal(code, base + problem.pointer, problem.reason) for problem in problems]

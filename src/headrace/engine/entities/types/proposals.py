"""Proposals for entity types: the version that a request makes, which becomes active, and the users who follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import uuid4

import msgspec

from headrace.engine.entities.entity_type import schema_of
from headrace.engine.entities.types.journal import NONE, Action, TypeChange
from headrace.engine.entities.types.type_base import TypeBase, followers, next_version, parsed
from headrace.engine.entities.write.store_request import infer_first_schema
from headrace.errors import NoSchemaForEntityType
from headrace.reduce.policies.reducer import policy_hash
from headrace.schema.entity.nodes import Notice, ReducerConfig, Schema
from headrace.schema.entity.plan import plan_activation, plan_registration, plan_update
from headrace.schema.entity.registration import ChangeRequest, TypeRegistration
from headrace.schema.entity.update import apply_update, overlay_schema
from headrace.schema.entity.versions import Bump
from headrace.schema.plan import Effect, Impact, Plan, Refusal
from headrace.storage.entity_types import EVERYBODY, SchemaRow

#: How many versions an owner may have of a type.
MAX_VERSIONS = 1_000
_FULL = "registry_full"
_INHERITED = "GLOBAL_FIELDS_INHERITED"


class OwnerChange(NamedTuple):
    """A change of the schema of one owner."""

    owner: str
    document: TypeChange


class TypeProposal(NamedTuple):
    """A change of an entity type; one that is refused or changes nothing has no changes of owners."""

    base: TypeBase
    plan: Plan[Schema]
    owner_changes: tuple[OwnerChange, ...] = ()
    notices: tuple[Notice, ...] = ()
    #: The version that the change is about, where there is one.
    row: SchemaRow | None = None
    #: How far an update moves the version, and the fields that come and go with it.
    bump: Bump = Bump.NONE
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether the version that it is about is the active one afterwards."""
        row = self.row
        if row is None:
            return False
        if self.owner_changes and self.owner_changes[0].document.active is not None:
            return self.owner_changes[0].document.active == row.schema_version
        return bool(row.active)

    @property
    def activates(self) -> bool:
        """Whether the version that it is about becomes the active one."""
        return bool(self.owner_changes and self.owner_changes[0].document.active)

    def refused(self, refusals: Iterable[Refusal]) -> TypeProposal:
        """The proposal with more refusals, which do away with its changes."""
        more = (*self.plan.refusals, *refusals)
        plan = msgspec.structs.replace(self.plan, refusals=more)
        return self._replace(plan=plan, owner_changes=()) if more else self


#: Makes a proposal from the state of a type; partially applied to a request.
Propose = Callable[[TypeBase], TypeProposal]


def propose_registration(base: TypeBase, registration: TypeRegistration) -> TypeProposal:
    """Register a version; a user's takes in the fields of the global one."""
    schema, notices = _owned(base, registration.schema)
    active = base.active(base.owner)
    impacts = _impacts(base, active, schema)
    plan = plan_registration(active, schema, base.versions(base.owner), impacts)
    notices = (*registration.notices, *notices)
    return _proposal(base, plan, "register", activates=registration.activate, notices=notices)


def propose_update(base: TypeBase, request: ChangeRequest) -> TypeProposal:
    """Make the next version of the schema that holds for the owner."""
    basis = _basis(base)
    if basis is None:
        message = f"no schema of {base.entity_type} holds here that could be updated: register or activate one"
        raise NoSchemaForEntityType(message, entity_type=base.entity_type)
    taken = base.versions(base.owner)
    made = apply_update(basis, request.update, taken)
    if isinstance(made, list):
        return TypeProposal(base, plan_update(basis, request.update, taken))
    plan = plan_update(basis, request.update, taken, _impacts(base, basis, made.schema))
    notices = tuple(made.notices)
    proposal = _proposal(base, plan, "update", activates=request.activate, notices=notices)
    old, new = basis.schema_definition.fields, made.schema.schema_definition.fields
    added, removed = (tuple(name for name in fields if name not in other) for fields, other in ((new, old), (old, new)))
    return proposal._replace(bump=made.bump, added=added, removed=removed)


def propose_activation(base: TypeBase, row: SchemaRow) -> TypeProposal:
    """Make a version that exists the active one."""
    schema, active = schema_of(row), base.active(base.owner)
    plan = plan_activation(active, schema, _impacts(base, active, schema))
    current = base.rows.get(base.owner)
    if current is not None and current.id == row.id:
        return TypeProposal(base, plan, row=current)
    changes = _owner_changes(base, plan, "activate", None, schema)
    return TypeProposal(base, plan, changes, row=_as_active(row, False))


def propose_deactivation(base: TypeBase, row: SchemaRow) -> TypeProposal:
    """Deactivate a version; then the global one holds, or none."""
    schema, current = schema_of(row), base.rows.get(base.owner)
    if current is None or current.id != row.id:
        plan = _plan(base, row.schema_version, row.schema_version, schema)
        return TypeProposal(base, plan, row=_as_active(row, False))
    impact = Impact("snapshots", Effect.REBUILT, base.counts)
    plan = _plan(base, row.schema_version, NONE, schema, impact=(impact,), reasons=(_fallback_reason(base),))
    document = TypeChange("deactivate", active=NONE, from_version=row.schema_version, reasons=plan.reasons)
    return TypeProposal(base, plan, (OwnerChange(base.owner, document),), row=row)


def propose_inferred(base: TypeBase, schema: Schema) -> TypeProposal:
    """Make the first version of a type for a user for whom none holds."""
    if base.rows.get(base.owner) or base.global_schema:
        row = base.rows.get(base.owner) or base.rows[EVERYBODY]
        stored = schema_of(row)
        return TypeProposal(base, _plan(base, row.schema_version, row.schema_version, stored), row=row)
    taken = base.versions(base.owner)
    version = schema.schema_version
    if version in taken:
        version = next_version(str(max(map(parsed, taken))), Bump.MAJOR, taken)
    own = msgspec.structs.replace(schema, scope="user", user_id=base.owner, schema_version=version)
    return _proposal(base, plan_registration(None, own, taken), "infer", activates=True)


def _owned(base: TypeBase, schema: Schema) -> tuple[Schema, tuple[Notice, ...]]:
    """A registered schema with the fields that its owner inherits."""
    if base.owner == EVERYBODY:
        return schema, ()
    own, common = msgspec.structs.replace(schema, user_id=base.owner), base.global_schema
    if common is None:
        return own, ()
    made = msgspec.structs.replace(overlay_schema(own, None, common), base_version=common.schema_version)
    own_fields = own.schema_definition.fields
    inherited = tuple(name for name in made.schema_definition.fields if name not in own_fields)
    message = "these fields come from the global schema"
    return made, (Notice(_INHERITED, message, inherited),) if inherited else ()


def _basis(base: TypeBase) -> Schema | None:
    """The schema that an update starts from: the one that holds for the owner, as their own."""
    common = base.global_schema
    if base.owner == EVERYBODY:
        return common
    own = base.active(base.owner)
    if own is None:
        if common is None:
            return None
        own = msgspec.structs.replace(common, scope="user", user_id=base.owner)
    elif common is not None:
        own = overlay_schema(own, base.made_from(own), common)
    return own if common is None else msgspec.structs.replace(own, base_version=common.schema_version)


def _proposal(
    base: TypeBase,
    plan: Plan[Schema],
    action: Action,
    *,
    activates: bool,
    notices: tuple[Notice, ...] = (),
) -> TypeProposal:
    """A change that makes a version, unless the plan has nothing to make."""
    schema, current = plan.registry, base.rows.get(base.owner)
    if plan.refusals or plan.changes_nothing:
        return TypeProposal(base, plan, notices=notices, row=current or base.rows.get(EVERYBODY))
    if len(base.versions(base.owner)) >= MAX_VERSIONS:
        refusal = Refusal(_FULL, "", f"{base.entity_type} has {MAX_VERSIONS} versions: no more are kept")
        return TypeProposal(base, msgspec.structs.replace(plan, refusals=(refusal,)), notices=notices)
    row = _make_row(schema, base.now_us)
    done = _owner_changes(base, plan, action, row, schema if activates else None)
    return TypeProposal(base, plan, done, notices, row)


def _as_active(row: SchemaRow, active: bool) -> SchemaRow:
    return msgspec.structs.replace(row, active=int(active))


def _plan(
    base: TypeBase,
    from_version: str,
    to_version: str,
    schema: Schema,
    *,
    impact: tuple[Impact, ...] = (),
    reasons: tuple[str, ...] = (),
) -> Plan[Schema]:
    return Plan(
        subject=base.entity_type,
        from_version=from_version,
        to_version=to_version,
        registry=schema,
        impact=impact,
        reasons=reasons,
    )


def propose_record(base: TypeBase, document: TypeChange) -> TypeProposal:
    """Add a document to the journal, with no change of the schema."""
    schema = base.active(base.owner) or base.global_schema or infer_first_schema(base.entity_type, ())
    plan = _plan(base, schema.schema_version, schema.schema_version, schema)
    return TypeProposal(base, plan, (OwnerChange(base.owner, document),))


def _owner_changes(
    base: TypeBase, plan: Plan[Schema], action: Action, made: SchemaRow | None, active: Schema | None
) -> tuple[OwnerChange, ...]:
    """The changes of the owner, and of the users who follow."""
    own = TypeChange(
        action,
        made=made,
        active=None if active is None else active.schema_version,
        from_version=str(plan.from_version),
        to_version=str(plan.to_version),
        changes=tuple(change.dump() for change in plan.changes),
        reasons=plan.reasons,
    )
    follow = followers(base, active) if base.owner == EVERYBODY and active is not None else ()
    return (OwnerChange(base.owner, own), *(_follow(base, schema) for schema in follow))


def _follow(base: TypeBase, schema: Schema) -> OwnerChange:
    user, version = str(schema.user_id), schema.schema_version
    before = base.rows[user].schema_version
    document = TypeChange(
        "follow", made=_make_row(schema, base.now_us), active=version, from_version=before, to_version=version
    )
    return OwnerChange(user, document)


def _make_row(schema: Schema, now_us: int) -> SchemaRow:
    """A version that is to be stored."""
    return SchemaRow(
        id=str(uuid4()),
        entity_type=schema.entity_type,
        schema_version=schema.schema_version,
        scope=schema.scope,
        user_id=schema.user_id or EVERYBODY,
        schema_definition=msgspec.json.encode(schema.schema_definition).decode(),
        reducer_config=msgspec.json.encode(schema.reducer_config).decode(),
        metadata=msgspec.json.encode(schema.metadata).decode(),
        base_version=schema.base_version,
        created_us=now_us,
    )


def _impacts(base: TypeBase, old: Schema | None, new: Schema) -> list[Impact]:
    """The impact of a change on snapshots, and on the schemas of users who follow."""
    before = old or base.global_schema
    config = ReducerConfig({}) if before is None else before.reducer_config
    same = policy_hash(config) == policy_hash(new.reducer_config)
    impacts = [Impact("snapshots", Effect.KEPT if same else Effect.REBUILT, base.counts)]
    if base.owner == EVERYBODY and (users := sum(1 for _ in followers(base, new))):
        impacts.append(Impact("user_schemas", Effect.REBUILT, {"users": users}))
    return impacts


def _fallback_reason(base: TypeBase) -> str:
    """The reason that says which schema holds once the owner has no active version."""
    if base.owner != EVERYBODY and base.global_schema is not None:
        return f"the global version {base.global_schema.schema_version} holds from then on"
    return "no schema holds from then on; what is stored makes one of its own"

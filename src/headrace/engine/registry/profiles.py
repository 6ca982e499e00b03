"""Changes of the profile of a stream.

A profile brings a schema, a routing key and a search configuration to a stream that has no schema yet. What a stream
has is never replaced: there the profile changes only how new entries are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import SERVER, save_registry
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.registry.registry_change import CommitChange, RegistryChanges, RegistrySnapshot, Stage, StageNote
from headrace.engine.registry.schemas import PlannedSchemaChange, Schemas, refused
from headrace.profiles import table
from headrace.profiles.definition import Defaults, Profile
from headrace.schema.canonical import same
from headrace.schema.change import Change, Classification
from headrace.schema.diff import diff
from headrace.schema.plan import Plan, Refusal
from headrace.schema.registry import Registry
from headrace.schema.update import UNSET, SchemaUpdate

#: How many pointers a refusal names.
_MAX_NAMED = 5


class SaveProfile(Stage, frozen=True):
    """A change of the profile of a stream, with its registry, from the next entry on."""

    stream: Stream
    profile: Profile
    registry: Registry
    base: StreamRegistry | None

    def describe(self) -> StageNote:
        """The profile, and the version of the schema that holds with it."""
        facts = {"profile": self.profile.document, "version": self.registry.current_version}
        return StageNote("profile_changed", {"stream": self.stream.name, **facts})

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Store the profile, and the registry where it changes."""
        stream, head, hook = self.stream, batch.draft(self.stream), self.profile.hook
        before = Registry.empty(stream.name) if self.base is None else self.base.registry
        revision, is_changed = 0 if self.base is None else self.base.revision, self.registry != before
        head.registry = None
        if is_changed or revision or hook is not None:
            head.registry = StreamRegistry(self.registry, revision + is_changed, hook)
        if is_changed and head.registry is not None:
            save_registry(batch, stream.id, head.registry)
        batch.streams.update(stream.id, profile=self.profile.text)
        batch.published.mark(stream.id, batch.now_us)


class PlannedProfileChange(PlannedSchemaChange):
    """A plan for the profile of a stream, and for the registry of the profile."""

    def __init__(self, stream: Stream, base: StreamRegistry | None, plan: Plan[Registry], profile: Profile) -> None:
        super().__init__(stream, base, plan)
        self.profile = profile

    def make_stages(self, snapshot: RegistrySnapshot) -> Sequence[Stage]:
        """The profile and its registry, together."""
        return (SaveProfile(self.stream, self.profile, self.plan.registry, self.base),) if self.has_effect else ()

    def publish(self, stages: Sequence[Stage]) -> None:
        """Set the profile of the stream."""
        self.stream.profile = self.profile.text


class Profiles:
    """The verbs of ``_profile``; all run on the event loop."""

    def __init__(self, registry_changes: RegistryChanges, schemas: Schemas) -> None:
        self._changes, self._schemas = registry_changes, schemas

    async def plan(self, stream: Stream, profile: Profile) -> Plan[Registry]:
        """The plan of installing a profile; nothing is changed."""
        change = await self._changes.run(partial(self.prepare, stream, profile), SERVER, dry_run=True)
        return change.planned.plan

    async def apply(self, stream: Stream, profile: Profile, who: str = SERVER) -> Plan[Registry]:
        """Install a profile, whole, or raise the reasons why not."""
        with stream.held():
            change = await self._changes.run(partial(self.prepare, stream, profile), who, stream=stream.name)
        plan = change.planned.plan
        if plan.refusals:
            raise refused(plan.refusals)
        return plan

    async def prepare(self, stream: Stream, profile: Profile) -> PlannedProfileChange:
        """A profile, planned from what the stream has now."""
        base = stream.head.registry
        registry, current = Schemas.registry(stream), table.load(stream.profile)
        refusals = list(_refusals(stream, registry, current, profile))
        update = None if refusals else _update(stream, registry, profile)
        plan = Plan(
            subject=stream.name,
            from_version=registry.current_version,
            to_version=registry.current_version,
            registry=registry,
        )
        reasons = _reasons(stream, registry, profile)
        if update is not None:
            plan = (await self._schemas.prepare(stream, update)).plan
        plan = msgspec.structs.replace(
            plan,
            changes=(*_changes(current, profile), *plan.changes),
            reasons=(*plan.reasons, *reasons),
            refusals=(*refusals, *plan.refusals),
        )
        return PlannedProfileChange(stream, base, plan, profile)


def _refusals(stream: Stream, registry: Registry, current: Profile, profile: Profile) -> list[Refusal]:
    definition = profile.definition
    if definition.needs_json and not stream.is_json:
        reason = f"profile {profile.name} needs an application/json stream; this one holds {stream.content_type}"
        return [Refusal("bad_request", "/profile/kind", reason)]
    if definition.needs_schema and not registry.current_version and stream.head.next_seq:
        reason = f"profile {profile.name} must be installed before appending data, and this stream has events"
        return [Refusal("bad_request", "/profile/kind", reason)]
    if definition.defaults is None or current.name == profile.name or not registry.current_version:
        return []
    return list(_misfits(definition.defaults, registry, profile.name))


def _misfits(defaults: Defaults, registry: Registry, name: str) -> list[Refusal]:
    """Why entries as the profile makes them do not fit the schema of a stream that never had this profile."""
    if any(same(schema, defaults.schema) for schema in registry.schemas.values()):
        return []
    changes = diff(defaults.schema, registry.current_schema)
    breaking = [change for change in changes if change.classification.breaking]
    pointers = list(dict.fromkeys(change.pointer or "their root" for change in breaking))
    if not pointers:
        return []
    more = f" and {len(pointers) - _MAX_NAMED} more places" if len(pointers) > _MAX_NAMED else ""
    named = ", ".join(pointers[:_MAX_NAMED]) + more
    return [
        Refusal("bad_request", "/profile/kind", f"events of profile {name} do not fit the stream's schema at {named}")
    ]


def _update(stream: Stream, registry: Registry, profile: Profile) -> SchemaUpdate | None:
    """What the profile brings along, where there is nothing yet that it could replace."""
    defaults = profile.definition.defaults
    if defaults is None or registry.current_version or stream.head.next_seq:
        return None
    key = defaults.routing_key if registry.routing_key is None else None
    return SchemaUpdate(
        schema=defaults.schema,
        search=UNSET if defaults.search is None else defaults.search,
        routing_key=UNSET if key is None else key,
    )


def _changes(current: Profile, profile: Profile) -> list[Change]:
    if current.text == profile.text:
        return []
    if current.name == profile.name:
        reason = f"the settings of profile {profile.name} change for events from here on"
        return [Change("/profile", "profile_changed", Classification.ADDITIVE, reason)]
    reason = f"events from here on are taken as {profile.name}, were as {current.name}; stored events stay as they are"
    return [Change("/profile/kind", "profile_set", Classification.ADDITIVE, reason)]


def _reasons(stream: Stream, registry: Registry, profile: Profile) -> list[str]:
    defaults = profile.definition.defaults
    if defaults is None:
        return []
    if registry.current_version:
        return [f"the stream has schema version {registry.current_version}, which is kept as it is"]
    if stream.head.next_seq:
        return ["the stream has events and no schema, so it gets none: search and rollups need a new stream"]
    return []

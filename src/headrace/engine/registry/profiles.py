"""Changing the profile of a stream: a plan first, then one commit that installs the profile or nothing.

A profile brings a schema, a routing key and a search configuration to a stream that has no schema yet. What a stream
has is never replaced: there the profile changes only what becomes of new entries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import SERVER, run_change, save_registry
from headrace.engine.log.lifecycle import StreamChange as Step
from headrace.engine.log.stream import Stream
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.log.writer import Writer
from headrace.engine.registry.schemas import Schemas, refused
from headrace.errors import Conflict, NotFound
from headrace.profiles import table
from headrace.profiles.definition import Defaults, Profile
from headrace.schema.canonical import same
from headrace.schema.change import Change, Classification
from headrace.schema.diff import diff
from headrace.schema.plan import Plan, Refusal
from headrace.schema.registry import Registry
from headrace.schema.update import UNSET, SchemaUpdate
from headrace.storage.streams import LIVE

_TRIES = 20
#: Places that a refusal names.
_NAMED = 5


class SetProfile(Step):
    """Another profile for a stream, with the registry it leads to, unless the stream has moved on meanwhile."""

    def __init__(
        self,
        stream: Stream,
        base: StreamRegistry | None,
        profile: Profile,
        planned: Plan[Registry],
        done: Callable[[SetProfile], None],
        who: str = SERVER,
    ) -> None:
        super().__init__(done, pinned=(stream,), size=1000)
        self.stream, self.base, self.profile, self.planned = stream, base, profile, planned
        self.who = who
        self.outdated = False

    def perform(self, batch: Batch) -> None:
        """Let the profile hold from the next entry on."""
        stream, planned, head = self.stream, self.planned, batch.draft(self.stream)
        if head.state != LIVE:
            raise NotFound("the stream was deleted", stream=stream.name)
        is_first = planned.to_version != planned.from_version
        if head.registry is not self.base or (is_first and head.next_seq):
            self.outdated = True
            return
        before = Registry.empty(stream.name) if self.base is None else self.base.registry
        revision = 0 if self.base is None else self.base.revision
        hook, changed = self.profile.hook, planned.registry is not before and planned.registry != before
        if changed or revision or hook is not None:
            head.registry = StreamRegistry(planned.registry, revision + changed, hook)
        else:
            head.registry = None
        if changed and head.registry is not None:
            save_registry(batch, stream.id, head.registry)
        batch.streams.update(stream.id, profile=self.profile.text)
        batch.published.mark(stream.id, batch.now_us)
        facts = {"profile": self.profile.document, "version": planned.to_version}
        batch.note("profile_changed", self.who, stream=stream.name, **facts)
        batch.afterwards.append(lambda: setattr(stream, "profile", self.profile.text))


class Profiles:
    """The verbs of ``_profile``; all run on the event loop."""

    def __init__(self, writer: Writer, schemas: Schemas) -> None:
        self._writer = writer
        self._schemas = schemas

    async def plan(self, stream: Stream, profile: Profile) -> Plan[Registry]:
        """What installing a profile would do; nothing is changed."""
        registry, current = Schemas.registry(stream), table.load(stream.profile)
        refusals = list(_refusals(stream, registry, current, profile))
        update = None if refusals else _update(stream, registry, profile)
        plan = Plan(
            subject=stream.name,
            from_version=registry.current_version,
            to_version=registry.current_version,
            registry=registry,
        )
        if update is not None:
            plan = await self._schemas.plan(stream, update)
        changes = (*_changes(current, profile), *plan.changes)
        reasons = (*plan.reasons, *_reasons(stream, registry, profile))
        return msgspec.structs.replace(plan, changes=changes, reasons=reasons, refusals=(*refusals, *plan.refusals))

    async def apply(self, stream: Stream, profile: Profile, who: str = SERVER) -> Plan[Registry]:
        """Install a profile, whole, or raise the reasons why not."""
        with stream.held():
            for _ in range(_TRIES):
                base = stream.head.registry
                planned = await self.plan(stream, profile)
                if planned.refusals:
                    raise refused(planned.refusals)
                if planned.changes_nothing:
                    return planned
                step = await run_change(self._writer, partial(SetProfile, who=who), stream, base, profile, planned)
                if not step.outdated:
                    return planned
        raise Conflict("the registry keeps changing; read it and try again", stream=stream.name)


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
    more = f" and {len(pointers) - _NAMED} more places" if len(pointers) > _NAMED else ""
    named = ", ".join(pointers[:_NAMED]) + more
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

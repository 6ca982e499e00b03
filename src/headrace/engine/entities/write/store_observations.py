"""Storing observations: one operation of the writer for all of a request, whatever types its entities have.

The commit finds out which observations were stored before and which entities exist, so that the decision whether an
entity may be merged cannot be outdated. A dry run does the same, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Protocol

from headrace.engine.entities.entity_type import EntityType
from headrace.engine.entities.write.store_request import Draft, Prepared, ResolvedType, bodies
from headrace.engine.log.append import Append, find_remembered
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.errors import Conflict, EntityNotFound, IdempotencyCollision
from headrace.schema.entity.nodes import Notice
from headrace.schema.entity.observation import Observation
from headrace.schema.entity.request import Issue, refusal
from headrace.schema.problem import RequestProblem
from headrace.storage.background_requests import Erasures
from headrace.storage.dedupe import Dedupe, Idempotency, StoredAnswer
from headrace.storage.entities import Entities, SourceRange, Sources
from headrace.storage.streams import LIVE


class TypeBatch:
    """Decides in a commit which observations of one type are stored, and which entities they create."""

    def __init__(self, batch: Batch, drafts: list[Draft], user_id: str) -> None:
        typed = drafts[0].typed
        self._user_id = user_id
        self._stream = typed.stream
        self._drafts = self._new_drafts = drafts
        #: New entities: their names, and the positions of their first observations among the new ones.
        self._created: dict[str, tuple[str, int]] = {}
        self.issues: list[Issue] = []
        self.notices: list[tuple[Draft, Notice]] = []
        existing: set[str] = set()
        if self._stream is not None:
            self._new_drafts = self._unstored(batch)
            existing = Entities(batch.connection).existing([draft.identity.entity_id for draft in self._new_drafts])
        for index, draft in enumerate(self._new_drafts):
            self._decide(batch, draft, index, existing)

    def _unstored(self, batch: Batch) -> list[Draft]:
        """The observations that were not stored before."""
        assert self._stream is not None
        head = batch.draft(self._stream)
        assert head.registry is not None and head.registry.hook is not None
        keys: list[str | None] = [draft.key for draft in self._drafts]
        remembered = find_remembered(batch, self._stream.id, head, head.registry.hook, keys, batch.now_us)
        return [draft for draft in self._drafts if draft.key not in remembered] if remembered else self._drafts

    def _decide(self, batch: Batch, draft: Draft, index: int, existing: set[str]) -> None:
        entity_id = draft.identity.entity_id
        if draft.is_targeted and not self._is_owned(batch, entity_id):
            self._refuse(draft, EntityNotFound.code, f"there is no {draft.typed.entity_type} {entity_id}")
        elif entity_id in existing or entity_id in self._created:
            draft.outcome.action = "updated"
            collision = draft.collision()
            if isinstance(collision, RequestProblem):
                self._refuse(draft, collision.code, collision.message, "strict" if draft.strict else "schema_policy")
            elif collision is not None:
                self.notices.append((draft, collision))
        else:
            draft.outcome.action = "created"
            self._created[entity_id] = draft.identity.canonical_name, index

    def _is_owned(self, batch: Batch, entity_id: str) -> bool:
        row = Entities(batch.connection).find(entity_id)
        return (
            row is not None
            and row.user_id == self._user_id
            and self._stream is not None
            and row.stream == self._stream.id
        )

    def _refuse(self, draft: Draft, code: str, message: str, reason: str | None = None) -> None:
        self.issues.append(Issue(code, message, draft.item, draft.typed.entity_type, reason=reason))

    def write(self, batch: Batch, joined: bytes) -> Append | None:
        """Append the new observations, given all of them joined by commas; returns the append, or None for none."""
        stream, drafts = self._stream, self._new_drafts
        if stream is None or not drafts:
            return None
        head = batch.draft(stream)
        first, at_us = head.next_seq, max(batch.now_us, head.last_us)
        Dedupe(batch.connection).save_run(stream.id, [draft.key for draft in drafts], first, at_us)
        if self._created:
            created = [(entity_id, name, first + index) for entity_id, (name, index) in self._created.items()]
            Entities(batch.connection).save(stream.id, self._user_id, at_us, created)
        self._write_sources(batch, stream.id, first, at_us)
        body = joined if drafts is self._drafts else bodies(drafts)
        append = Append(stream, body, len(drafts), _ignore_append)
        append.deduplicated = len(self._drafts) - len(drafts)
        append.route([draft.identity.entity_id for draft in drafts], head)
        append.write(batch, head, at_us)
        return append

    def _write_sources(self, batch: Batch, stream: int, first: int, at_us: int) -> None:
        """Store the ranges of the observations of each source."""
        sources = Sources(batch.connection)
        for source_id, group in groupby(self._new_drafts, key=lambda draft: source_of(draft.observation)):
            count = len(list(group))
            if source_id is not None:
                sources.save(self._user_id, source_id, [SourceRange(stream, first, count, at_us)])
            first += count


def source_of(observation: Observation) -> str | None:
    """The source of an observation; a migrated value belongs to the source of its first observation."""
    return None if observation.kind == "migration" else observation.source_id


def _ignore_append(append: Append) -> None:
    """Do nothing: the operation answers for all of its appends."""


_PREVIEWED = {"created": "would_create", "updated": "would_match_existing", "unchanged": "would_match_existing"}


class TypesOutdated(Conflict):
    """The types of a request have changed since it was prepared: it has to be prepared again."""


class ObservationSource(Protocol):
    """A source of observations, which can be prepared again where a schema has changed meanwhile."""

    user_id: str
    #: A repeated request of the same key and digest gets the same answer.
    idempotency_key: str | None
    digest: bytes
    #: Whether it is stored, or is a dry run.
    commit: bool
    #: The number of erasures of its type when stored data was read for it; None where none was read.
    erasures: int | None

    def prepare(self, typed: Mapping[str, ResolvedType]) -> Prepared:
        """The observations, by the current types, which are given by their names."""

    def answer(self, prepared: Prepared) -> bytes:
        """The answer, once the action of each outcome is decided."""


class StoreObservations(StreamChange):
    """Stores all observations of one request, or none; ``body`` is the answer once it is settled."""

    appends = True
    body = b""
    #: Whether the answer is that of an earlier request.
    replayed = False

    def __init__(
        self,
        source: ObservationSource,
        prepared: Prepared,
        log: Log,
        done: Callable[[StoreObservations], None],
        caller: Any = None,
    ) -> None:
        """``done`` is called with the operation once it is settled; ``caller`` is kept for it."""
        streams = (drafts[0].typed.stream for drafts in prepared.drafts.values())
        super().__init__(
            done,
            pinned=tuple(stream for stream in streams if stream is not None),
            size=sum(map(len, prepared.joined.values())) + 200,
        )
        self.source, self.prepared = source, prepared
        self.log, self.caller = log, caller
        self.written: list[Append] = []

    def answer(self) -> None:
        """Wake the readers of the streams once settled, and answer."""
        if self.settled:
            for append in self.written:
                append.error = self.error
                self.log.settled(append)
        super().answer()

    def perform(self, batch: Batch) -> None:
        """Find the new observations, refuse them all or store them."""
        self.written = []
        if self._is_repeated(batch):
            return
        self._prepare_again(batch)
        prepared, source = self.prepared, self.source
        if source.commit and any(drafts[0].typed.stream is None for drafts in prepared.drafts.values()):
            raise TypesOutdated("a type of the request has no schema yet")
        if source.erasures is not None and any(_erasures(batch, stream) != source.erasures for stream in self.pinned):
            raise TypesOutdated("something was erased meanwhile")
        batches = {name: TypeBatch(batch, drafts, source.user_id) for name, drafts in prepared.drafts.items()}
        self._refuse(batch, list(batches.values()))
        if source.commit:
            appends = [type_batch.write(batch, prepared.joined[name]) for name, type_batch in batches.items()]
            self.written = [append for append in appends if append is not None]
        self._set_actions()
        self.body = source.answer(prepared)
        if source.commit:
            self._save_answers(batch)

    def _is_repeated(self, batch: Batch) -> bool:
        """Whether the request was answered before; another one of the same key is refused."""
        key = self.source.idempotency_key
        answer = None if key is None else Idempotency(batch.connection).find(self.source.user_id, key)
        if answer is None:
            return False
        if answer.digest != self.source.digest:
            raise IdempotencyCollision("this idempotency key was used for another request", idempotency_key=key)
        self.body, self.replayed = answer.answer, self.source.commit
        return self.replayed

    def _prepare_again(self, batch: Batch) -> None:
        """Prepare the request again where a schema has changed since."""
        before = {name: drafts[0].typed for name, drafts in self.prepared.drafts.items()}
        now = {name: _current_type(batch, typed, self.source.user_id) for name, typed in before.items()}
        if any(now[name] is not typed for name, typed in before.items()):
            self.prepared = self.source.prepare(now)

    def _refuse(self, batch: Batch, batches: list[TypeBatch]) -> None:
        issues = [issue for type_batch in batches for issue in type_batch.issues]
        if issues:
            raise refusal(sorted(issues, key=lambda issue: issue.item))
        records = Idempotency(batch.connection)
        for key, draft in self.prepared.keys:
            answer = records.find(self.source.user_id, key)
            if answer is not None and answer.digest != draft.observation.id.encode():
                message = f"the idempotency key of entity {draft.item + 1} was used for something else"
                raise IdempotencyCollision(message, idempotency_key=key, item=draft.item)
        for type_batch in batches:
            for draft, notice in type_batch.notices:
                self.prepared.warnings.add(draft.typed.entity_type, draft.item, [notice])

    def _set_actions(self) -> None:
        for outcome in self.prepared.outcomes:
            outcome.action = outcome.action or "unchanged"
            if not self.source.commit:
                outcome.action = _PREVIEWED[outcome.action]

    def _save_answers(self, batch: Batch) -> None:
        """Save the answer for repeated requests, and the observations of entities with keys of their own."""
        source, records = self.source, Idempotency(batch.connection)
        if source.idempotency_key is not None:
            records.save(source.user_id, source.idempotency_key, StoredAnswer(source.digest, self.body), batch.now_us)
        for key, draft in self.prepared.keys:
            if records.find(source.user_id, key) is None:
                records.save(source.user_id, key, StoredAnswer(draft.observation.id.encode(), b""), batch.now_us)


class DryRunStore(StoreObservations):
    """Checks a request before it creates types: raises what would refuse it, and stores nothing."""

    #: Whether the request was answered before.
    was_answered = False

    def _is_repeated(self, batch: Batch) -> bool:
        super()._is_repeated(batch)
        self.was_answered = bool(self.body)
        return self.was_answered


def _erasures(batch: Batch, stream: Stream) -> int:
    return Erasures(batch.connection).count(stream.id)


def _current_type(batch: Batch, typed: ResolvedType, user_id: str) -> ResolvedType:
    """A type as it is in the commit; the same object where it has not changed."""
    if typed.stream is None:
        return typed
    head = batch.draft(typed.stream)
    if head.state == LIVE and head.registry is typed.registry:
        return typed
    kind = None if head.state != LIVE or head.registry is None else head.registry.hook
    effective = kind.effective(user_id) if isinstance(kind, EntityType) else None
    if effective is None:
        raise TypesOutdated(f"the schema of {typed.entity_type} went away meanwhile", entity_type=typed.entity_type)
    return ResolvedType(typed.entity_type, effective, typed.stream, head.registry)

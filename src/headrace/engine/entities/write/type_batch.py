"""What becomes of observations, decided in their commit: which are new, and which entities there are already."""

from __future__ import annotations

from itertools import groupby

from headrace.engine.entities.write.store_request import Draft, bodies
from headrace.engine.log.append import Append, find_remembered
from headrace.engine.log.batch import Batch
from headrace.errors import EntityNotFound
from headrace.schema.entity.answer import Issue
from headrace.schema.entity.observation import Observation
from headrace.schema.entity.problem import EntityProblem, Notice
from headrace.storage.dedupe import Dedupe
from headrace.storage.entities import Entities, SourceRange, Sources


class TypeBatch:
    """The observations of one type in a request; deciding writes nothing yet."""

    def __init__(self, batch: Batch, drafts: list[Draft], user_id: str) -> None:
        typed = drafts[0].typed
        self._user_id = user_id
        self._stream = typed.stream
        self._drafts = self._fresh = drafts
        #: Entities that are new, with the places of their first observations among the new ones.
        self._created: dict[str, tuple[str, int]] = {}
        self.issues: list[Issue] = []
        self.notices: list[tuple[Draft, Notice]] = []
        there: set[str] = set()
        if self._stream is not None:
            self._fresh = self._unknown(batch)
            there = Entities(batch.connection).known([draft.identity.entity_id for draft in self._fresh])
        for index, draft in enumerate(self._fresh):
            self._decide(batch, draft, index, there)

    def _unknown(self, batch: Batch) -> list[Draft]:
        """The observations that were not stored before."""
        assert self._stream is not None
        head = batch.draft(self._stream)
        assert head.registry is not None and head.registry.hook is not None
        keys: list[str | None] = [draft.key for draft in self._drafts]
        remembered = find_remembered(batch, self._stream.id, head, head.registry.hook, keys, batch.now_us)
        return [draft for draft in self._drafts if draft.key not in remembered] if remembered else self._drafts

    def _decide(self, batch: Batch, draft: Draft, index: int, there: set[str]) -> None:
        entity_id = draft.identity.entity_id
        if draft.is_targeted and not self._is_ours(batch, entity_id):
            self._refuse(draft, EntityNotFound.code, f"there is no {draft.typed.entity_type} {entity_id}")
        elif entity_id in there or entity_id in self._created:
            draft.told.action = "updated"
            collision = draft.collision()
            if isinstance(collision, EntityProblem):
                self._refuse(draft, collision.code, collision.message, "strict" if draft.strict else "schema_policy")
            elif collision is not None:
                self.notices.append((draft, collision))
        else:
            draft.told.action = "created"
            self._created[entity_id] = draft.identity.canonical_name, index

    def _is_ours(self, batch: Batch, entity_id: str) -> bool:
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
        """Store what is new, given all of it joined by commas; answers what was appended, if anything was."""
        stream, fresh = self._stream, self._fresh
        if stream is None or not fresh:
            return None
        head = batch.draft(stream)
        first, at_us = head.next_seq, max(batch.now_us, head.last_us)
        Dedupe(batch.connection).save_run(stream.id, [draft.key for draft in fresh], first, at_us)
        if self._created:
            created = [(entity_id, name, first + index) for entity_id, (name, index) in self._created.items()]
            Entities(batch.connection).save(stream.id, self._user_id, at_us, created)
        self._write_sources(batch, stream.id, first, at_us)
        body = joined if fresh is self._drafts else bodies(fresh)
        part = Append(stream, body, len(fresh), _ignore)
        part.deduplicated = len(self._drafts) - len(fresh)
        part.route([draft.identity.entity_id for draft in fresh], head)
        part.write(batch, head, at_us)
        return part

    def _write_sources(self, batch: Batch, stream: int, first: int, at_us: int) -> None:
        """Note where the observations of each source lie."""
        sources = Sources(batch.connection)
        for source_id, group in groupby(self._fresh, key=lambda draft: source_of(draft.observation)):
            count = len(list(group))
            if source_id is not None:
                sources.save(self._user_id, source_id, [SourceRange(stream, first, count, at_us)])
            first += count


def source_of(observation: Observation) -> str | None:
    """The source that brought an observation; a value that is only observed again was brought before."""
    return None if observation.kind == "migration" else observation.source_id


def _ignore(append: Append) -> None:
    """Whoever stores observations is told of all of them at once."""

"""Every way a request can fail, as one tree.

::

    HeadraceError
     ├─ RequestError              the caller can fix it                          4xx
     │   ├─ BadRequest            a value is wrong; names the field              400
     │   │   ├─ LensUnsound       the lens would break events that exist         400
     │   │   ├─ MissingField      an event lacks a field that is required        400
     │   │   ├─ UnknownField      an event has a field that its source has not   400
     │   │   ├─ SchemaMismatch    a value is not of the type of its field        400
     │   │   ├─ EventTimeAhead    an event happened later than now               400
     │   │   ├─ FeatureNotInTable the table has no such feature                  400
     │   │   ├─ BatchTooLarge     more questions at once than are answered       400
     │   │   ├─ TooManyGroups     an aggregate has more groups than are answered 400
     │   │   ├─ KeyShapeMismatch  the key is not one of the table's keys         400
     │   │   ├─ ForbiddenEntityType  the name looks like that of a test          400
     │   │   ├─ PluralEntityType  the name looks like a plural                   400
     │   │   ├─ ConstraintViolation  a value is not allowed by its schema        400
     │   │   ├─ InvalidCursor     a list cannot go on from there                 400
     │   │   ├─ SourceMismatch    source and source_id are different sources     400
     │   │   └─ StoreResolutionFailed  which entity is meant, or may be, is open 400
     │   ├─ Unauthorized          no key, or a wrong one                         401
     │   ├─ Forbidden             the key may not do this                        403
     │   │   ├─ ProducerFenced    a newer producer epoch has taken over          403
     │   │   ├─ ReservedStream    only the server itself writes to it            403
     │   │   └─ ResetDisabled     reset needs a server in test mode              403
     │   ├─ NotFound              no such stream, key or route                   404
     │   │   ├─ UnknownEvent      no such event source                           404
     │   │   ├─ UnknownTable      no such table                                  404
     │   │   ├─ UnknownEntityType no such entity type, or version of it          404
     │   │   └─ EntityNotFound    no such entity, or somebody else's             404
     │   ├─ MethodNotAllowed      the route exists, the verb does not            405
     │   ├─ Conflict              the state of the stream forbids it             409
     │   │   ├─ StreamClosed      nothing can be appended any more               409
     │   │   ├─ ProducerGap       a producer sequence number is missing          409
     │   │   ├─ SequenceConflict  Stream-Seq does not increase                   409
     │   │   ├─ ManagedStream     changes only through its registry              409
     │   │   ├─ RegistrationConflict  it lacks force, or others forbid it     409
     │   │   ├─ EventsDoNotFit  stored events do not fit a first schema          409
     │   │   ├─ RegistryFull      its history takes no further change            409
     │   │   ├─ VersionTaken      the version of the entity type exists          409
     │   │   ├─ AliasTaken        the name stands for another entity type        409
     │   │   ├─ IdempotencyCollision  the key was used for something else        409
     │   │   ├─ NoSchemaForEntityType  the type has no schema that holds         409
     │   │   ├─ EntityAlreadyMerged  it is merged into another already          409
     │   │   ├─ MergeTargetAlreadyMerged  so is the one to merge it into         409
     │   │   └─ NotRepresentable  an event has no form in the version asked for  409
     │   ├─ Gone                  it existed earlier                             410
     │   │   ├─ OffsetFenced      the offset is not one of this stream          410
     │   │   └─ OffsetGone        the offset lies before the retained start      410
     │   ├─ PreconditionFailed    If-Match names another tail                    412
     │   ├─ TooLarge              body, header or address over its limit         413 414 431
     │   └─ UnsupportedMedia      an encoding we do not speak                    415
     ├─ TimedOut                  working time ran out                           408
     │   └─ AppendTimedOut        the outcome of the append is unknown           408
     ├─ Overloaded                a queue is full; try again                     429
     │   └─ RateLimited           the key uses more than it may in a second      429
     ├─ Unavailable               starting, stopping or out of disk              503
     │   ├─ StoreUnavailable      the object store did not answer                503
     │   └─ Fenced                another node writes to the object store        503
     └─ CorruptData               bytes are not what was written                 500
         └─ ObjectMissing         an object that should be there is not          500

Each class carries its wire ``code`` and ``status``. The constructor takes a sentence and the facts; the facts go
into the body, and those named in ``header_facts`` also into response headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class HeadraceError(Exception):
    """The root: has a stable ``code``, an HTTP ``status``, a sentence and facts."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    header_facts: ClassVar[Mapping[str, str]] = {}
    fixed_headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts), {"args": self.args}

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        return {"error": {"code": self.code, "message": self.message, **self.facts}}

    def headers(self) -> dict[str, str]:
        """The response headers that carry facts of this error."""
        named = ((header, self.facts.get(fact)) for fact, header in self.header_facts.items())
        return {**self.fixed_headers, **{header: str(fact) for header, fact in named if fact is not None}}


def _rebuild(kind: type[HeadraceError], message: str, facts: dict[str, Any]) -> HeadraceError:
    return kind(message, **facts)


class RequestError(HeadraceError):
    """The caller can fix it."""

    code = "bad_request"
    status = 400


class BadRequest(RequestError):
    """A value is wrong; ``field`` says which one."""


class LensUnsound(BadRequest):
    """The lens is not proven to carry every event of the old schema into the new one."""

    code = "lens_unsound"


class MissingField(BadRequest):
    """An event lacks a field that is required and has no default."""

    code = "missing_field"


class UnknownField(BadRequest):
    """An event has a field that its source does not declare."""

    code = "unknown_field"


class SchemaMismatch(BadRequest):
    """A value is not of the type that its field is declared with."""

    code = "schema_mismatch"


class EventTimeAhead(BadRequest):
    """The event time of an event is more than 60 s ahead of the clock, or of the append time that the request gives."""

    code = "event_time_ahead"


class FeatureNotInTable(BadRequest):
    """The table has no such feature."""

    code = "feature_not_in_table"


class BatchTooLarge(BadRequest):
    """A request has too many parts."""

    code = "batch_too_large"


class TooManyGroups(BadRequest):
    """An aggregate has more groups than one answer holds."""

    code = "too_many_groups"


class KeyShapeMismatch(BadRequest):
    """The key has other parts, or of other types, than the table's key."""

    code = "key_shape_mismatch"


class ForbiddenEntityType(BadRequest):
    """The name of an entity type looks like that of a test."""

    code = "ERR_FORBIDDEN_ENTITY_TYPE"


class PluralEntityType(BadRequest):
    """The name of an entity type looks like a plural."""

    code = "ERR_PLURAL_ENTITY_TYPE"


class ConstraintViolation(BadRequest):
    """A value breaks a constraint of its schema, which rejects it."""

    code = "ERR_CONSTRAINT_VIOLATION"


class SourceMismatch(BadRequest):
    """A request names a source, and gives the id of another."""

    code = "source_mismatch"


class InvalidCursor(BadRequest):
    """The cursor of a list is wrong."""

    code = "INVALID_CURSOR"


class StoreResolutionFailed(BadRequest):
    """The entity is ambiguous, or may not be merged with the existing one."""

    code = "ERR_STORE_RESOLUTION_FAILED"


class Unauthorized(RequestError):
    """No key was given, or it is not one of ours."""

    code = "unauthorized"
    status = 401
    fixed_headers = {"www-authenticate": "Bearer"}


class Forbidden(RequestError):
    """The caller is not allowed to do this."""

    code = "forbidden"
    status = 403


class ResetDisabled(Forbidden):
    """A reset needs a server in test mode."""

    code = "reset_disabled_in_production"


class ReservedStream(Forbidden):
    """The stream belongs to the server, which alone writes to it."""

    code = "reserved_stream"


class ProducerFenced(Forbidden):
    """A newer epoch of this producer has taken over."""

    code = "producer_fenced"
    header_facts = {"producer_epoch": "producer-epoch"}


class NotFound(RequestError):
    """There is no such thing."""

    code = "not_found"
    status = 404


class UnknownEvent(NotFound):
    """There is no event source of this name."""

    code = "unknown_event"


class UnknownTable(NotFound):
    """There is no table of this name."""

    code = "unknown_table"


class UnknownEntityType(NotFound):
    """There is no such entity type, or no such version of it."""

    code = "unknown_entity_type"


class EntityNotFound(NotFound):
    """There is no such entity, or it is another user's."""

    code = "RESOURCE_NOT_FOUND"


class MethodNotAllowed(RequestError):
    """The route exists, the verb does not."""

    code = "method_not_allowed"
    status = 405
    header_facts = {"allow": "allow"}


class Conflict(RequestError):
    """The state of the stream forbids it."""

    code = "conflict"
    status = 409


class StreamClosed(Conflict):
    """Nothing can be appended to a closed stream."""

    code = "stream_closed"
    header_facts = {"next_offset": "stream-next-offset"}
    fixed_headers = {"stream-closed": "true"}


class ProducerGap(Conflict):
    """A producer skipped a sequence number."""

    code = "producer_gap"
    header_facts = {"expected_seq": "producer-expected-seq", "received_seq": "producer-received-seq"}


class SequenceConflict(Conflict):
    """``Stream-Seq`` does not increase."""

    header_facts = {"expected_seq": "stream-expected-seq", "received_seq": "stream-received-seq"}


class ManagedStream(Conflict):
    """The stream changes only through its registry."""

    code = "managed_stream"


class RegistrationConflict(Conflict):
    """A registration would take something away and lacks force, or the registry forbids it."""

    code = "registration_conflict"


class EventsDoNotFit(Conflict):
    """Stored events do not fit the first schema of their stream; ``failures`` names the first of them."""

    code = "events_do_not_fit"


class RegistryFull(Conflict):
    """The history of the registry takes no further change."""

    code = "registry_full"


class VersionTaken(Conflict):
    """The version of the entity type exists; what is stored is never changed."""

    code = "version_taken"


class AliasTaken(Conflict):
    """The name stands for another entity type."""

    code = "alias_taken"


class IdempotencyCollision(Conflict):
    """The idempotency key was used for another request."""

    code = "ERR_IDEMPOTENCY_COLLISION"


class NoSchemaForEntityType(Conflict):
    """The entity type has no active schema for the user."""

    code = "ERR_NO_SCHEMA_FOR_ENTITY_TYPE"


class EntityAlreadyMerged(Conflict):
    """The entity is merged into another already."""

    code = "ENTITY_ALREADY_MERGED"


class MergeTargetAlreadyMerged(Conflict):
    """The entity that another is to be merged into was merged itself."""

    code = "MERGE_TARGET_ALREADY_MERGED"


class NotRepresentable(Conflict):
    """An event has no form in the schema version that was asked for."""

    code = "not_representable"


class Gone(RequestError):
    """It existed earlier."""

    code = "gone"
    status = 410


class OffsetFenced(Gone):
    """The offset belongs to another stream, to an earlier one of this name, or to an entry that was lost."""

    code = "offset_fenced"


class OffsetGone(Gone):
    """The offset lies before the first retained entry."""

    code = "offset_gone"
    header_facts = {"earliest_offset": "stream-earliest-offset"}


class PreconditionFailed(RequestError):
    """``If-Match`` names another tail than the stream has."""

    code = "precondition_failed"
    status = 412
    header_facts = {"next_offset": "stream-next-offset"}


class TooLarge(RequestError):
    """The body is over its limit."""

    code = "payload_too_large"
    status = 413


class UriTooLong(TooLarge):
    """The request target is over its limit."""

    code = "uri_too_long"
    status = 414


class UnsupportedMedia(RequestError):
    """The body has an encoding we do not speak."""

    code = "unsupported_media_type"
    status = 415


class HeadersTooLarge(TooLarge):
    """The request's headers are over their limit."""

    code = "headers_too_large"
    status = 431


class TimedOut(HeadraceError):
    """Working time ran out."""

    code = "request_timeout"
    status = 408


class AppendTimedOut(TimedOut):
    """The append was accepted but not answered in time; its outcome is unknown."""

    code = "append_timeout"


class Overloaded(HeadraceError):
    """A queue is full; the same request may succeed later."""

    code = "overloaded"
    status = 429
    header_facts = {"retry_after": "retry-after"}

    def __init__(self, message: str, *, retry_after: int = 1, **facts: Any) -> None:
        super().__init__(message, retry_after=retry_after, **facts)


class RateLimited(Overloaded):
    """The key asks for more in a second than its limits allow; ``unit`` says whether requests or bytes."""

    code = "rate_limited"


class Unavailable(HeadraceError):
    """The server is starting, stopping or cannot write."""

    code = "unavailable"
    status = 503
    header_facts = {"retry_after": "retry-after"}

    def __init__(self, message: str, *, retry_after: int = 5, **facts: Any) -> None:
        super().__init__(message, retry_after=retry_after, **facts)


class StoreUnavailable(Unavailable):
    """The object store did not answer, or refused; nothing is known about what was asked."""

    code = "store_unavailable"


class Fenced(Unavailable):
    """Another node writes to the object store now."""

    code = "node_fenced"


class CorruptData(HeadraceError):
    """Bytes at rest are not what was written; names the object and the check."""

    code = "corrupt_data"


class ObjectMissing(CorruptData):
    """An object that should be there is not."""

    code = "object_missing"


def every_error() -> Iterator[type[HeadraceError]]:
    """Walk the tree from the root."""
    pending: list[type[HeadraceError]] = [HeadraceError]
    while pending:
        kind = pending.pop()
        yield kind
        pending.extend(kind.__subclasses__())

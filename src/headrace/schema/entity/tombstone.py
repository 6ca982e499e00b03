"""What stands where an observation was erased: an entry of the same length that says nothing."""

from __future__ import annotations

from headrace.schema.entity.observation import Observation, encode


def tombstone(entity_type: str, size: int) -> bytes:
    """An entry in the place of one of so many bytes, so that nothing that counts bytes has to be counted again.

    No observation is shorter: each has all its members, and its ids are longer than what is said here of its kind.
    """
    body = encode(
        Observation(
            id="",
            kind="erased",
            entity_id="",
            entity_type=entity_type,
            user_id="",
            schema_version="",
            source_id=None,
            observed_at_us=0,
            source_priority=0,
            observation_source="",
        )
    )
    return body[:-1] + b" " * (size - len(body)) + body[-1:]

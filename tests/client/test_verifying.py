"""Changes held against stored events, from Python."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.client import schemas
from headrace.client.answers import Answer
from headrace.client.schemas import UNSET, Verification
from headrace.errors import BadRequest, EventsDoNotFit

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

WHOLE = {"type": "integer"}
POSITIVE = {"type": "integer", "minimum": 1}


def shape(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}


@pytest.fixture
def stream(client: hr.Client, name: str) -> hr.Stream:
    """A stream with three events at version 1."""
    stream = client.stream(name)
    stream.create()
    stream.evolve(shape(qty=WHOLE))
    stream.append([{"qty": 1}, {"qty": 0}, {"qty": 2}])
    return stream


def test_a_change_that_events_do_not_carry_is_told_with_the_events(stream: hr.Stream) -> None:
    told: list[hr.Verification] = []
    plan, found = stream.verify(shape(qty=POSITIVE), tell=told.append).plan, told[-1]
    assert [refusal["code"] for refusal in plan.refusals] == ["lens_required"]
    assert found.state == "done"
    assert found.ended is True
    assert found.passed is False
    assert found.events == 3
    assert found.total == 3
    assert found.failing == {"lens": 0, "schema": 1, "key": 0}
    (misfit,) = found.failures
    assert isinstance(misfit, hr.Misfit)
    assert misfit.seq == 1
    assert misfit.cause == "schema"
    assert misfit.pointer == "/qty"
    assert misfit.offset < found.through_offset == stream.info().next_offset
    assert stream.schema()["currentVersion"] == 1


def test_a_change_that_all_events_carry_passes(stream: hr.Stream) -> None:
    verified = stream.verify(shape(qty={"type": "integer", "minimum": 0}))
    assert verified.verification is not None and verified.verification.passed
    assert verified.plan == stream.evolve(shape(qty={"type": "integer", "minimum": 0}), dry_run=True)


def test_a_change_without_a_version_is_held_against_nothing(stream: hr.Stream) -> None:
    verified = stream.verify(routing_key={"jsonPointer": "/qty", "required": False})
    assert verified.verification is None
    assert verified.plan.changes


def test_the_async_client_does_the_same(server: ServerProcess, stream: hr.Stream) -> None:
    async def main() -> None:
        async with hr.AsyncClient(server.url) as client:
            same = client.stream(stream.name)
            told: list[hr.Verification] = []
            verified = await same.verify(shape(qty=POSITIVE), tell=told.append)
            assert verified.verification == told[-1]
            assert told[-1].failing == {"lens": 0, "schema": 1, "key": 0}
            assert (await same.verify(search=None)).verification is None

    asyncio.run(main())


def test_a_dry_run_on_data_is_asked_for_as_such() -> None:
    request = schemas.evolve("x", True, None, routing_key=UNSET, search=UNSET, dry_run=True, on_data=True)
    assert request.target == "/v1/stream/x/_schema?dry_run=true&on_data=true"
    assert schemas.verification("a b", "c/d").target == "/v1/stream/a%20b/_schema/verifications/c%2Fd"


def test_looks_become_rarer() -> None:
    assert list(islice(schemas.poll_pauses(), 8)) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("body", [b"{}", b'{"verification": {"id": 5}}', b"["])
def test_answer_that_is_no_verification_is_a_bad_answer(body: bytes) -> None:
    with pytest.raises(hr.BadAnswer):
        schemas.read_verified(Answer(202, {}, body))
    with pytest.raises(hr.BadAnswer):
        Answer(200, {}, body).decode(Verification)


def test_first_schema_is_installed_on_events_that_fit(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    stream.append([{"qty": 1}, {"qty": 0}])
    with pytest.raises(BadRequest, match="first_on_data=true"):
        stream.evolve(shape(qty=WHOLE))
    with pytest.raises(EventsDoNotFit) as refusal:
        stream.evolve(shape(qty=POSITIVE), first_on_data=True)
    assert [failure["seq"] for failure in refusal.value.facts["failures"]] == [1]
    verified = stream.verify(shape(qty=POSITIVE), first_on_data=True)
    assert verified.plan.refusals == []
    assert verified.verification is not None and not verified.verification.passed
    plan = stream.evolve(shape(qty=WHOLE), first_on_data=True)
    assert (plan.from_version, plan.to_version) == (0, 1)
    assert [batch.items for batch in stream.read(schema_version=1)] == [[{"qty": 1}, {"qty": 0}]]

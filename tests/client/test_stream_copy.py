"""The events of a stream as observations: each once, with its offset, whatever happens to the stream meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import headrace as hr
from headrace import errors
from headrace.client import stream_copy
from headrace.client.answers import Answer
from headrace.client.entities import Entities
from headrace.client.stream_copy import RejectedEvent, StreamCopy
from headrace.format import offset as offsets

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

_numbers = itertools.count(1)
FIELDS = {"email": "/customer/email", "age": "/customer/age"}


class Story:
    """A stream and an entity type of their own on the shared server."""

    def __init__(self, client: hr.Client) -> None:
        number = next(_numbers)
        self.client, self.entities = client, Entities(client)
        self.stream, self.type = client.stream(f"copied{number}"), f"copied{number}x"
        definition = {
            "fields": {
                "email": {"type": "string"},
                "age": {"type": "number", "constraints": {"max": 150}},
            },
            "canonical_name_fields": ["email"],
        }
        self.entities.register(self.type, "1.0.0", definition, {"merge_policies": {}}, activate=True)

    def fill(self, count: int, **options: Any) -> None:
        self.stream.create(**options)
        if count:
            self.append(range(count))

    def append(self, numbers: Iterable[int]) -> None:
        self.stream.append([event(number) for number in numbers])

    def copy(self, fields: dict[str, str] | None = FIELDS, **options: Any) -> hr.ObservedStream:
        return self.entities.observe_stream(self.stream.name, self.type, fields, **options)

    def observations(self) -> list[dict[str, Any]]:
        return [
            observation
            for entity in self.entities.list(self.type)
            for observation in self.entities.observations(entity.entity_id, order="oldest")
        ]

    def ages(self) -> list[int]:
        return sorted(observation["fields"]["age"] for observation in self.observations())


def event(number: int) -> dict[str, Any]:
    return {"customer": {"email": f"u{number % 3}@x.org", "age": number}, "at": 1_700_000_000 + number, "other": True}


@pytest.fixture
def story(server: ServerProcess) -> Iterator[Story]:
    with hr.Client(server.url) as client:
        yield Story(client)


def test_a_second_run_stores_only_what_is_new(story: Story) -> None:
    story.fill(10)
    first = story.copy()
    assert (first.events, first.actions, first.rejected) == (10, {"created": 3, "updated": 7}, 0)
    assert first.next_offset == story.stream.info().next_offset and first.source == story.stream.name
    story.append(range(10, 15))
    assert story.copy().actions == {"unchanged": 10, "updated": 5}
    assert story.copy(offset=first.next_offset).actions == {"unchanged": 5}
    assert story.ages() == list(range(15))
    assert {observation["source"]["name"] for observation in story.observations()} == {story.stream.name}


def test_each_observation_names_its_event(story: Story) -> None:
    story.fill(5)
    story.copy()
    for observation in story.observations():
        origin = observation["origin"]
        [[first]] = [batch.items[-1:] for batch in story.stream.read(before=origin["offset"])]
        assert origin["stream"] == story.stream.name and first["customer"]["age"] == observation["fields"]["age"]


def test_a_time_in_events_counts_and_else_their_order(story: Story) -> None:
    story.fill(6)
    story.copy(observed_at_field="at", observed_at_unit="s", source="crm")
    seconds = [1_700_000_000 + number for number in range(6)]
    moments = [observation["observed_at"] for observation in story.observations()]
    assert sorted(moments) == [f"2023-11-14T22:13:{second - 1_699_999_980:02}Z" for second in seconds]
    newest = {entity.snapshot["email"]: entity.snapshot["age"] for entity in story.entities.list(story.type)}
    assert newest == {"u0@x.org": 3, "u1@x.org": 4, "u2@x.org": 5}
    story.copy()  # observed now, in the order of the stream
    newest = {entity.snapshot["email"]: entity.snapshot["age"] for entity in story.entities.list(story.type)}
    assert newest == {"u0@x.org": 3, "u1@x.org": 4, "u2@x.org": 5}


def test_events_that_do_not_fit_are_named_and_the_others_stored(story: Story) -> None:
    story.stream.create()
    story.stream.append([event(1), {"x": 1}, event(200), [1], event(2)])
    rejects: list[RejectedEvent] = []
    result = story.copy(on_rejected=rejects.append)
    assert result.rejected == 3 and result.actions == {"created": 2} and result.events == 5
    assert result.rejects == rejects
    positions = {offsets.decode(reject.offset).position: reject.reason for reject in rejects}
    assert set(positions) == {2, 3, 4}
    assert "none of the mapped fields" in positions[2] and "150" in positions[3] and "object" in positions[4]
    assert msgspec.json.decode(next(reject.text for reject in rejects if "150" in reject.reason)) == event(200)


def test_another_mapping_or_version_or_priority_is_another_copy(story: Story) -> None:
    story.fill(1)
    assert story.copy().actions == {"created": 1}
    assert story.copy({"email": "/customer/email"}).actions == {"updated": 1}
    assert story.copy(source_priority=5).actions == {"updated": 1}
    assert story.copy(source="crm").actions == {"updated": 1}
    assert story.copy(commit=False).actions == {"would_match_existing": 1}
    assert len(story.observations()) == 4


def test_a_lens_between_two_runs_repeats_nothing_and_new_events_are_read_in_their_new_shape(story: Story) -> None:
    story.stream.create()
    schema = {"type": "object", "properties": {"mail": {"type": "string"}}, "required": ["mail"]}
    story.stream.evolve({**schema, "additionalProperties": False})
    story.stream.append({"mail": "ada@x.org"})
    assert story.copy({"email": "mail"}).actions == {"created": 1}
    renamed = {"type": "object", "properties": {"email": {"type": "string"}}, "required": ["email"]}
    lens = {
        "apiVersion": "durable.lens/v1",
        "schema": story.stream.name,
        "from": 1,
        "to": 2,
        "ops": [{"op": "rename", "from": "/mail", "to": "/email"}],
    }
    story.stream.evolve({**renamed, "additionalProperties": False}, lens)
    story.stream.append({"email": "bob@x.org"})
    assert story.copy({"email": "email"}).actions == {"updated": 1, "created": 1}  # another mapping: Ada again
    assert story.copy({"email": "email"}).actions == {"unchanged": 2}
    assert story.copy({"email": "mail"}, schema_version=1).actions == {"updated": 2}
    assert {entity.snapshot["email"] for entity in story.entities.list(story.type)} == {"ada@x.org", "bob@x.org"}


def test_a_fork_and_a_stream_that_is_created_anew_are_other_streams(story: Story) -> None:
    story.fill(4)
    story.copy()
    fork = story.stream.fork(f"{story.stream.name}-fork")
    fork.append([event(number) for number in (4, 5)])
    result = story.entities.observe_stream(fork.name, story.type, FIELDS)
    assert result.actions == {"updated": 6}
    named = {
        observation["origin"]["offset"]
        for observation in story.observations()
        if observation["origin"]["stream"] == fork.name
    }
    for offset in named:  # every one of them is an offset of the fork
        assert list(fork.read(offset))
    assert story.entities.observe_stream(fork.name, story.type, FIELDS).actions == {"unchanged": 6}
    fork.delete()
    again = story.client.stream(fork.name)
    again.create()
    again.append(event(9))
    assert story.entities.observe_stream(fork.name, story.type, FIELDS).actions == {"updated": 1}


def test_what_is_not_retained_is_counted(story: Story) -> None:
    story.fill(0, retention_bytes=0)
    story.append(range(3))
    story.append(range(3, 5))
    story.client.send(hr.client.requests.seal(story.stream.name))
    first = next(iter(story.stream.read()))
    retained = len(first.items)
    result = story.copy()
    assert (result.not_retained, result.events) == (5 - retained, retained)


def test_streams_of_the_server_and_those_that_are_not_json_are_refused(story: Story) -> None:
    for name in (f"entities/{story.type}", "__registry__"):
        with pytest.raises(errors.BadRequest, match="of the server itself"):
            story.entities.observe_stream(name, story.type, FIELDS)
    story.stream.create(content_type="text/plain")
    with pytest.raises(errors.BadRequest, match="text/plain"):
        story.copy()
    with pytest.raises(errors.BadRequest, match="offset"):
        StreamCopy(story.stream.name, story.type, offset="5").accept(details(1))
    with pytest.raises(errors.NotFound):
        story.entities.observe_stream("nothing-is-here", story.type, FIELDS)
    with pytest.raises(TypeError, match="observed_at_field"):
        story.copy(observed_at_fields="at")
    with pytest.raises(errors.BadRequest, match="not both"):
        story.copy(observed_at_field="at", observed_at="2026-01-01")


def test_the_client_that_awaits_does_the_same(story: Story) -> None:
    story.fill(3)
    progress: list[tuple[int, int]] = []

    async def copy() -> hr.ObservedStream:
        async with hr.AsyncApp(story.client.settings.url) as app:
            return await app.entities.observe_stream(
                story.stream.name, story.type, FIELDS, on_progress=lambda *counts: progress.append(counts)
            )

    assert asyncio.run(copy()).actions == {"created": 3} and progress == [(3, 3)]


def details(count: int, *epochs: tuple[int, int]) -> Answer:
    parts = [{"epoch": epoch, "after": str(after)} for epoch, after in epochs or ((0, 0),)]
    stream = {"content_type": "application/json", "next_offset": str(count), "epochs": parts}
    return Answer(200, {}, msgspec.json.encode({"stream": stream}))


def page(items: list[Any], end: str) -> Answer:
    headers = {"content-type": "application/json", "stream-next-offset": end}
    return Answer(200, headers, msgspec.json.encode(items))


def stored(request: Any) -> tuple[list[dict[str, Any]], Answer]:
    """The entities of a request, and the answer that they are stored."""
    entities = msgspec.json.decode(request.body)["entities"]
    outcome = {"entity_id": "e", "entity_type": "t", "action": "updated", "observation_id": "o", "schema_version": "1"}
    return entities, Answer(200, {}, msgspec.json.encode({"entities": [outcome] * len(entities), "source_id": "s"}))


def test_each_event_has_the_offset_of_its_own_epoch_however_pages_are_cut() -> None:
    copy = StreamCopy("s", "t", {"n": "n"})
    copy.next_request()
    copy.accept(details(6, (0, 0), (3, 2), (7, 5)))
    seen: list[str] = []
    pages = iter([page([{"n": 1}, {"n": 2}, {"n": 3}], offsets.encode(3, 3)), page([{"n": 4}], offsets.encode(3, 4)),
                  page([{"n": 5}, {"n": 6}, {"n": 7}], offsets.encode(7, 7))])  # fmt: skip
    while (request := copy.next_request()) is not None:
        if request.method == "GET":
            copy.accept(next(pages))
            continue
        entities, answer = stored(request)
        seen += [entity["_meta"]["origin"]["offset"] for entity in entities]
        copy.accept(answer)
    epochs = [(0, 1), (0, 2), (3, 3), (3, 4), (3, 5), (7, 6)]
    assert seen == [offsets.encode(*parts) for parts in epochs]  # the seventh came after the copy had begun
    assert copy.result().next_offset == seen[-1] and copy.result().events == 6


def test_a_batch_that_is_too_large_is_halved_until_one_event_is() -> None:
    copy = StreamCopy("s", "t")
    copy.next_request()
    copy.accept(details(4))
    copy.next_request()
    copy.accept(page([{"n": number} for number in range(4)], offsets.encode(0, 4)))
    sent: list[int] = []
    while (request := copy.next_request()) is not None:
        entities, answer = stored(request)
        if any(entity["n"] == 2 for entity in entities):
            copy.refuse(errors.TooLarge("the body is too large"))
        else:
            sent += [entity["n"] for entity in entities]
            copy.accept(answer)
    assert sent == [0, 1, 3]
    [rejected] = copy.result().rejects
    assert rejected.offset == offsets.encode(0, 3) and rejected.reason == "the body is too large"


def test_events_that_went_while_they_were_read_are_counted_and_a_new_stream_is_no_continuation() -> None:
    copy = StreamCopy("s", "t")
    copy.next_request()
    copy.accept(details(5))
    copy.next_request()
    copy.accept(page([{"n": 1}], offsets.encode(0, 1)))
    copy.accept(stored(copy.next_request())[1])
    copy.next_request()
    copy.refuse(errors.OffsetGone("the offset lies before the first retained entry"))
    assert "offset=-1" in getattr(copy.next_request(), "target", "")
    copy.accept(page([{"n": 4}, {"n": 5}], offsets.encode(0, 5)))
    copy.accept(stored(copy.next_request())[1])
    assert copy.next_request() is None
    assert (copy.result().not_retained, copy.result().events) == (2, 3)
    other = StreamCopy("s", "t")
    other.next_request()
    other.accept(details(5))
    other.next_request()
    with pytest.raises(hr.BadAnswer, match="created anew"):
        other.accept(page([{"n": 1}], offsets.encode(9, 1)))


def test_requests_are_bounded_by_events_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_copy, "BATCH_EVENTS", 3)
    monkeypatch.setattr(stream_copy, "BATCH_BYTES", 40)
    copy = StreamCopy("s", "t", now_us=lambda: 1_000)
    copy.next_request()
    copy.accept(details(6))
    copy.next_request()
    events = [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}, {"n": "x" * 40}, {"n": 6}]
    copy.accept(page(events, offsets.encode(0, 6)))
    sizes, moments = [], []
    while (request := copy.next_request()) is not None:
        entities, answer = stored(request)
        sizes.append(len(entities))
        moments += [entity["_meta"]["observed_at"] for entity in entities]
        copy.accept(answer)
    assert sizes == [3, 1, 1, 1]
    assert moments == sorted(set(moments)) and len(moments) == 6

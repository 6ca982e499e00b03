"""Sources: what requests brought is put together again, wherever its observations lie."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.entities.store import CONTACT, Store
from headrace.engine.log.batch import Batch
from headrace.errors import NotFound
from headrace.schema.entity.request import address_of_contents
from headrace.schema.entries import entries_of

ADA = {"entity_type": "contact", "email": "ada@example.com", "name": "Ada", "nick": None, "born": 5}
BOB = {"entity_type": "Contact", "email": "bob@example.com", "_meta": {"source_priority": 5}}
BOOK = {"entity_type": "book", "title": "Dune", "pages": [1, 2.5]}


def test_a_source_is_what_was_given_and_its_id_proves_it(contacts: Store) -> None:
    entities = [BOOK, ADA, BOB, ADA]
    source_id = contacts.store(*entities)["source_id"]
    source = contacts.source(source_id)
    assert source.entities == entities
    assert source.complete is True
    assert source.content_addressed is True
    assert address_of_contents(source.entities, "local") == source_id
    assert len(source.observations) == 3 and {one.item for one in source.observations} == {0, 1, 2}


def test_a_source_that_came_twice_with_other_things_said_is_there_once(contacts: Store) -> None:
    source_id = contacts.store(ADA, BOOK)["source_id"]
    assert contacts.store(ADA, BOOK, observed_at="2026-01-01T00:00:00Z")["source_id"] == source_id
    source = contacts.source(source_id)
    assert source.entities == [ADA, BOOK] and len(source.observations) == 4


def test_a_source_with_a_name_grows_with_every_request(contacts: Store) -> None:
    contacts.store(ADA, source_id="file.csv")
    contacts.rig.clock.us += 1
    answer = contacts.store(ADA, BOB, source_id="file.csv")
    assert contacts.actions(answer) == ["unchanged", "created"]
    assert answer["source_id"] == "file.csv"
    source = contacts.source("file.csv")
    assert source.entities == [ADA, BOB]
    assert source.complete is True
    assert source.content_addressed is False


def test_entities_that_name_sources_of_their_own_belong_to_those(contacts: Store) -> None:
    other = {**ADA, "_meta": {"source_id": "letter"}}
    source_id = contacts.store(other, BOB)["source_id"]
    assert contacts.source(source_id).entities == [BOB] and contacts.source(source_id).complete
    assert contacts.source("letter").entities == [other]


def test_sources_of_others_are_not_there(contacts: Store) -> None:
    source_id = contacts.store(ADA, user="ann")["source_id"]
    assert contacts.source(source_id, "ann").complete
    for user, wanted in (("local", source_id), ("ann", "src_x")):
        with pytest.raises(NotFound):
            contacts.source(wanted, user)


def test_a_source_is_found_in_segments_too(contacts: Store) -> None:
    ids = [contacts.store({**ADA, "age": age}, {**BOB, "age": age})["source_id"] for age in range(5)]
    contacts.rig.publish("entities/contact")
    contacts.store(ADA)
    for age, source_id in enumerate(ids):
        source = contacts.source(source_id)
        assert source.complete and source.entities == [{**ADA, "age": age}, {**BOB, "age": age}]


def test_a_source_of_which_something_is_gone_says_so(contacts: Store) -> None:
    source_id = contacts.store(ADA, BOB)["source_id"]
    contacts.rig.run(contacts.engine.apply(erase_first))
    source = contacts.source(source_id)
    assert source.entities == [BOB]
    assert source.complete is False


def erase_first(batch: Batch) -> None:
    """Let something else stand in the place of the first entry."""
    body = next(batch.connection.execute("SELECT body FROM wal"))[0]
    rest = [bytes(entry) for entry in entries_of(body)][1:]
    batch.connection.execute("UPDATE wal SET body = ?", (b",".join([b'{"erased":true}', *rest]),))


keys = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
members = st.dictionaries(st.sampled_from([*CONTACT["fields"], "nick"]) | keys, values, max_size=8)


def entity(given: dict[str, Any], number: int) -> dict[str, Any]:
    told = {name: value for name, value in given.items() if name not in ("entity_type", "_meta", "age")}
    return {**told, "entity_type": "contact", "email": f"{number}@example.com"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(members, min_size=1, max_size=6))
def test_fields_and_fragments_and_sources_reproduce_whatever_is_given(contacts: Store, given: list[Any]) -> None:
    entities = [entity(one, number) for number, one in enumerate(given)]
    answer = contacts.store(*entities)
    source = contacts.source(answer["source_id"])
    assert source.complete and source.entities == entities
    assert address_of_contents(source.entities, "local") == source.source_id

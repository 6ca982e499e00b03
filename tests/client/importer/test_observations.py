"""Rows of files as observations: each once, values as the type declares them, and bad rows counted and named."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.client import Client
from headrace.client.entities import Entities
from headrace.client.entity_requests import ObservationCounts
from headrace.client.importer import observations
from headrace.client.importer.observations import ObservationImporter
from headrace.client.importer.reader import RowReader
from headrace.client.row_batches import BadRow

if TYPE_CHECKING:
    from conftest import ServerProcess

_numbers = itertools.count(1)
FIELDS = {
    "email": "string", "zip": "string", "age": "number", "active": "boolean", "joined": "date", "tags": "array",
    "address": "object",
}  # fmt: skip


class Customers:
    """An entity type of its own for each test, and files that are stored as its observations."""

    def __init__(self, client: Client, directory: Path) -> None:
        self.client, self.entities, self.directory = client, Entities(client), directory
        number = next(_numbers)
        self.type, self.source = f"imported{number}x", f"crm {number}"
        definition = {
            "fields": {name: {"type": kind} for name, kind in FIELDS.items()},
            "canonical_name_fields": ["email"],
        }
        definition["fields"]["age"]["constraints"] = {"max": 150}  # type: ignore[index]
        self.entities.register(self.type, "1.0.0", definition, {"merge_policies": {}}, activate=True)

    def store(self, content: str, suffix: str = "csv", **options: Any) -> tuple[ObservationCounts, list[BadRow]]:
        path = self.directory / f"rows.{suffix}"
        path.write_text(content)
        types = observations.read_field_types(self.client, self.type)
        reader = RowReader([path], text_columns=[name for name, kind in types.items() if kind != "date"])
        bad: list[BadRow] = []
        try:
            importer = ObservationImporter(
                self.client, reader, self.type, {"source": self.source}, field_types=types, **options
            )
            return importer.run(lambda count: None, bad.append), bad
        finally:
            reader.close()

    def snapshots(self) -> dict[str, dict[str, Any]]:
        return {entity.snapshot["email"]: entity.snapshot for entity in self.entities.list(self.type)}


@pytest.fixture
def customers(server: ServerProcess, tmp_path: Path) -> Iterator[Customers]:
    with Client(server.url) as client:
        yield Customers(client, tmp_path)


def test_cells_become_values_of_the_types_that_fields_declare(customers: Customers) -> None:
    counts, bad = customers.store(
        "email,zip,age,active,joined,tags,address,plan\n"
        'ada@x.org,01234,36.50,TRUE,2026-01-02 10:00:00,"[""a"",""b""]","{""city"": ""London""}",gold\n'
        "bob@x.org,99999,n/a,no,2026-01-03 10:00:00,,,\n"
    )
    assert not bad and counts.actions == {"created": 2} and counts.rows == 2
    snapshots = customers.snapshots()
    assert snapshots["ada@x.org"] == {
        "email": "ada@x.org", "zip": "01234", "age": 36.5, "active": True, "joined": "2026-01-02T10:00:00Z",
        "tags": ["a", "b"], "address": {"city": "London"},
    }  # fmt: skip
    assert snapshots["bob@x.org"] == {"email": "bob@x.org", "zip": "99999", "joined": "2026-01-03T10:00:00Z"}
    assert counts.warnings["UNKNOWN_FIELD"] == 3  # plan, and what is no number and no boolean, is kept as a fragment
    source = customers.entities.source(customers.source)
    assert source["entities"][1]["age"] == "n/a" and source["entities"][0]["plan"] == "gold"


def test_a_second_run_stores_nothing_and_an_empty_cell_clears_nothing(customers: Customers) -> None:
    rows = "email,zip\nada@x.org,1\nbob@x.org,2\n"
    assert customers.store(rows)[0].actions == {"created": 2}
    assert customers.store(rows)[0].actions == {"unchanged": 2}
    assert customers.store(rows + "ada@x.org,\n")[0].actions == {"unchanged": 2, "updated": 1}
    assert customers.snapshots()["ada@x.org"]["zip"] == "1"
    assert customers.store('{"email": "ada@x.org", "zip": null}\n', "jsonl")[0].actions == {"updated": 1}
    assert "zip" not in customers.snapshots()["ada@x.org"]


def test_bad_rows_are_named_and_the_others_are_stored(customers: Customers) -> None:
    lines = [json.dumps({"email": f"u{number}@x.org", "age": number}) for number in range(200)]
    lines[3:3] = ["[1]", "{no json", '{"age": 5}', '{"email": "e@x.org", "_meta": {"source": " "}}']
    counts, bad = customers.store("\n".join(lines), "jsonl")
    assert counts.actions == {"created": 151} and counts.rejected == len(bad) == 53 and counts.rows == 204
    assert sorted(row.number for row in bad if row.number < 10) == [4, 5, 6, 7]
    assert all("150" in row.reason for row in bad if row.number > 10)
    assert {row.number for row in bad if row.number > 10} == set(range(156, 205))


def test_a_column_says_when_each_row_was_observed(customers: Customers) -> None:
    rows = "email,zip,at\nada@x.org,new,2026-01-02T00:00:00Z\nada@x.org,old,2026-01-01T00:00:00Z\nbob@x.org,1,\n"
    counts, bad = customers.store(rows, observed_at_field="at")
    assert counts.actions == {"created": 1, "updated": 1}
    assert [(row.number, row.reason) for row in bad] == [(3, "no value in at")]
    [ada] = customers.entities.list(customers.type)
    assert ada.snapshot == {"email": "ada@x.org", "zip": "new"}
    assert ada.last_observation_at == "2026-01-02T00:00:00Z"
    _, bad = customers.store("email,at\nada@x.org,soon\n", observed_at_field="at")
    assert len(bad) == 1 and "soon" in bad[0].reason


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**53), 2**53)), min_size=1, max_size=30), st.data())
def test_rows_are_stored_once_wherever_a_run_was_stopped(
    server: ServerProcess, tmp_path: Path, rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    with Client(server.url) as client:
        customers = Customers(client, tmp_path)
        lines = [json.dumps({"email": f"u{person}@x.org", "zip": str(value)}) for person, value in rows]
        stopped = data.draw(st.integers(1, len(lines)))
        customers.store("\n".join(lines[:stopped]), "jsonl")
        customers.store("\n".join(lines), "jsonl")
        stored = [
            (observation["fields"]["email"], observation["fields"]["zip"], observation["source"]["name"])
            for entity in customers.entities.list(customers.type)
            for observation in customers.entities.observations(entity.entity_id)
        ]
        expected = {(f"u{person}@x.org", str(value), customers.source) for person, value in rows}
        assert len(stored) == len(expected) and set(stored) == expected

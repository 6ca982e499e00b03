"""Storing the rows of files as observations of entities: each row once, however often the files are stored.

The id of an observation is a hash of what it says and of its source, so a run that was stopped is run again from the
beginning: the server has what is there already, and answers ``unchanged``. Equal rows of one source are one
observation, unless their moments differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.client.client import Client
from headrace.client.entities import Entities
from headrace.client.entity_requests import ObservationCounts, StoreOptions, list_refused_items
from headrace.client.importer.reader import RowReader
from headrace.client.row_batches import BadRow
from headrace.errors import BadRequest, UnknownEntityType
from headrace.types import parse_timestamp_us

#: A request has at most so many rows and about so many bytes: one that is refused is sent again without the bad rows.
BATCH_ROWS, BATCH_BYTES = 1_000, 2 * 1024 * 1024
_DECODE_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_BOOLEAN = re.compile("true|false", re.IGNORECASE)
#: How cells spell values of types that are no text.
_SPELLED = {
    "number": re.compile(r"-?[0-9.]+([eE][+-]?[0-9]+)?"),
    "boolean": _BOOLEAN,
    "array": re.compile(r"\[.*\]", re.DOTALL),
    "object": re.compile(r"\{.*\}", re.DOTALL),
}


class EntityRow(NamedTuple):
    """A row of a file as an entity of a request."""

    path: str
    number: int
    text: str
    entity: dict[str, Any]


def read_field_types(client: Client, entity_type: str) -> dict[str, str]:
    """The types of the fields that the caller's schema of a type declares; none where there is no such type yet."""
    try:
        fields = Entities(client).types.get(entity_type).schema_definition["fields"]
    except UnknownEntityType:
        return {}
    return {name: field["type"] for name, field in fields.items()}


class ObservationImporter:
    """Stores the rows of a reader as observations of one entity type."""

    def __init__(
        self,
        client: Client,
        reader: RowReader,
        entity_type: str,
        options: StoreOptions,
        *,
        field_types: Mapping[str, str] = {},
        observed_at_field: str | None = None,
        read_moment: Callable[[str], str | None] = str,
    ) -> None:
        """``field_types`` are declared ones; the reader is to give cells in such columns as text.

        ``observed_at_field`` says when a row was observed; it is a field of the entity only if it is declared.
        """
        self._entities, self._reader = Entities(client), reader
        self._entity_type, self._options = entity_type, options
        self._field_types = field_types
        self._observed_at_field, self._read_moment = observed_at_field, read_moment
        self._counts = ObservationCounts()

    def run(self, on_rows: Callable[[int], None], on_bad: Callable[[BadRow], None]) -> ObservationCounts:
        """Store all rows; call ``on_bad`` with each row that is no entity or that the server refuses."""

        def reject(bad: BadRow) -> None:
            self._counts.rejected += 1
            on_bad(bad)

        for batch in _cut_batches(self._rows(reject)):
            self._store(batch, reject)
            on_rows(len(batch))
        return self._counts

    def _rows(self, reject: Callable[[BadRow], None]) -> Iterator[EntityRow]:
        tables = self._reader.tables
        for chunk in self._reader.chunks():
            for bad in chunk.bad:
                reject(bad)
            for number, text in zip(chunk.numbers.to_pylist(), chunk.rows.to_pylist(), strict=True):
                try:
                    yield EntityRow(chunk.path, number, text, self._make_entity(text, chunk.path in tables))
                except ValueError as reason:
                    reject(BadRow(chunk.path, number, text, str(reason)))

    def _make_entity(self, text: str, has_cells: bool) -> dict[str, Any]:
        """A row as an entity whose values keep their digits; raises ValueError where it is none."""
        try:
            row: dict[str, Any] = _DECODE_MEMBERS(text)
        except (msgspec.DecodeError, RecursionError) as reason:
            raise ValueError("not an object") from reason
        if has_cells:  # an empty one says nothing, whereas null in JSON clears a field
            row = {name: self._read_cell(name, value) for name, value in row.items() if bytes(value) != b"null"}
        entity = {"entity_type": self._entity_type, **row}
        name = self._observed_at_field
        if name is None:
            return entity
        moment = msgspec.json.decode(row.get(name, b"null"))
        if moment is None or moment == "":
            raise ValueError(f"no value in {name}")
        if name not in self._field_types:
            del entity[name]
        observed_at = self._read_moment(str(moment)) or ""
        try:
            parse_timestamp_us(observed_at, name)  # the server names one wrong moment at a time
        except BadRequest as refusal:
            raise ValueError(refusal.message) from refusal
        meta = msgspec.json.decode(row.get("_meta", b"{}"))
        if not isinstance(meta, dict):
            raise ValueError("_meta is no object")
        return {**entity, "_meta": {**meta, "observed_at": observed_at}}

    def _read_cell(self, name: str, cell: msgspec.Raw) -> msgspec.Raw:
        """A cell as a value of the type that its column is declared to have; as it is where it is no such value."""
        pattern = _SPELLED.get(self._field_types.get(name, ""))
        if pattern is None:
            return cell
        text = msgspec.json.decode(cell)
        if not isinstance(text, str) or not pattern.fullmatch(text):
            return cell
        try:
            value = text.lower() if pattern is _BOOLEAN else text
            msgspec.json.decode(value)
        except msgspec.DecodeError:
            return cell
        return msgspec.Raw(value.encode())

    def _store(self, rows: Sequence[EntityRow], reject: Callable[[BadRow], None]) -> None:
        """Store those rows of a batch that the server takes."""
        left = list(rows)
        while left:
            try:
                self._counts.add(self._entities.store(*(row.entity for row in left), **self._options))
                return
            except BadRequest as refusal:
                reasons = list_refused_items(refusal)
                if not reasons:
                    raise
                for numbered_row, why in reasons.items():
                    reject(
                        BadRow(
                            left[numbered_row].path, left[numbered_row].number, left[numbered_row].text, "; ".join(why)
                        )
                    )
                left = [row for numbered_row, row in enumerate(left) if numbered_row not in reasons]


def _cut_batches(rows: Iterator[EntityRow]) -> Iterator[list[EntityRow]]:
    batch: list[EntityRow] = []
    size = 0
    for row in rows:
        if batch and (len(batch) >= BATCH_ROWS or size + len(row.text) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += len(row.text)
    if batch:
        yield batch

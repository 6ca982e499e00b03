"""Tables of the database as classes of rows: a table names its row class once, and statements follow from its fields.

SQL that is special stays SQL: a query begins with what a table selects and ends with the clause that its caller writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from headrace import decoding
from headrace.storage.database import Connection

Row = TypeVar("Row", bound=msgspec.Struct | tuple[Any, ...])

#: The condition that a value is in a list, which is bound as :func:`json_list` encodes it.
IN_LIST = "IN (SELECT value FROM json_each(?))"


class Table(Generic[Row]):
    """A table whose columns are the fields of a named tuple or a struct; the texts of its statements are made once."""

    def __init__(self, name: str, row: type[Row], *, extra: Sequence[str] = ()) -> None:
        """``extra`` columns are written beside those of a row, and not read."""
        self.name = name
        self._row = row
        fields: Sequence[str] = getattr(row, "_fields", ()) or getattr(row, "__struct_fields__", ())
        self._set_statements(fields, [*extra, *fields])

    def _set_statements(self, selected: Sequence[str], written: Sequence[str]) -> None:
        self.select = f"SELECT {', '.join(map(_quote, selected))} FROM {self.name}"
        columns, marks = ", ".join(map(_quote, written)), ", ".join("?" * len(written))
        self.insert = f"INSERT INTO {self.name} ({columns}) VALUES ({marks})"
        self.insert_new = self.insert.replace("INSERT", "INSERT OR IGNORE", 1)
        self.replace = self.insert.replace("INSERT", "INSERT OR REPLACE", 1)

    def to_row(self, record: Any) -> Row:
        """The row of what was selected."""
        return self._row(*record)

    def to_record(self, row: Row, extra: tuple[object, ...]) -> tuple[Any, ...]:
        """What is written of a row."""
        return (*extra, *(row if isinstance(row, tuple) else msgspec.structs.astuple(row)))


class DocumentTable(Table[Row]):
    """A table with structs as JSON in its column ``document``, and some of their fields as columns of their own."""

    def __init__(self, name: str, row: type[Row], columns: Sequence[str], *, extra: Sequence[str] = ()) -> None:
        super().__init__(name, row)
        self._columns = columns
        self._decoder = decoding.make_decoder(row)
        self._set_statements(("document",), [*extra, *columns, "document"])

    def to_row(self, record: Any) -> Row:
        """The struct of a document."""
        row: Row = self._decoder.decode(record[0])
        return row

    def to_record(self, row: Row, extra: tuple[object, ...]) -> tuple[Any, ...]:
        """The columns of a struct, and its document."""
        document = msgspec.json.encode(row).decode()
        return (*extra, *(getattr(row, column) for column in self._columns), document)


class TableQueries:
    """Reads and writes rows through one connection; a base for classes that know tables."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _all(self, table: Table[Row], clause: str = "", *values: object) -> list[Row]:
        """The rows that a clause selects and orders."""
        return [table.to_row(record) for record in self._connection.execute(f"{table.select} {clause}", values)]

    def _first(self, table: Table[Row], clause: str, *values: object) -> Row | None:
        """The first of these rows."""
        record = self._connection.execute(f"{table.select} {clause}", values).fetchone()
        return None if record is None else table.to_row(record)

    def _value(self, sql: str, *values: object) -> Any:
        """The first column of the first row of a query; None where there is none."""
        return self._connection.execute(sql, values).get

    def _texts(self, sql: str, *values: object) -> list[str]:
        """The first column of all rows of a query."""
        return [str(record[0]) for record in self._connection.execute(sql, values)]

    def _count(self, table: str, condition: str = "true", *values: object) -> int:
        """How many rows of a table meet a condition."""
        return int(self._value(f"SELECT count(*) FROM {table} WHERE {condition}", *values))

    def _exists(self, table: str, condition: str, *values: object) -> bool:
        """Whether a row of a table meets a condition."""
        return bool(self._value(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {condition})", *values))

    def _insert(self, table: Table[Row], row: Row, *extra: object) -> None:
        """Store a row that must be new."""
        self._connection.execute(table.insert, table.to_record(row, extra))

    def _write(self, statement: str, table: Table[Row], rows: Iterable[Row], *extra: object) -> None:
        """Store rows by one of the statements of a table."""
        self._connection.executemany(statement, [table.to_record(row, extra) for row in rows])

    def _replace(self, table: Table[Row], rows: Iterable[Row], *extra: object) -> None:
        """Store rows in place of those with the same keys."""
        self._write(table.replace, table, rows, *extra)

    def _update(self, table: str, columns: Mapping[str, object], condition: str, *values: object) -> int:
        """Set columns of the rows that meet a condition; returns how many there are."""
        assignments = ", ".join(f"{column} = ?" for column in columns)
        self._connection.execute(f"UPDATE {table} SET {assignments} WHERE {condition}", (*columns.values(), *values))
        return int(self._connection.changes())

    def _delete(self, table: str, condition: str, *values: object) -> int:
        """Remove the rows that meet a condition; returns how many there were."""
        self._connection.execute(f"DELETE FROM {table} WHERE {condition}", values)
        return int(self._connection.changes())

    def _delete_each(self, table: str, condition: str, keys: Iterable[tuple[Any, ...]]) -> None:
        """Remove the rows that meet a condition, for each of some keys."""
        self._connection.executemany(f"DELETE FROM {table} WHERE {condition}", list(keys))


def json_list(values: Iterable[object]) -> str:
    """Values as :data:`IN_LIST` reads them."""
    return msgspec.json.encode(values if isinstance(values, list) else list(values)).decode()


def _quote(column: str) -> str:
    # Between quotes a name that is no column would be a text.
    return f'"{column}"' if column.upper() in apsw.keywords else column

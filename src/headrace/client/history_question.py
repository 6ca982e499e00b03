"""Which rows of the past are wanted: tuples of a key and its moment, or a frame that has columns for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.client.declared_types import TableTypes, typed_table
from headrace.client.features import MAX_HISTORY_ROWS, KeyMoment, Row, key_fields
from headrace.client.frame_rows import FrameRows, frame_table, is_frame
from headrace.client.json_values import moment
from headrace.client.requests import Moment

if TYPE_CHECKING:
    import pyarrow

#: The column of moments where nothing else is said, and that of the times until which what counts was appended.
AT, AS_KNOWN_AT = "at", "as_known_at"


class HistoryQuestion:
    """A question about rows of the past of one table, and its answer as a table of Arrow."""

    def __init__(
        self,
        table: str,
        rows: Iterable[KeyMoment] | Any,
        features: Sequence[str] | None,
        *,
        at: str | None,
        as_known_at: Moment | None,
    ) -> None:
        self.table = table
        self.features = features
        self._frame = frame_table(rows) if is_frame(rows) else None
        if at is not None and self._frame is None:
            raise TypeError("at names the column of a frame; pairs of a key and a moment have none")
        self._rows = rows
        self._at = at
        #: Until when what counts was appended, for all rows; None where each row says so, or there is no limit.
        self.as_known_at = as_known_at

    @property
    def is_frame(self) -> bool:
        """Whether the rows are those of a frame, so that the types of the key must be known."""
        return self._frame is not None

    def batches(self, types: TableTypes | None) -> Iterator[list[KeyMoment]]:
        """The keys and moments of one request after the other."""
        rows = iter(self._rows) if self._frame is None else self._frame_rows(types)
        while batch := list(islice(rows, MAX_HISTORY_ROWS)):
            yield batch

    def answer_table(self, rows: Sequence[Row], types: TableTypes) -> tuple[pyarrow.Table, pyarrow.Table]:
        """The columns that were given, or the keys and moments, and the columns of features; in order."""
        if self._frame is not None:
            inputs = self._frame
        else:
            clocks = (AT, AS_KNOWN_AT) if any(row.as_known_at is not None for row in rows) else (AT,)
            fields = [
                {
                    **key_fields(list(types.key), row.key),
                    **{name: moment(getattr(row, name)) or None for name in clocks},
                }
                for row in rows
            ]
            inputs = typed_table(fields, {**types.key, **dict.fromkeys(clocks, "datetime")})
        names = types.features if self.features is None else self.features
        answers = typed_table([row.raw for row in rows], {name: types.features[name] for name in names})
        return inputs, name_features(answers, self.table, inputs.column_names)

    def _frame_rows(self, types: TableTypes | None) -> Iterator[KeyMoment]:
        assert self._frame is not None and types is not None
        keys = list(types.key)
        clocks = [self._moment_column(types), *self._appended_column(types)]
        for name in keys:
            if name not in self._frame.column_names:
                raise ValueError(f"the frame has no column {name!r}: the key of {self.table} is {', '.join(keys)}")
        names = [*keys, *clocks]
        columns = self._frame.select(names)
        for chunk in FrameRows(columns).chunks():
            for number, text in zip(chunk.numbers.to_pylist(), chunk.rows.to_pylist(), strict=True):
                row = msgspec.json.decode(text)
                if missing := next((name for name in names if row[name] is None), None):
                    raise ValueError(f"row {number}, column {missing!r}: there is no value")
                values = [row[name] for name in keys]
                yield values[0] if len(values) == 1 else values, *(row[name] for name in clocks)

    def _appended_column(self, types: TableTypes) -> list[str]:
        """The column ``as_known_at`` of the frame, if it has one."""
        assert self._frame is not None
        if AS_KNOWN_AT not in self._frame.column_names or AS_KNOWN_AT in types.key or self._at == AS_KNOWN_AT:
            return []
        if self.as_known_at is not None:
            raise ValueError("the frame has a column as_known_at: leave out as_known_at=…, or drop the column")
        return [AS_KNOWN_AT]

    def _moment_column(self, types: TableTypes) -> str:
        """The column of moments: that which is named, else ``at``, else the only one of moments."""
        import pyarrow as pa

        assert self._frame is not None
        names = self._frame.column_names
        if self._at is not None or (AT in names and AT not in types.key):
            name = self._at or AT
            if name not in names:
                raise ValueError(f"the frame has no column {name!r}, only {', '.join(names)}")
            return name
        moments = [
            field.name
            for field in self._frame.schema
            if pa.types.is_timestamp(field.type) and field.name not in (*types.key, AS_KNOWN_AT)
        ]
        if len(moments) != 1:
            raise ValueError(f"say which column has the moments, as at=…: the frame has {', '.join(names)}")
        return str(moments[0])


def name_features(answers: pyarrow.Table, table: str, taken: Sequence[str]) -> pyarrow.Table:
    """Columns of features; one whose name is taken is named after its table, too."""
    return answers.rename_columns([f"{table}.{name}" if name in taken else name for name in answers.column_names])

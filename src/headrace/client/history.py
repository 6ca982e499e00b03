# Written by tools/blocking_client.py: change aio/history.py and run it.
"""Rows of the past as they come, or as one table; and the types of tables that values and columns have."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.client import features
from headrace.client.answers import Answer
from headrace.client.client import Client
from headrace.client.declared_types import TableTypes
from headrace.client.features import (
    History,
    Registered,
    Row,
    poll_history,
    read_history,
    read_history_rows,
    request_history,
    require_types,
)
from headrace.client.frames import import_library, join_columns, nullable_pandas_frame, pandas_frame, polars_frame
from headrace.client.history_question import HistoryQuestion, name_features
from headrace.client.schemas import poll_pauses

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Types:
    """The types of tables, asked for once for each version of the registry."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._version = ""
        self._tables: Mapping[str, TableTypes] = {}

    def of(self, answer: Answer) -> Mapping[str, TableTypes]:
        """The types by table that the rows of an answer have; none where the server does not say them."""
        version = answer.headers.get("headrace-registry-version", self._version)
        return self._tables if version == self._version else self.newest()

    def newest(self) -> Mapping[str, TableTypes]:
        """The types by table of the registry as it is now."""
        registered = self._client.fetch(features.registry(None), Registered)
        self._version, self._tables = str(registered.registry_version), registered.types
        return self._tables


class FeatureColumns:
    """Columns that were asked with, or keys and moments, and columns of features; as one table."""

    def to_arrow(self) -> pyarrow.Table:
        """All columns as an Arrow table; those of features have the types that are declared."""
        inputs, answers = self._tables()
        return join_columns(inputs, answers)

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a pandas DataFrame, in which integers with a null stay integers."""
        inputs, answers = self._tables()
        frames = [pandas_frame(inputs), nullable_pandas_frame(answers)]
        frame: pandas.DataFrame = import_library("pandas").concat(frames, axis=1)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """The same as a polars DataFrame."""
        return polars_frame(self.to_arrow())

    def _tables(self) -> tuple[pyarrow.Table, pyarrow.Table]:
        raise NotImplementedError


class HistoryRows(FeatureColumns):
    """Rows of the past in the order in which they were asked for: one after the other, or all as one table."""

    def __init__(self, client: Client, types: Types, question: HistoryQuestion) -> None:
        self._client = client
        self._types = types
        self._question = question
        #: The name of the table.
        self.table = question.table

    def __iter__(self) -> Iterator[Row]:
        question, first_row = self._question, 0
        types = None
        if question.is_frame:
            types = require_types(self._types.newest(), question.table)
        for batch in question.batches(types):
            request = request_history(
                question.table, batch, question.features, first_row=first_row, as_known_at=question.as_known_at
            )
            answer = self._client.send(request)
            types = self._types.of(answer).get(question.table)
            history = self._wait(read_history(answer))
            yield from read_history_rows(history, batch, types, question.as_known_at)
            first_row += len(batch)

    def _tables(self) -> tuple[pyarrow.Table, pyarrow.Table]:
        rows: list[Row] = []
        for row in self:
            rows.append(row)
        types = require_types(self._types.newest(), self._question.table)
        return self._question.answer_table(rows, types)

    def _wait(self, history: History) -> History:
        """A history query once it has ended."""
        for pause in poll_pauses():
            if history.state != "running":
                break
            time.sleep(pause)
            history = self._client.fetch(poll_history(self._question.table, history.id), History)
        return history


class TrainingSet(FeatureColumns):
    """The rows of a frame with the features of several tables, each as it was at the moment of the row."""

    def __init__(self, histories: Sequence[HistoryRows]) -> None:
        self._histories = histories

    def _tables(self) -> tuple[pyarrow.Table, pyarrow.Table]:
        inputs, answers = self._histories[0]._tables()
        for history in self._histories[1:]:
            _, more = history._tables()
            answers = join_columns(answers, name_features(more, history.table, answers.column_names))
        return inputs, answers

"""What the index kernel makes of a unit, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extract.expected import field, search
from headrace.errors import CorruptData
from headrace.format.segment.row_group import AppendRun
from headrace.format.segment.writer import SegmentWriter
from headrace.pipeline.kernels.index import extract_columns
from headrace.pipeline.kernels.units import open_workspace
from headrace.reduce.work_units import Source, Unit
from headrace.schema.registry import Registry

RESULT = """
import sys
from headrace.pipeline.kernels import index, units
print(units.result(index.perform, *sys.argv[1:]))
"""


def unit_of(store: Path, payloads: list[bytes], **more: Any) -> Unit:
    """A segment with these entries, and its unit."""
    with (store / "0.parquet").open("wb") as sink:
        writer = SegmentWriter(sink, stream="s", incarnation="0", is_json=True, first_seq=0, split=json.loads)
        writer.add(AppendRun(0, 1, 1, None, payloads))
        sealed = writer.finish()
    registry = Registry(schema="s", search=search({"x": field("integer", ["x"])})).advanced({}, None, 0)
    unit = Unit(
        unit="u",
        job="index",
        stream="s",
        incarnation="0",
        first_seq=0,
        count=len(payloads),
        level=0,
        out=f"{0:016}-{len(payloads)}-u",
        segments=(Source("0.parquet", 0, len(payloads), sealed.bytes, sealed.sha256),),
        registry=registry.dump(),
    )
    return msgspec.structs.replace(unit, **more)


def test_the_columns_of_a_unit_are_those_of_all_its_entries(tmp_path: Path) -> None:
    unit = unit_of(tmp_path, [b'{"x":%d}' % number for number in range(2_000)])
    with open_workspace(tmp_path.as_uri()) as here:
        columns, through_version = extract_columns(unit, here)
    assert columns.column("f.x").to_pylist() == columns.column("seq").to_pylist() == [*range(2_000)]
    assert through_version == 1


def test_a_unit_that_counts_more_entries_than_its_segments_hold_is_damaged(tmp_path: Path) -> None:
    unit = unit_of(tmp_path, [b'{"x":1}'], count=2)
    with open_workspace(tmp_path.as_uri()) as here, pytest.raises(CorruptData, match="hold 1 entries, not 2"):
        extract_columns(unit, here)


def test_a_process_that_performs_units_ends_without_a_word(tmp_path: Path) -> None:
    encoded = msgspec.json.encode(unit_of(tmp_path, [b'{"x":1}'] * 1_000)).decode()
    command = [sys.executable, "-c", RESULT, encoded, tmp_path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "companion" in done.stdout
    assert done.stderr == ""

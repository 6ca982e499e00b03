"""What metadata lists, and what objects are called."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from headrace.errors import CorruptData
from headrace.format.companion.layout import Companion, CompanionInfo, PartFile, companion_entry, decode_info
from headrace.format.object_names import companion_key, file_name, parse_companion_key, range_name

INFO = CompanionInfo(
    stream="orders",
    incarnation="7",
    first_seq=10,
    count=5,
    through_version=2,
    fields={},
    rollups={"r": "0123"},
    keys=True,
    times=(-5, 9),
    words={"message": (3, 17)},
    odd=1,
)


def test_a_companion_survives_json() -> None:
    part = PartFile(100, "ab" * 32)
    companion = companion_entry(INFO, range_name(10, 5, "x1"), {"columns": part, "panes": part})
    assert msgspec.json.decode(msgspec.json.encode(companion), type=Companion) == companion
    assert msgspec.convert(msgspec.to_builtins(companion), Companion) == companion
    assert list(companion.parts) == ["columns", "panes"]
    assert companion.end_seq == 15
    assert companion.times == (-5, 9)
    assert companion.words == {"message": (3, 17)}


def test_the_names_of_objects_lead_back_to_the_companion() -> None:
    name = range_name(10, 5, "x1")
    assert name == "0000000000000010-5-x1"
    key = companion_key("orders/größe", "7", name, "panes")
    assert key.endswith(f"/7/{file_name(name, 'panes')}")
    place = parse_companion_key(key)
    assert place is not None and place[1] == name and place[0][1] == "7"
    assert parse_companion_key(key.replace("panes", "cakes")) is None
    assert parse_companion_key(key.replace("companions", "segments")) is None


@pytest.mark.parametrize("unique", ["", "A", "a/b", "..", "a" * 65])
def test_what_could_lead_elsewhere_is_no_part_of_a_name(unique: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a key"):
        range_name(0, 1, unique)


@pytest.mark.parametrize(
    ("document", "check"),
    [
        (None, "identity"),
        (b"{", "identity"),
        (b'{"version":1}', "identity"),
        (b'{"version":"1"}', "identity"),
        (msgspec.json.encode(msgspec.structs.replace(INFO, version=2)), "version"),
    ],
)
def test_an_identity_that_cannot_be_read_is_refused(document: bytes | None, check: str) -> None:
    with pytest.raises(CorruptData) as refused:
        decode_info(document, "this.parquet")
    assert refused.value.facts["check"] == check
    assert "this.parquet" in str(refused.value)


def test_what_metadata_needs_loads_without_arrow() -> None:
    code = "import sys, headrace.format.companion.layout, headrace.format.object_names; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "numpy", "duckdb"} & set(loaded)

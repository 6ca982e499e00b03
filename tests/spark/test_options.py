"""Options of the data source: any letter case, and a reason for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import BadRequest
from headrace.spark.options import read_options

OFFSET = "00000000000000000004000000"


def test_defaults_are_those_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", "http://there:1")
    options = read_options({"STREAM": "s", "failondataloss": "FALSE", "minPartitions": "3"})
    assert (options.stream, options.url, options.mode, options.fail_on_data_loss) == (
        "s",
        "http://there:1",
        None,
        False,
    )
    assert (options.starting_offset, options.ending_offset, options.min_partitions) == ("-1", "now", 3)
    chosen = read_options(
        {
            "stream": "s",
            "startingOffsets": OFFSET,
            "endingOffsets": "Latest",
            "mode": "Typed",
        }
    )
    assert (chosen.starting_offset, chosen.ending_offset, chosen.mode) == (OFFSET, "now", "typed")


@pytest.mark.parametrize(
    ("options", "field", "advice"),
    [
        ({}, "stream", "name the stream"),
        ({"stream": "s", "key": "secret"}, "key", "HEADRACE_KEY"),
        ({"stream": "s", "path": "s"}, "path", "option stream"),
        ({"stream": "s", "startingOffset": "earliest"}, "startingOffset", "did you mean startingOffsets"),
        ({"stream": "s", "startingOffsets": "3"}, "startingOffsets", "neither earliest, latest nor an offset"),
        ({"stream": "s", "mode": "raw"}, "mode", "none of typed, envelope"),
        ({"stream": "s", "schemaVersion": "0"}, "schemaVersion", "whole number from 1 on"),
        ({"stream": "s", "minPartitions": "many"}, "minPartitions", "whole number from 1 on"),
        ({"stream": "s", "storeAccess": "presigned"}, "storeAccess", "none of auto, direct, http"),
        (
            {"stream": "s", "endingOffsets": "latest", "endingTimestamp": "2026-01-01T00:00:00Z"},
            "endingTimestamp",
            "cannot be combined",
        ),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], field: str, advice: str) -> None:
    with pytest.raises(BadRequest, match=advice) as refusal:
        read_options(options)
    assert refusal.value.facts["field"] == field
    assert "secret" not in refusal.value.message


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="keyFile") as refusal:
        read_options({"stream": "s", "keyFile": str(tmp_path / "none")}).connect()
    assert refusal.value.facts["field"] == "keyFile"

"""Objects of a store are imported as files are: once, by name, and with errors that say what is wrong."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.cli import output
from headrace.cli.import_sources import collect_files
from headrace.storage.objects import Objects

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import ServerProcess

    from support.s3 import S3

KEYS = ("web/2026/a.jsonl", "web/2026/b.jsonl", "web/2025/c.jsonl", "web/notes.txt", "other/d.jsonl")


@pytest.fixture
def root(bucket: S3) -> str:
    """The URL of a bucket that has some objects, each with one row."""
    root = bucket.url.removesuffix("/some/prefix")
    store = Objects.open(root)
    for key in KEYS:
        store.put(key, json.dumps({"key": key}).encode() + b"\n")
    return root


def read_keys(server: ServerProcess, name: str) -> list[str]:
    with hr.Client(server.url) as client:
        return [event["key"] for batch in client.stream(name).read() for event in batch.items]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("other/d.jsonl", KEYS[4:]),
        ("web", (KEYS[2], *KEYS[:2])),
        ("web/", (KEYS[2], *KEYS[:2])),
        ("web/2026/*.jsonl", KEYS[:2]),
        ("web/*/c.json?", KEYS[2:3]),
        ("**/[ad].jsonl", ()),
        ("**/?.jsonl", (KEYS[4], KEYS[2], *KEYS[:2])),
    ],
)
def test_an_object_a_prefix_and_a_pattern_name_objects_in_order(
    root: str, tmp_path: Path, key: str, expected: tuple[str, ...]
) -> None:
    url = f"{root}/{key}"
    if not expected:
        with pytest.raises(output.UsageError, match="there is no object"):
            collect_files([url], None, tmp_path)
        return
    names = collect_files([url], None, tmp_path)
    assert list(names.values()) == [f"{root}/{name}" for name in expected]
    assert [json.loads(path.read_bytes())["key"] for path in names] == list(expected)


def test_objects_are_imported_once(headrace: Headrace, at: ServerProcess, name: str, root: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": ["p", "q"]}), tmp_path / "rows.parquet")
    Objects.open(root).put("web/2027/rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    for appended, already_there in ((5, 0), (0, 5)):
        (result,) = headrace("import", f"{root}/web", "--stream", name, "--yes").lines
        assert (result["appended"], result["already_there"]) == (appended, already_there)
    assert read_keys(at, name) == [KEYS[2], *KEYS[:2], "p", "q"]


def test_bad_rows_are_named_by_their_object(headrace: Headrace, at: ServerProcess, name: str, root: str) -> None:
    Objects.open(root).put("bad/x.jsonl", b'{"key": 1}\n{"key"\n')
    done = headrace("import", f"{root}/bad/x.jsonl", "--stream", name, "--yes")
    assert done.code == output.PARTIAL
    assert f"row 2 of {root}/bad/x.jsonl: not JSON" in done.err


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("{root}/none/x.csv", "there is no object {root}/none/x.csv, and none below it"),
        ("{root}/none/*.csv", "there is no object"),
        ("{root}/web/notes.txt", "the names do not tell the format; pass --format"),
        ("{root}/", "names no object: it should be s3://BUCKET/KEY"),
        ("ftp://host/x.csv", "is on no store that is known: file://, s3://"),
        ("file://host/x.csv", "should be file:///an/absolute/path"),
        ("file:///none/such/x.csv", "there is no file /none/such/x.csv"),
        ("file:///none/such/*.csv", "no file matches file:///none/such/*.csv"),
    ],
)
def test_what_is_not_there_is_named(
    headrace: Headrace, at: ServerProcess, name: str, root: str, url: str, reason: str
) -> None:
    done = headrace("import", url.format(root=root), "--stream", name, "--yes")
    assert done.code == output.USAGE
    assert reason.format(root=root) in done.err
    assert headrace("stream", "info", name).code == output.FAILED


def test_denied_access_is_said(headrace: Headrace, at: ServerProcess, name: str, bucket: S3, root: str) -> None:
    bucket.chance = lambda request: "deny" if request.method != "PUT" else None
    done = headrace("import", f"{root}/web", "--stream", name, "--yes")
    assert done.code == output.FAILED
    assert f"cannot read {root}/web: it answered 403" in done.err
    assert "credentials come from the environment" in done.err


def test_a_store_that_cannot_be_reached_is_said(
    headrace: Headrace, at: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closing.getsockname()[1]}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    done = headrace("import", "s3://bucket/x.csv", "--stream", name, "--yes")
    assert done.code == output.FAILED
    assert "cannot read s3://bucket/x.csv: Connection refused" in done.err


def test_file_urls_are_files(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    for file in ("2.csv", "1.csv"):
        (folder / file).write_text("n\n1\n")
    paths = [folder / "1.csv", folder / "2.csv"]
    assert list(collect_files([folder.as_uri()], None, tmp_path)) == paths
    assert list(collect_files([f"file://{folder}/*.csv"], None, tmp_path)) == paths
    assert list(collect_files([paths[1].as_uri()], None, tmp_path)) == paths[1:]

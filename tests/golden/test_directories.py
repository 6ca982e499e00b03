"""Data directories and buckets that servers of earlier commits left behind, opened by the server of today."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from conftest import StartServer
from golden.write_directory import Answer, send

ARCHIVES = sorted((Path(__file__).parent / "directories").glob("*.tar.xz"))
#: Members of answers that depend on the machine, on the clock or on how far derived data is.
VOLATILE = {"took_ms", "coverage", "snapshot_end_offset", "sort"}
#: A loaded machine may take longer than a search may last, the first time.
TIMED_OUT, RETRIES = 408, 5


def extract(archive: Path, directory: Path) -> dict[str, list[Answer]]:
    with tarfile.open(archive) as entries:
        entries.extractall(directory, filter="data")
    answers: dict[str, list[Answer]] = json.loads((directory / "answers.json").read_text())
    return answers


def missing(old: Any, new: Any, pointer: str = "") -> list[str]:
    """Where an answer of today lacks or changes what the answer of then had; what was added since is no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [name for name in old if name not in VOLATILE]
        absent = [f"{pointer}/{name} is missing" for name in names if name not in new]
        return absent + [
            line for name in names if name in new for line in missing(old[name], new[name], f"{pointer}/{name}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line for at, pair in enumerate(zip(old, new, strict=True)) for line in missing(*pair, f"{pointer}/{at}")
        ]
    return [] if old == new else [f"{pointer}: was {old!r}, is {new!r}"]


def differences(url: str, answers: list[Answer]) -> list[str]:
    lines = []
    for request, body in answers:
        method, path, content = request
        status, now = send(url, (method, path, content))
        for _ in range(RETRIES):
            if status != TIMED_OUT:
                break
            status, now = send(url, (method, path, content))
        assert status == 200, (request, status, now)
        if body == now:
            continue
        lines += [f"{method} {path} {line}" for line in missing(_parsed(body), _parsed(now))]
    return lines


def _parsed(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_a_data_directory_of_an_earlier_commit_answers_as_it_did(
    archive: Path, tmp_path: Path, start_server: StartServer
) -> None:
    answers = extract(archive, tmp_path)
    server = start_server(storage__seal_age_s="3600")
    assert answers["all"]
    assert differences(server.url, answers["all"]) == []
    assert server.kill() != 0
    assert differences(server.start().url, answers["all"]) == []


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_a_bucket_of_an_earlier_commit_is_recovered(archive: Path, tmp_path: Path, start_server: StartServer) -> None:
    answers = extract(archive, tmp_path)
    store = tmp_path / "data" / "objects"
    if not answers["published"]:
        assert not store.exists()
        return
    server = start_server(data="new", storage__object_store=store.as_uri(), storage__seal_age_s="3600")
    assert differences(server.url, answers["published"]) == []

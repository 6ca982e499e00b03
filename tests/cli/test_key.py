"""``headrace key``: keys made on the data directory open its server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import StartServer


def test_key_opens_its_streams_until_it_is_revoked(headrace: Headrace, start_server: StartServer) -> None:
    server = start_server()
    where = ["--data-dir", str(server.data_dir)]
    (made,) = headrace(
        "key", "create", "--user", "ada", "--scope", "write", "--scope", "read", "--prefix", "a/", *where
    ).lines
    assert made["user_id"] == "ada"
    assert made["scopes"] == ["read", "write"]
    assert made["prefix"] == "a/"
    remote = ["--url", server.url, "--key", made["token"]]
    assert headrace("stream", "create", "a/x", *remote).code == 0
    assert headrace("stream", "create", "b/x", *remote).code == 1
    assert headrace("key", "revoke", made["id"], "--yes", *where).lines[0]["revoked_at"]
    deadline = time.monotonic() + 10
    while headrace("stream", "info", "a/x", *remote).code == 0:
        assert time.monotonic() < deadline, "a revoked key still opens the door"


def test_keys_made_without_a_server_are_told_when_there_is_one(
    headrace: Headrace, start_server: StartServer, tmp_path: Path
) -> None:
    where = ["--data-dir", str(tmp_path / "later")]
    (made,) = headrace("key", "create", "--user", "ada", *where).lines
    headrace("key", "revoke", made["id"], "--yes", *where)
    server = start_server(data="later")
    deadline, told = time.monotonic() + 10, list[tuple[str, str]]()
    while len(told) < 2:
        assert time.monotonic() < deadline, told
        found = headrace("stream", "read", "__registry__", "--url", server.url)
        told = [(note["what"], note["key"]) for note in found.lines] if found.code == 0 else []
    assert told == [("key_created", made["id"]), ("key_revoked", made["id"])]


def test_list_shows_keys_without_their_tokens(headrace: Headrace, tmp_path: Path) -> None:
    where = ["--data-dir", str(tmp_path / "new")]
    (made,) = headrace("key", "create", "--user", "ada", "--name", "laptop", *where).lines
    listed = headrace("key", "list", *where)
    assert [key["id"] for key in listed.lines] == [made["id"]]
    assert listed.lines[0]["scopes"] == ["read", "write"]
    assert made["token"] not in listed.out.decode()


@pytest.mark.parametrize("words", [("list",), ("revoke", "7a01544f4bce", "--yes")])
def test_directory_without_keys_is_named_and_not_made(
    headrace: Headrace, tmp_path: Path, words: tuple[str, ...]
) -> None:
    nowhere = tmp_path / "nowhere"
    done = headrace("key", *words, "--data-dir", str(nowhere))
    assert done.code == 1
    assert str(nowhere) in done.err
    assert not nowhere.exists()


def test_revoke_without_a_terminal_needs_yes(headrace: Headrace, tmp_path: Path) -> None:
    where = ["--data-dir", str(tmp_path)]
    (made,) = headrace("key", "create", "--user", "ada", *where).lines
    assert headrace("key", "revoke", made["id"], *where).code == 2
    assert headrace("key", "list", *where).lines[0]["revoked_at"] is None


def test_unknown_key_and_unknown_scope_are_refused(headrace: Headrace, tmp_path: Path) -> None:
    where = ["--data-dir", str(tmp_path)]
    headrace("key", "create", "--user", "ada", *where)
    assert headrace("key", "revoke", "nobody", "--yes", *where).code == 1
    assert headrace("key", "create", "--user", "ada", "--scope", "everything", *where).code == 2
    assert headrace("key", "create", *where).code == 2

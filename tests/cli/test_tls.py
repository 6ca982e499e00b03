"""Commands speak to a server with a certificate and keys as they do to any other."""

from __future__ import annotations

import io
import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.storage.keys import KeyStore
from support.certificates import write_certificate

if TYPE_CHECKING:
    from tests.cli.conftest import Headrace
    from tests.conftest import StartServer


def test_commands_work_over_tls_with_a_key(
    headrace: Headrace, start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert_file, key_file = write_certificate(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    with closing(KeyStore(tmp_path / "data" / "keys.db")) as keys:
        _, token = keys.create(user_id="ada", scopes=["admin"])
    server = start_server(server__host="0.0.0.0", server__tls_cert=str(cert_file), server__tls_key=str(key_file))
    monkeypatch.setenv("HEADRACE_URL", server.url.replace("0.0.0.0", "127.0.0.1"))
    monkeypatch.setenv("HEADRACE_KEY", token)
    trusting = ["--ca-file", str(cert_file)]
    assert headrace("stream", "create", "jobs", *trusting).code == 0
    assert headrace("stream", "append", "jobs", '{"n": 1}', *trusting).code == 0
    assert headrace("stream", "append", "jobs", *trusting, stdin=io.BytesIO(b'{"n": 2}\n')).code == 0
    assert [json.loads(line) for line in headrace("stream", "read", "jobs", *trusting).out.splitlines()] == [
        {"n": 1}, {"n": 2},
    ]  # fmt: skip
    followed = headrace("stream", "tail", "jobs", "--offset", "-1", "--limit", "2", *trusting)
    assert [json.loads(line) for line in followed.out.splitlines()] == [{"n": 1}, {"n": 2}]
    listed = headrace("stream", "ls", *trusting)
    assert listed.err == ""
    assert [found["name"] for found in listed.lines] == ["jobs"]
    assert headrace("pipeline", "status", *trusting).lines[0]["due"] == []
    assert headrace("stream", "delete", "jobs", "--yes", *trusting).code == 0
    untrusted = headrace("stream", "ls")
    assert untrusted.code != 0 and "--ca-file" in untrusted.err
    monkeypatch.setenv("HEADRACE_KEY", "hr_0_unknown")
    unknown = headrace("stream", "ls", *trusting)
    assert unknown.code != 0 and "unknown" in unknown.err

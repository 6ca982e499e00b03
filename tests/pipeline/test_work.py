from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.work import Unreachable, Work, trust
from support.certificates import write_certificate

if TYPE_CHECKING:
    from tests.conftest import StartServer


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return str(listening.getsockname()[1])


def test_a_pinned_certificate_is_trusted_for_any_address_and_no_other_is(
    start_server: StartServer, tmp_path: Path
) -> None:
    cert_file, key_file = write_certificate(tmp_path, "192.0.2.1")
    (tmp_path / "other").mkdir()
    other, _ = write_certificate(tmp_path / "other", "127.0.0.1")
    server = start_server(server__tls_cert=str(cert_file), server__tls_key=str(key_file))
    with Work(server.url, None, str(cert_file), is_pinned=True) as work:
        assert work.status()["due"] == []
    for file, is_pinned in ((cert_file, False), (other, True), (other, False)):
        with Work(server.url, None, str(file), is_pinned=is_pinned) as work, pytest.raises(Unreachable):
            work.status()


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_replaced_certificate_is_trusted_once_its_file_is_replaced(
    start_server: StartServer, tmp_path: Path, is_pinned: bool
) -> None:
    cert_file, key_file = write_certificate(tmp_path)
    tls = {"server__tls_cert": str(cert_file), "server__tls_key": str(key_file)}
    server = start_server(**tls, server__port=free_port())
    with Work(server.url, None, str(cert_file), is_pinned=is_pinned) as work:
        for _ in range(2):
            assert work.status()["due"] == []
            server.stop()
            write_certificate(tmp_path)
            server.start()
        assert work.status()["due"] == []


def test_a_file_without_a_certificate_cannot_be_pinned(tmp_path: Path) -> None:
    _, key_file = write_certificate(tmp_path)
    with pytest.raises(ssl.SSLError, match="no certificate"):
        trust(str(key_file), is_pinned=True)

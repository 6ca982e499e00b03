"""TLS, and requests that cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.errors import BadRequest
from support.certificates import write_certificate

if TYPE_CHECKING:
    from tests.conftest import StartServer


def test_server_is_trusted_only_with_its_certificate(start_server: StartServer, tmp_path: Path) -> None:
    cert_file, key_file = write_certificate(tmp_path)
    server = start_server(server__tls_cert=str(cert_file), server__tls_key=str(key_file))
    with hr.Client(server.url, ca_file=str(cert_file)) as client:
        stream = client.stream("x")
        stream.create()
        with stream.producer() as producer:
            producer.send(1)
        assert [item for batch in stream.read() for item in batch.items] == [1]
    with hr.Client(server.url, retry_for=0) as stranger, pytest.raises(hr.Unreachable) as caught:
        stranger.stream("x").info()
    assert not caught.value.sent
    assert "--ca-file" in caught.value.message
    with pytest.raises(ValueError, match=r"absent\.pem"):
        hr.Client(server.url, ca_file=str(tmp_path / "absent.pem"))


def test_value_that_no_header_can_carry_is_a_bad_request(client: hr.Client, name: str) -> None:
    stream = client.stream(name)
    stream.create()
    with pytest.raises(BadRequest):
        stream.append(1, key="two\nlines")
    with stream.producer() as producer:
        assert isinstance(producer.send(1, key="two\nlines").exception(10), BadRequest)
    assert stream.info().next_offset == "0" * 26

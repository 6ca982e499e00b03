"""TLS, and requests that cannot be written."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import headrace as hr
from headrace.errors import BadRequest

if TYPE_CHECKING:
    from tests.conftest import StartServer


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "headrace")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return cert_file, key_file


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

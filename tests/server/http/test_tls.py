from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from headrace.config import ConfigError, ServerConfig
from headrace.server.http.tls import open_certificate
from support.certificates import write_certificate


def test_half_of_what_tls_takes_is_refused_and_none_of_it_is_fine(tmp_path: Path) -> None:
    words = tmp_path / "words.pem"
    words.write_text("no certificate")
    assert open_certificate(ServerConfig()) is None
    with pytest.raises(ConfigError, match="give its certificate"):
        open_certificate(ServerConfig(tls_key=str(words)))
    for key in ("", str(words)):
        with pytest.raises(ConfigError, match=r"--tls-key.*words\.pem"):
            open_certificate(ServerConfig(tls_cert=str(words), tls_key=key))


def test_an_encrypted_private_key_is_refused_and_nobody_is_asked_for_a_password(tmp_path: Path) -> None:
    cert_file, key_file = write_certificate(tmp_path)
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    with pytest.raises(ConfigError, match="encrypted") as refusal:
        open_certificate(ServerConfig(tls_cert=str(cert_file), tls_key=str(key_file)))
    assert refusal.value.body()["error"]["field"] == "server.tls_key"

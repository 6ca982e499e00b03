from __future__ import annotations

import hashlib
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from headrace.engine.subscriptions.keyring import Keyring, fresh_secret
from headrace.engine.subscriptions.subscription import Definition, Subscription, TokenInvalid
from headrace.engine.subscriptions.wakes import Wakes


def plain(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def subscription(id: str = "s", created_us: int = 1) -> Subscription:
    return Subscription(id, Definition(type="webhook", pattern="*"), "http://x", created_us, Wakes())


def test_a_signature_is_verified_with_the_published_key() -> None:
    keyring, body = Keyring(fresh_secret(), fresh_secret()), b'{"a": "\xc3\xa9"}'
    match = re.fullmatch(r"t=(\d+),kid=([^,]+),ed25519=([A-Za-z0-9_-]+)", keyring.sign(body, 1_700_000_000_900_000))
    assert match is not None and match[1] == "1700000000" and match[2] == keyring.kid
    (jwk,) = keyring.jwks()["keys"]
    assert {name: jwk[name] for name in ("kty", "crv", "alg", "use")} == {
        "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig",
    }  # fmt: skip
    public = Ed25519PublicKey.from_public_bytes(plain(jwk["x"]))
    public.verify(plain(match[3]), b"1700000000." + body)
    with pytest.raises(InvalidSignature):
        public.verify(plain(match[3]), b"1700000001." + body)


def test_the_key_is_named_by_its_thumbprint() -> None:
    keyring = Keyring(fresh_secret(), fresh_secret())
    (jwk,) = keyring.jwks()["keys"]
    required = json.dumps({"crv": jwk["crv"], "kty": jwk["kty"], "x": jwk["x"]}, separators=(",", ":"))
    digest = urlsafe_b64encode(hashlib.sha256(required.encode()).digest()).decode().rstrip("=")
    assert jwk["kid"] == f"ds_{digest}"


def test_a_token_holds_for_one_subscription_and_says_its_generation() -> None:
    keyring = Keyring(fresh_secret(), fresh_secret())
    token = keyring.token(subscription(), 7)
    assert keyring.generation(subscription(), token) == 7
    number, _, mac = token.partition(".")
    for other, text in (
        (subscription("t"), token),
        (subscription(created_us=2), token),
        (subscription(), f"8.{mac}"),
        (subscription(), f"{number}."),
        (subscription(), mac),
        (subscription(), "9" * 30 + f".{mac}"),
        (subscription(), "²." + mac),
    ):
        with pytest.raises(TokenInvalid):
            keyring.generation(other, text)
    with pytest.raises(TokenInvalid):
        Keyring(fresh_secret(), fresh_secret()).generation(subscription(), token)

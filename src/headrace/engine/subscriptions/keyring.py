"""Signatures of webhooks (Ed25519), and tokens of wakes (a keyed hash)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace.engine.subscriptions.subscription import Subscription, TokenInvalid

SECRET_BYTES = 32


def token_invalid() -> TokenInvalid:
    """The same error for every wrong token, and for subscriptions that do not exist."""
    return TokenInvalid("the token is not one of this subscription")


def fresh_secret() -> bytes:
    """A new random secret."""
    return secrets.token_bytes(SECRET_BYTES)


class Keyring:
    """The server's two secrets. Signatures and tokens made before a restart hold after it."""

    def __init__(self, signing: bytes, tokens: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(signing)
        self._tokens = tokens
        self._jwk = {"crv": "Ed25519", "kty": "OKP", "x": _text(self._private.public_key().public_bytes_raw())}
        # RFC 7638: the required members in this order are what is hashed.
        self.kid = "ds_" + _text(hashlib.sha256(msgspec.json.encode(self._jwk)).digest())

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """The public key as a JSON Web Key Set."""
        return {"keys": [{**self._jwk, "kid": self.kid, "use": "sig", "alg": "EdDSA"}]}

    def sign(self, body: bytes, now_us: int) -> str:
        """The ``Webhook-Signature`` of a body sent now."""
        seconds = now_us // 1_000_000
        signature = self._private.sign(b"%d." % seconds + body)
        return f"t={seconds},kid={self.kid},ed25519={_text(signature)}"

    def token(self, subscription: Subscription, generation: int) -> str:
        """The token for the worker of one generation."""
        scope = msgspec.json.encode([subscription.id, subscription.created_us, generation])
        return f"{generation}.{_text(hmac.digest(self._tokens, scope, 'sha256'))}"

    def generation(self, subscription: Subscription, token: str) -> int:
        """The generation that a token of this subscription was made for."""
        number = token.partition(".")[0]
        if number.isascii() and number.isdigit() and len(number) < 19:
            generation = int(number)
            if hmac.compare_digest(self.token(subscription, generation).encode(), token.encode()):
                return generation
        raise token_invalid()


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()

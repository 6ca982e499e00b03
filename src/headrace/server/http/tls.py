"""The certificate of the server: checked before it is used, and read again when its files change or SIGHUP comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import threading
from logging import getLogger

from headrace.config import ConfigError, ServerConfig

log = getLogger("headrace.server.tls")

_CHECK_INTERVAL_S = 2.0
#: By which a changed file is recognized: its device, inode, size and time; None for a file that is not there.
_Stamp = tuple[int, int, int, int] | None


class ServerCertificate:
    """The certificate of new connections; a connection keeps the one of its handshake."""

    def __init__(self, cert_file: str, key_file: str) -> None:
        self._files = (cert_file, key_file)
        self._stamps = self._file_stamps()
        self._newest = _load(cert_file, key_file)
        #: What to listen with. It stays the same; each handshake turns to the newest.
        self.context = _load(cert_file, key_file)
        self.context.sni_callback = self._choose

    async def watch(self) -> None:
        """Read the files again when they change, or when a SIGHUP asks for it."""
        hangup, loop = asyncio.Event(), asyncio.get_running_loop()
        in_main = threading.current_thread() is threading.main_thread()
        if in_main:  # no other thread is told of signals
            loop.add_signal_handler(signal.SIGHUP, hangup.set)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(hangup.wait(), _CHECK_INTERVAL_S)
                forced = hangup.is_set()
                hangup.clear()
                await asyncio.to_thread(self.refresh, forced=forced)
        finally:
            if in_main:
                loop.remove_signal_handler(signal.SIGHUP)

    def refresh(self, *, forced: bool = False) -> None:
        """Load the certificate again if its files have changed; logs an error and keeps the old one if that fails."""
        stamps = self._file_stamps()
        if stamps == self._stamps and not forced:
            return
        self._stamps = stamps
        try:
            self._newest = _load(*self._files)
        except ConfigError as reason:
            log.error("the certificate was not reloaded, and the one before stays in use: %s", reason.message)
        else:
            log.info("the certificate was reloaded; new connections get it")

    def _file_stamps(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(file) for file in self._files)

    def _choose(self, handshake: ssl.SSLObject, name: str, context: ssl.SSLContext) -> None:
        handshake.context = self._newest


def open_certificate(server: ServerConfig) -> ServerCertificate | None:
    """The certificate that the settings name, if any; refuses half of what TLS takes, and files that do not fit."""
    if server.tls_key and not server.tls_cert:
        raise ConfigError("TLS takes more than a private key: give its certificate, too", field="server.tls_cert")
    return ServerCertificate(server.tls_cert, server.tls_key) if server.tls_cert else None


def _load(cert_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert_file, key_file or None, password=_refuse_encrypted)
    except OSError as reason:  # an SSLError is one
        files = " and ".join(filter(None, (cert_file, key_file)))
        raise ConfigError(
            f"TLS takes a certificate (--tls-cert) and its private key (--tls-key), both in PEM; {files}: {reason}",
            field="server.tls_cert",
        ) from reason
    return context


def _refuse_encrypted() -> str:
    """Refuse encrypted keys: OpenSSL would ask for the password on the terminal, at every reload."""
    raise ConfigError(
        "the private key is encrypted: store it decrypted, in a file that only the server may read",
        field="server.tls_key",
    )


def _stamp(file: str) -> _Stamp:
    if not file:
        return None
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

"""The server that a command connects to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.output import UsageError

if TYPE_CHECKING:
    from headrace.client import Client

_RECONNECT_FOR_S = 30.0


@Parameter(name="*")
@dataclass(frozen=True)
class Remote:
    """A server's URL and the key to it."""

    url: Annotated[str, Parameter(env_var="HEADRACE_URL", help="The server.")] = "http://127.0.0.1:4437"
    key: Annotated[str | None, Parameter(env_var="HEADRACE_KEY", help="An API key.")] = None
    ca_file: Annotated[str | None, Parameter(help="Certificates to trust, in PEM.")] = None

    def __post_init__(self) -> None:
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise UsageError("The key (--key, or HEADRACE_KEY) is none: keys are plain ASCII, such as hr_…")

    def connect(self, *, patient: bool = False) -> Client:
        """A client that fails at once, or a patient one that takes up lost connections."""
        from headrace.client import Client

        retry_for = _RECONNECT_FOR_S if patient else 0.0
        return Client(self.url, self.key or None, retry_for=retry_for, ca_file=self.ca_file)


LOCAL = Remote()

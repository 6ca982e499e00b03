"""``headrace key``: the API keys of a data directory, whether or not a server is running on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from headrace.cli import output
from headrace.cli.config import ConfigFile, DataDir, load_storage
from headrace.cli.output import AsJson, Yes
from headrace.errors import NotFound
from headrace.types import rfc3339

if TYPE_CHECKING:
    from headrace.storage.keys import Key, KeyStore

RequestsPerS = Annotated[
    int | None, Parameter(name="--requests-per-s", help="Requests a second; 0: any number. The server has a default.")
]
BytesPerS = Annotated[
    int | None, Parameter(name="--bytes-per-s", help="Bytes a second, of bodies and answers; 0: any number.")
]
Scope = Literal["read", "write", "admin"]

_FILE = "keys.db"

app = App(
    name="key",
    help="Make, list, change, rotate and revoke API keys.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace key create --user ada --scope read --prefix orders/",
        "headrace key ls",
        "headrace key rotate 7a01544f4bce",
        "headrace key update 7a01544f4bce --requests-per-s 100",
        "headrace key revoke 7a01544f4bce",
    ),
)


@app.command
def create(
    *,
    user: Annotated[str, Parameter(help="The user that the key stands for.")],
    scope: Annotated[list[Scope] | None, Parameter(negative=(), help="What it may do; may be repeated.")] = None,
    prefix: Annotated[str, Parameter(help="Only streams whose name begins so.")] = "",
    name: Annotated[str, Parameter(help="A note on what it is for.")] = "",
    requests_per_s: RequestsPerS = None,
    bytes_per_s: BytesPerS = None,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Make a key; its token is shown this once."""
    from headrace.storage.lock import make_directory

    storage = load_storage(data_dir, config)
    directory = Path(storage.data_dir)
    make_directory(directory, storage.directory_permissions)
    with _store(directory) as keys:
        key, token = keys.create(
            user_id=user,
            scopes=scope or ["read", "write"],
            prefix=prefix,
            name=name,
            requests_per_s=requests_per_s,
            bytes_per_s=bytes_per_s,
        )
    _show_token(key, token, json)


@app.command(name=("ls", "list"))
def list_keys(*, data_dir: DataDir = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """List the keys, revoked ones too; never their tokens."""
    with _store(_existing_config(data_dir, config)) as keys:
        rows = [_facts(key) for key in keys.list()]
    columns = ("id", "user_id", "scopes", "prefix", "name", "requests_per_s", "bytes_per_s", "created_at", "revoked_at")
    output.show_all(rows, columns, as_json=json)


@app.command
def rotate(key_id: str, /, *, data_dir: DataDir = None, config: ConfigFile = None, json: AsJson = False) -> None:
    """Make another key with the same rights and limits; the old one holds until you revoke it."""
    with _store(_existing_config(data_dir, config)) as keys:
        key, token = keys.rotate(key_id)
    _show_token(key, token, json)


@app.command
def update(
    key_id: str,
    /,
    *,
    name: Annotated[str | None, Parameter(help="A note on what it is for.")] = None,
    requests_per_s: RequestsPerS = None,
    bytes_per_s: BytesPerS = None,
    default_limits: Annotated[
        bool, Parameter(negative=(), help="Give it the limits of the server's settings.")
    ] = False,
    data_dir: DataDir = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Change the name or the limits of a key; a running server notices within a second."""
    changes: dict[str, Any] = {"requests_per_s": None, "bytes_per_s": None} if default_limits else {}
    values = {"name": name, "requests_per_s": requests_per_s, "bytes_per_s": bytes_per_s}
    changes |= {field: value for field, value in values.items() if value is not None}
    with _store(_existing_config(data_dir, config)) as keys:
        output.show(_facts(keys.update(key_id, **changes)), as_json=json)


@app.command
def revoke(
    key_id: str, /, *, data_dir: DataDir = None, config: ConfigFile = None, yes: Yes = False, json: AsJson = False
) -> None:
    """Revoke a key; its users are locked out within seconds."""
    output.confirm(f"Revoke key {key_id}?", yes=yes)
    with _store(_existing_config(data_dir, config)) as keys:
        output.show(_facts(keys.revoke(key_id)), as_json=json)


def _existing_config(data_dir: str | None, config: Path | None) -> Path:
    """The data directory; refused where no key was ever made and no server has run."""
    directory = Path(load_storage(data_dir, config).data_dir)
    if not (directory / _FILE).exists():
        raise NotFound(f"{directory} holds no keys; --data-dir names another directory", data_dir=str(directory))
    return directory


@contextmanager
def _store(directory: Path) -> Iterator[KeyStore]:
    from headrace.storage.keys import KeyStore

    keys = KeyStore(directory / _FILE)
    try:
        yield keys
    finally:
        keys.close()


def _show_token(key: Key, token: str, json: bool) -> None:
    output.show({**_facts(key), "token": token}, as_json=json)
    if output.wants_table(json):
        print("Keep the token: it is not shown again. Commands take it as HEADRACE_KEY, or with --key.")


def _facts(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "user_id": key.user_id,
        "scopes": list(key.scopes),
        "prefix": key.prefix,
        "name": key.name,
        "requests_per_s": key.requests_per_s,
        "bytes_per_s": key.bytes_per_s,
        "created_at": rfc3339(key.created_us),
        "revoked_at": None if key.revoked_us is None else rfc3339(key.revoked_us),
    }

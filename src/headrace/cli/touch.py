"""``headrace touch``: wait for changes of rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, Parameter

from headrace.cli import output
from headrace.cli.arguments import LOCAL, Remote
from headrace.cli.output import AsJson, UsageError
from headrace.types import parse_duration_us

if TYPE_CHECKING:
    from headrace.client.touches import Template, Touch

Name = Annotated[str, Parameter(help="The stream; its profile is state-protocol, with touch.")]
Timeout = Annotated[str, Parameter(help="How long, such as 90s; two minutes at most.")]
_MAX_TIMEOUT_S = 120.0
#: Whoever follows does not ask more often.
_MIN_PAUSE_S = 1.0

app = App(
    name="touch",
    help="Wait for changes of rows.",
    version_flags=(),
    help_epilogue=output.examples(
        "headrace touch wait shop todos --timeout 90s",
        "headrace touch wait shop todos user=ada --follow",
        "headrace touch meta shop",
    ),
)


@app.command
def wait(
    name: Name,
    entity: Annotated[str | None, Parameter(help="The table whose rows change.")] = None,
    /,
    *fields: Annotated[str, Parameter(help="Only rows with status=open, or id:int64=7; none: any row of it.")],
    touch_key: Annotated[
        list[str] | None, Parameter(negative=(), help="Or wait for this key; may be repeated.")
    ] = None,
    cursor: Annotated[str, Parameter(help="Begin after this cursor, which an earlier wait printed.")] = "now",
    timeout: Timeout = "30s",
    exact: Annotated[bool, Parameter(negative=(), help="Let no other key end the wait.")] = False,
    follow: Annotated[bool, Parameter(negative=(), help="Go on waiting, until interrupted.")] = False,
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> int:
    """Wait until a row is touched: 0 it was, 3 the time is up, 5 it is unknown; prints the cursor of the next wait."""
    wanted, templates = _keys_and_templates(entity, fields, touch_key or [])
    seconds = min(parse_duration_us(timeout, "timeout") / 1_000_000, _MAX_TIMEOUT_S)
    with remote.connect(retries=follow) as client:
        wait_for = partial(client.stream(name).touch.wait, *wanted, templates=templates, exact=exact)
        ask = partial(wait_for, coarse=not templates and not touch_key)
        if follow:
            _follow(partial(ask, timeout=max(seconds, _MIN_PAUSE_S)), cursor, json)
        touch = ask(cursor=cursor, timeout=seconds)
        _print(touch, json)
    return output.OK if touch.touched else output.PARTIAL if touch.stale else output.TIMED_OUT


def _follow(ask: Callable[..., Touch], cursor: str, as_json: bool) -> NoReturn:
    """Wait again and again; an unknown state is printed once, and polled slowly while it lasts."""
    stale_at = None
    while True:
        touch = ask(cursor=cursor)
        if touch.stale and touch.cursor == stale_at:
            time.sleep(_MIN_PAUSE_S)
        elif touch.stale or touch.touched:
            _print(touch, as_json)
        stale_at = touch.cursor if touch.stale else None
        cursor = touch.cursor


@app.command
def meta(
    name: Name,
    /,
    *,
    settle: Annotated[bool, Parameter(negative=(), help="Wait until everything that was appended is told.")] = False,
    timeout: Timeout = "30s",
    remote: Remote = LOCAL,
    json: AsJson = False,
) -> None:
    """Print the cursor and the state of a stream's touches."""
    with remote.connect() as client:
        seconds = min(parse_duration_us(timeout, "timeout") / 1_000_000, _MAX_TIMEOUT_S)
        output.show(client.stream(name).touch.meta(settle=settle, timeout=seconds), as_json=json)


def _keys_and_templates(
    entity: str | None, fields: tuple[str, ...], touch_keys: list[str]
) -> tuple[list[str], list[Template]]:
    from headrace.client.touches import Template, table_key

    if (entity is None) == (not touch_keys):
        raise UsageError("name a table or keys: headrace touch wait STREAM TABLE, or --touch-key KEY")
    if entity is None or not fields:
        return touch_keys or [table_key(entity or "")], []
    templated = [_field(field) for field in fields]
    template = Template(entity, **{name: encoding for name, encoding, _ in templated})
    return [template.key(**{name: value for name, _, value in templated})], [template]


def _field(text: str) -> tuple[str, str, str | bool]:
    """A field, its encoding and its value, from ``name=value`` or ``name:encoding=value``."""
    left, equals, value = text.partition("=")
    name, _, encoding = left.partition(":")
    if not equals or not name:
        raise UsageError(f"{text!r} is not name=value")
    if encoding == "bool" and value not in ("true", "false"):
        raise UsageError(f"{text!r}: a bool is true or false")
    return name, encoding or "string", value == "true" if encoding == "bool" else value


def _print(touch: Touch, as_json: bool) -> None:
    facts = {"touched": touch.touched, "stale": touch.stale, "cursor": touch.cursor}
    output.show(facts | ({} if touch.error is None else {"reason": touch.error.message}), as_json=as_json)
    sys.stdout.flush()  # whoever follows through a pipe is told now

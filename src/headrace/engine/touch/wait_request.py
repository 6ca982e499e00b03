"""Requests to wait for touches, and the waiters made of them, which are coarser while the stream is under pressure."""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace.engine.touch.active_templates import ActiveTemplates
from headrace.engine.touch.journal import TouchJournal
from headrace.engine.touch.pressure import COARSE_ONLY, RESTRICTED
from headrace.engine.touch.waiters import FINE_KEY, TABLE_KEY, TEMPLATE_KEY, Waiter
from headrace.errors import BadRequest
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.keys import Template

NOW = "now"
MOST_EXACT = 16
_CURSOR = re.compile("([0-9a-f]{16}):([0-9]{1,19})")


class WaitRequest(NamedTuple):
    """A request to wait."""

    cursor: str
    keys: list[str]
    key_ids: list[int]
    coarse: bool = False
    exact: bool = False
    #: Ids of templates that the keys are of.
    templates: tuple[int, ...] = ()
    #: Templates that were declared with it, and could not be taken in.
    refused: tuple[Template, ...] = ()


def parse_cursor(cursor: str, journal: TouchJournal, end: int) -> int | None:
    """The position that a cursor stands for, at most the end; None where it belongs to another journal."""
    if cursor == NOW:
        return end
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise BadRequest("a cursor is <epoch>:<generation>, or now", field="cursor")
    return min(int(match[2]), end) if match[1] == journal.epoch else None


def parse_exact_keys(request: WaitRequest) -> set[int]:
    """The keys of a wait that must not end for any other."""
    parsed_keys = {keys.parse_key(text) for text in request.keys}
    if request.coarse or request.key_ids or None in parsed_keys or not 1 <= len(parsed_keys) <= MOST_EXACT:
        message = f"an exact wait is a fine one, for 1 to {MOST_EXACT} keys of 16 hex digits"
        raise BadRequest(message, field="exact", limit=MOST_EXACT)
    return {key for key in parsed_keys if key is not None}


def make_waiter(request: WaitRequest, since: int, roster: ActiveTemplates, mode: str) -> Waiter:
    """The waiter of a request; templates that are not active are left out."""
    actives = [roster.get(template) for template in request.templates]
    templates = tuple(active.template for active in actives if active is not None)
    tables = {template.table_key for template in (*templates, *request.refused)}
    parsed = {text: keys.parse_key(text) for text in request.keys}
    words = {keys.id_of_text(text) for text, key in parsed.items() if key is None}
    ids, wanted = words | set(request.key_ids), {key for key in parsed.values() if key is not None}
    if request.coarse:
        return Waiter(since, TABLE_KEY, keys=tables or wanted, ids=() if tables else ids)
    fallbacks = {template.key for template in templates} | {template.table_key for template in request.refused}
    kind = TABLE_KEY if request.refused else FINE_KEY
    if templates and mode in (RESTRICTED, COARSE_ONLY):
        kind = TEMPLATE_KEY if mode == RESTRICTED and not request.refused else TABLE_KEY
    return Waiter(
        since, kind, keys=wanted, ids=ids, fine=True, templates=templates, fallbacks=fallbacks, exact=request.exact
    )

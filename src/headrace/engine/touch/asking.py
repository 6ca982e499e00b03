"""What a wait is for: keys as they were asked for, and as they are waited for while the stream is under pressure."""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace.engine.touch.journal import Journal
from headrace.engine.touch.parking import FINE_KEY, TABLE_KEY, TEMPLATE_KEY, Waiter
from headrace.engine.touch.pressure import COARSE_ONLY, RESTRICTED
from headrace.engine.touch.roster import Roster
from headrace.errors import BadRequest
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.templates import Template

NOW = "now"
MOST_EXACT = 16
_CURSOR = re.compile("([0-9a-f]{16}):([0-9]{1,19})")


class Question(NamedTuple):
    """A wait as it was asked for."""

    cursor: str
    keys: list[str]
    key_ids: list[int]
    coarse: bool = False
    exact: bool = False
    #: Ids of templates that the keys are of.
    templates: tuple[int, ...] = ()
    #: Templates that were declared with it, and could not be taken in.
    refused: tuple[Template, ...] = ()


def position_of(cursor: str, journal: Journal, end: int) -> int | None:
    """The position that a cursor stands for, at most the end; None where it belongs to another journal."""
    if cursor == NOW:
        return end
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise BadRequest("a cursor is <epoch>:<generation>, or now", field="cursor")
    return min(int(found[2]), end) if found[1] == journal.epoch else None


def exact_keys(question: Question) -> set[int]:
    """The keys of a wait that must not end for any other."""
    found = {keys.parse_key(text) for text in question.keys}
    if question.coarse or question.key_ids or None in found or not 1 <= len(found) <= MOST_EXACT:
        message = f"an exact wait is a fine one, for 1 to {MOST_EXACT} keys of 16 hex digits"
        raise BadRequest(message, field="exact", limit=MOST_EXACT)
    return {key for key in found if key is not None}


def waiter_for(question: Question, since: int, roster: Roster, mode: str) -> Waiter:
    """Who waits for that; templates that are not active are left out."""
    actives = [roster.get(template) for template in question.templates]
    templates = tuple(active.template for active in actives if active is not None)
    tables = {one.table_key for one in (*templates, *question.refused)}
    parsed = {text: keys.parse_key(text) for text in question.keys}
    words = {keys.id_of_text(text) for text, key in parsed.items() if key is None}
    ids, wanted = words | set(question.key_ids), {key for key in parsed.values() if key is not None}
    if question.coarse:
        return Waiter(since, TABLE_KEY, keys=tables or wanted, ids=() if tables else ids)
    fallbacks = {one.key for one in templates} | {one.table_key for one in question.refused}
    kind = TABLE_KEY if question.refused else FINE_KEY
    if templates and mode in (RESTRICTED, COARSE_ONLY):
        kind = TEMPLATE_KEY if mode == RESTRICTED and not question.refused else TABLE_KEY
    return Waiter(
        since, kind, keys=wanted, ids=ids, fine=True, templates=templates, fallbacks=fallbacks, exact=question.exact
    )

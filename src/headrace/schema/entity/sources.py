"""The names of sources: a caller gives a source by its name, and one without a name is a hash of its content.

The id of a source is its name. So naming a source registers it, in the commit that stores its first observation, and
every later use of the name by the same user is the same source: nothing has to be looked up, and nothing can race.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

import msgspec

from headrace.errors import BadRequest, SourceMismatch

#: The prefix of ids of sources that are hashes of their content.
CONTENT_PREFIX = "src_"
MAX_NAME = 256
#: Visible text, that neither begins nor ends with white space, nor begins as a hash of content does.
_CONTROL = r"\x00-\x1f\x7f"
_EDGE = rf"[^\s{_CONTROL}]"
_PATTERN = rf"^(?!{CONTENT_PREFIX}){_EDGE}([^{_CONTROL}]*{_EDGE})?(?![\s\S])"
_HAS_CONTROL = re.compile(f"[{_CONTROL}]").search

#: The name of a source; `identify` checks it.
SourceName = Annotated[
    str,
    msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_NAME, "pattern": _PATTERN}, examples=["crm-a"]),
]


def identify(name: str | None, source_id: str | None, where: str = "") -> str | None:
    """The id of the source that is given by its name, its id or both; None where neither is.

    An error, which begins with ``where``, says what is wrong with the name, or that it is not the name of this id.
    """
    if name is None:
        return source_id
    fault = find_fault(name)
    if fault is not None:
        raise BadRequest(f"{where}the name of a source {fault}", field="source")
    if source_id is not None and source_id != name:
        raise SourceMismatch(
            f"{where}{name!r} is not the name of the source {source_id!r}: give source or source_id", field="source"
        )
    return name


def find_fault(name: str) -> str | None:
    """What keeps a text from being the name of a source."""
    if not 1 <= len(name) <= MAX_NAME:
        return f"has 1 to {MAX_NAME} characters"
    if _HAS_CONTROL(name):
        return "has no control characters"
    if name != name.strip():
        return "neither begins nor ends with white space"
    if name.startswith(CONTENT_PREFIX):
        return f"does not begin with {CONTENT_PREFIX}: such ids are hashes of contents, and are given as source_id"
    if not unicodedata.is_normalized("NFC", name):
        return "is in Unicode's composed form (NFC), so that equal names are equal text"
    return None


def check_id(source_id: str | None, content_address: str) -> None:
    """Refuse the id of a source that would be the address of other contents."""
    if source_id is not None and source_id != content_address and source_id.startswith(CONTENT_PREFIX):
        raise BadRequest(f"{source_id}: ids that begin with {CONTENT_PREFIX} are those of contents", field="source_id")


def name_of(source_id: str | None) -> str | None:
    """The name of a source; None for a hash of content, and where there is no source."""
    return None if source_id is None or source_id.startswith(CONTENT_PREFIX) else source_id

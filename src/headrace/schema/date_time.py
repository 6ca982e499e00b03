"""The one format that is asserted: ``date-time``."""

from __future__ import annotations

import re

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
#: A real day of the years 1 to 9999, a time without leap seconds, one to nine fraction digits if any, and a zone.
PATTERN = rf"^(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)T{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_CLOCK})$"
_COMPILED = re.compile(PATTERN)


def is_date_time(text: str) -> bool:
    """Whether a text is a ``date-time``."""
    return _COMPILED.fullmatch(text) is not None

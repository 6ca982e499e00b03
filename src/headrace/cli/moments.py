"""Moments on the command line: a date, a date and time, or whatever else the server takes."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(text: str) -> datetime | str:
    """A date, or a date and time, in UTC unless it says otherwise; what else there is, the server judges."""
    if text.isdigit():
        return text
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def spelled(text: str | None) -> str | None:
    """The same as it is written on the wire; nothing where nothing is given."""
    if text is None:
        return None
    found = moment(text)
    return found if isinstance(found, str) else found.isoformat()

"""Values of Python as JSON: its own, and those of numpy, pandas and Arrow, none of which is imported.

A decimal is a number with all its digits, a moment is RFC 3339 with all its digits, bytes are base64, and what pandas
has for a missing value is null. A number that JSON lacks is refused: the encoder would write null in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

import msgspec

#: The names and indexes that lead to a value.
Path = tuple[Any, ...]

_SCALARS: tuple[type[Any], ...] = (str, bytes, float, int)
#: How numpy writes a moment: the length of its text up to each unit.
_MINUTES, _DAY = len("2026-11-15T10:00"), len("2026-11-15")
_MISSING = frozenset({"NAType", "NaTType"})
_MIDNIGHT = "T00:00:00Z"
_ALLOWED = "strings, numbers, booleans, None, dates, bytes, UUIDs, lists and dictionaries"


def to_json(value: Any, *, first_row: int = 0) -> bytes:
    """JSON text; raises TypeError or ValueError that names the row and the field which JSON cannot have.

    The rows of a list are counted from ``first_row`` on.
    """
    try:
        body = _ENCODER.encode(value)
    except (TypeError, ValueError):
        _check_encodable(value, (), first_row)
        raise
    if b"null" in body or b"NaN" in body or b"Infinity" in body:
        _check_finite(msgspec.to_builtins(value, enc_hook=_plain_or_none, builtin_types=(Decimal,)), (), first_row)
    return body


def to_plain(value: Any) -> Any:
    """The value of Python that stands for a scalar, an array or a mapping of another library."""
    library = type(value).__module__.partition(".")[0]
    if library == "pandas" and type(value).__name__ in _MISSING:
        return None
    if library == "numpy":
        return _plain_numpy(value)
    if library == "pyarrow" and hasattr(value, "as_py"):
        return value.as_py()
    if isinstance(value, datetime):  # of pandas, with nanoseconds
        return value.isoformat().replace("+00:00", "Z")
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be JSON; JSON has {_ALLOWED}")


def _plain_numpy(value: Any) -> Any:
    kind = value.dtype.kind
    if value.ndim:
        return [_plain_numpy(part) for part in value] if kind in "Mm" else value.tolist()
    if kind == "M":
        return _numpy_moment(str(value))
    plain = value.item()
    if kind == "m" or type(plain) is type(value):
        raise TypeError(f"numpy.{value.dtype} cannot be JSON; JSON has {_ALLOWED}")
    return plain


def _numpy_moment(text: str) -> str | None:
    """A moment of numpy, which is in UTC; a date where it has no time."""
    if text == "NaT":
        return None
    if "T" not in text:
        return text + "-01" * ((_DAY - len(text)) // len("-01"))
    return text + (":00:00Z" if len(text) < _MINUTES else ":00Z" if len(text) == _MINUTES else "Z")


_ENCODER = msgspec.json.Encoder(enc_hook=to_plain, decimal_format="number")


def moment(value: Any) -> str:
    """A moment as RFC 3339 with all its digits, an integer of nanoseconds as it is; "" for None.

    A date is its first moment in UTC, and a moment of numpy is in UTC.
    """
    if value is None:
        return ""
    if isinstance(value, datetime):
        if type(value).__name__ in _MISSING:
            raise ValueError("NaT is no moment")
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone; use datetime.now(UTC)")
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return f"{value.isoformat()}{_MIDNIGHT}"
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas", "pyarrow"):
        plain = to_plain(value)
        if plain is None:
            raise ValueError(f"{value} is no moment")
        if isinstance(plain, str):
            return plain if "T" in plain else f"{plain}{_MIDNIGHT}"
        return moment(plain)
    raise TypeError(
        f"{value!r} is no moment: use a datetime with a time zone, a date, RFC 3339 text, or Unix nanoseconds"
    )


def _check_finite(value: Any, path: Path, first: int = 0) -> None:
    """Refuse a number that JSON lacks within plain values."""
    if isinstance(value, dict | list | tuple):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value, first):
            _check_finite(part, (*path, name))
    elif isinstance(value, float | Decimal) and not isfinite(value):
        raise ValueError(f"{_where(path)}{value} is a number that JSON does not have; send None, or text")


def _check_encodable(value: Any, path: Path, first: int = 0) -> None:
    """Refuse the first value that cannot be encoded, by its path."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            _check_encodable(part, (*path, name))
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value, first):
            _check_encodable(part, (*path, index))
    else:
        try:
            _ENCODER.encode(value)
        except (TypeError, ValueError) as reason:
            raise TypeError(f"{_where(path)}{reason}") from reason


def _plain_or_none(value: Any) -> Any:
    """The same for values without numbers: raw JSON has none that JSON lacks."""
    return None if isinstance(value, msgspec.Raw) else to_plain(value)


def _where(path: Path) -> str:
    """The row and the field of a value, as the beginning of a message."""
    is_row = bool(path) and isinstance(path[0], int)
    words = [f"row {path[0]}"] if is_row else []
    if field := ".".join(map(str, path[is_row:])):
        words.append(f"field {field!r}")
    return f"{', '.join(words)}: " if words else ""

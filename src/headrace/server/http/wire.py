"""Types of values on the wire; their annotations are for the document, and nothing is checked by them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from headrace.format.offset import OFFSET_PATTERN, OffsetText
from headrace.server.http.auth import MAX_USER

DURATION_PATTERN = r"((0|[1-9][0-9]{0,11})(ms|s|m|h|d))+"

When = Annotated[str, Meta(extra_json_schema={"format": "date-time"}, examples=["2026-01-01T12:00:00.000000Z"])]
NonNegative = Annotated[int, Meta(ge=0)]
Counter = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Digits = Annotated[str, Meta(extra_json_schema={"pattern": r"^(0|[1-9][0-9]{0,17})$"}, examples=["42"])]
Offset = OffsetText
#: An offset, or the start of a stream in every epoch.
AnyOffset = Annotated[str, Meta(extra_json_schema={"anyOf": [{"pattern": f"^{OFFSET_PATTERN}$"}, {"const": "0" * 26}]})]
Moment = Annotated[
    str,
    Meta(
        description="an RFC 3339 time, or Unix nanoseconds",
        extra_json_schema={"anyOf": [{"format": "date-time"}, {"pattern": "^[0-9]{1,20}$"}]},
        examples=["2026-01-01T12:00:00Z"],
    ),
]
Age = Annotated[str, Meta(extra_json_schema={"pattern": f"^(?=.*[1-9]){DURATION_PATTERN}$"}, examples=["24h"])]
#: How long to wait: milliseconds, or a duration.
Wait = Annotated[
    str, Meta(extra_json_schema={"pattern": f"^((0|[1-9][0-9]{{0,17}})|{DURATION_PATTERN})$"}, examples=["20s"])
]
IsTrue = Literal["true"]
TrueFalse = Literal["true", "false"]
Flag = Literal["true", "false", "1", "0"]
#: A boolean that is always true.
AlwaysTrue = Annotated[bool, Meta(extra_json_schema={"const": True})]
User = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_USER})]
NonEmpty = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
#: How far something is that takes a while.
RunState = Annotated[str, Meta(extra_json_schema={"enum": ["running", "done", "failed"]})]
Share = Annotated[float, Meta(ge=0, le=1)]
Binary = Annotated[str, Meta(extra_json_schema={"format": "binary"})]
Object = dict[str, Any]
#: An object that is encoded already.
RawObject = Annotated[Any, Meta(extra_json_schema={"type": "object"})]
#: A JSON Pointer.
Pointer = Annotated[str, Meta(extra_json_schema={"pattern": "^(/([^~/]|~[01])*)*$"}, examples=["/a/b"])]


Wire = TypeVar("Wire", bound=msgspec.Struct)


def fill(kind: type[Wire], document: Mapping[str, Any]) -> Wire:
    """The document as a struct that is encoded in its place; it must have the members of the struct, and no others."""
    names = _names(kind)
    return kind(**{names[name]: value for name, value in document.items()})


@cache
def _names(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}

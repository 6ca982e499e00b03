"""A version of a schema as a file: the same bytes whenever and wherever it is written."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from headrace.schema.entity.nodes import Schema
from headrace.schema.spelling import plain


def path(schema: Schema) -> str:
    """Where the file of a version lies; a user's schemas lie apart."""
    owner = "" if schema.user_id is None else f"users/{quote(schema.user_id, safe='').replace('.', '%2E')}/"
    return f"schema_snapshots/{owner}{schema.entity_type}/v{schema.schema_version}.json"


def export(schema: Schema) -> bytes:
    """The file of a version: members sorted, whole numbers without a fraction, a line feed at the end."""
    document = {name: value for name, value in schema.dump().items() if value is not None}
    return msgspec.json.format(msgspec.json.encode(plain(document), order="sorted"), indent=2) + b"\n"

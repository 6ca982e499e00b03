"""Touches of a stream: templates whose keys are computed here as the server computes them, and waits for those keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.client.json_values import to_json
from headrace.client.requests import Request, stream_path, with_query
from headrace.profiles.state_protocol import keys
from headrace.profiles.state_protocol.keys import ENCODINGS, encode_argument
from headrace.types import JSON

#: The server answers a wait shortly after its timeout.
_GRACE_S = 15.0
WAIT_S = 30.0


class Template:
    """Rows of an entity that are picked by up to three fields: ``Template("todos", status="string", user="int64")``."""

    def __init__(self, entity: str, /, **fields: str) -> None:
        unknown = [encoding for encoding in fields.values() if encoding not in ENCODINGS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(ENCODINGS)}")
        self.entity = entity
        self.fields = dict(sorted(fields.items()))
        self._number = keys.template_id(entity, fields)

    @property
    def id(self) -> str:
        """The id of the template."""
        return keys.format_key(self._number)

    @property
    def table_key(self) -> str:
        """Touched by every change of the entity."""
        return table_key(self.entity)

    def key(self, **values: Any) -> str:
        """Touched when a row with these values changes, comes or goes."""
        return keys.format_key(keys.watch_key(self._number, self._arguments(values)))

    def membership_key(self, **values: Any) -> str:
        """Touched when a row gets these values, or loses them."""
        return keys.format_key(keys.membership_key(self._number, self._arguments(values)))

    def field_key(self, field: str, /, **values: Any) -> str:
        """Touched when a field changes of a row that keeps these values."""
        return keys.format_key(keys.field_key(self._number, field, self._arguments(values)))

    def declaration(self) -> dict[str, Any]:
        """The template as a request declares it."""
        fields = [{"name": name, "encoding": encoding} for name, encoding in self.fields.items()]
        return {"entity": self.entity, "fields": fields}

    def _arguments(self, values: dict[str, Any]) -> list[str]:
        if values.keys() != self.fields.keys():
            raise ValueError(f"this template takes {', '.join(self.fields)}, not {', '.join(values) or 'nothing'}")
        encodings = {name: encode_argument(values[name], encoding) for name, encoding in self.fields.items()}
        for name, argument in encodings.items():
            if argument is None:
                raise ValueError(f"{name}: {values[name]!r} has no form as {self.fields[name]}")
        return [argument for argument in encodings.values() if argument is not None]


def table_key(entity: str) -> str:
    """Touched by every change of an entity."""
    return keys.format_key(keys.table_key(entity))


class Stale(msgspec.Struct, frozen=True):
    """Why a wait cannot know whether something was touched."""

    code: str = ""
    message: str = ""


class Touch(msgspec.Struct, frozen=True, rename="camel"):
    """How a wait ended, and the cursor that the next one begins with."""

    cursor: str
    touched: bool = False
    #: Whether that is unknown: read the data again, and continue from the cursor.
    stale: bool = False
    effective_wait_kind: str = ""
    error: Stale | None = None


class Activation(msgspec.Struct, frozen=True):
    """The outcome of an activation; each template has a ``templateId``."""

    activated: list[dict[str, Any]] = []
    denied: list[dict[str, Any]] = []


def meta(name: str, settle: bool, timeout_s: float) -> Request:
    """GET: the state of the journal, on request once it is settled."""
    query = {"settle": "flush", "timeoutMs": str(int(timeout_s * 1000))} if settle else {}
    wait_s = timeout_s + _GRACE_S if settle else 0.0
    return Request("GET", with_query(f"{stream_path(name)}/touch/meta", query), wait_s=wait_s)


def activate(name: str, templates: Iterable[Template], inactivity_s: float | None) -> Request:
    """POST: activate templates."""
    body: dict[str, Any] = {"templates": [template.declaration() for template in templates]}
    body |= {} if inactivity_s is None else {"inactivityTtlMs": inactivity_s * 1000}
    return _post(f"{stream_path(name)}/touch/templates/activate", body)


def wait(
    name: str, wanted: Iterable[str], cursor: str, timeout_s: float, templates: Sequence[Template], **more: bool
) -> Request:
    """POST: wait for keys, and activate their templates."""
    body: dict[str, Any] = {"cursor": cursor, "keys": list(wanted), "timeoutMs": timeout_s * 1000}
    if templates:
        body["templateIdsUsed"] = [template.id for template in templates]
        body["declareTemplates"] = [template.declaration() for template in templates]
    if more.get("coarse"):
        body["interestMode"] = "coarse"
    if more.get("exact"):
        body["exact"] = True
    return _post(f"{stream_path(name)}/touch/wait", body, timeout_s + _GRACE_S)


def _post(path: str, body: dict[str, Any], wait_s: float = 0.0) -> Request:
    return Request("POST", path, {"content-type": JSON}, to_json(body), wait_s=wait_s, changes=False)

"""Updates from what is sent."""

from __future__ import annotations

from typing import Any

from headrace.schema.entity import change_request
from headrace.schema.entity.update import Update


def request(asked: dict[str, Any]) -> Update:
    """The update that a request of the right shape asks for."""
    found = change_request.read(asked)
    assert isinstance(found, change_request.ChangeRequest), found
    return found.update

"""Updates from what is sent."""

from __future__ import annotations

from typing import Any

from headrace.schema.entity import registration
from headrace.schema.entity.update import TypeUpdate


def request(asked: dict[str, Any]) -> TypeUpdate:
    """The update that a request of the right shape asks for."""
    found = registration.read_change_request(asked)
    assert isinstance(found, registration.ChangeRequest), found
    return found.update

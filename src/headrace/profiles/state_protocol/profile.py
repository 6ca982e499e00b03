"""``state-protocol`` as a profile: its settings, and the hook that judges messages."""

from __future__ import annotations

from headrace.errors import BadRequest
from headrace.profiles.definition import Definition, Settings
from headrace.profiles.hook import Hook
from headrace.profiles.state_protocol import messages, settings
from headrace.profiles.state_protocol.settings import Touch
from headrace.query.document_reader import Part
from headrace.schema.entries import Failure

#: The resources of a stream that this profile serves, where touch is on.
META, ACTIVATE, WAIT = "touch/meta", "touch/templates/activate", "touch/wait"


class StateProtocol(Hook):
    """Takes changes and control marks, and nothing else."""

    def __init__(self, profile_settings: Settings) -> None:
        touch = settings.load_touch(profile_settings["touch"]) if "touch" in profile_settings else None
        #: The settings of touch; None where it is off.
        self.touch: Touch | None = touch if touch is not None and touch.enabled else None

    def failures(self, joined: bytes) -> list[Failure]:
        """What is wrong with messages."""
        return messages.failures(joined)

    def refusal(self, joined: bytes, failures: list[Failure], number: int = 0) -> BadRequest:
        """Why messages are not taken."""
        return messages.refusal(failures, number)


def _read(part: Part) -> Settings:
    if not part.knows(("touch",)) or not part["touch"].is_given:
        return {}
    return {"touch": settings.dump_touch(settings.read(part["touch"]))}


STATE_PROTOCOL = Definition(
    name="state-protocol", read=_read, hook=StateProtocol, routes=frozenset({META, ACTIVATE, WAIT})
)

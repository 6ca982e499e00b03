"""The profile ``state-protocol``: its settings, and the hook that checks messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from headrace import decoding
from headrace.errors import BadRequest
from headrace.profiles.definition import Definition, Settings
from headrace.profiles.hook import AppendHook
from headrace.profiles.state_protocol import messages
from headrace.query.document_reader import Part
from headrace.schema.entries import Failure

_Above = Annotated[float, Meta(gt=0)]
_NotBelow = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=0)]
_Some = Annotated[int, Meta(gt=0)]


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What the journal of touches holds."""

    bucket_ms: _Some = 100
    filter_pow2: Annotated[int, Meta(ge=10, le=30)] = 22
    k: Annotated[int, Meta(ge=1, le=8)] = 4
    pending_max_keys: _Some = 100_000
    key_index_max_keys: Annotated[int, Meta(ge=1, le=1024)] = 32
    hot_key_ttl_ms: _Some = 10_000
    hot_template_ttl_ms: _Some = 10_000
    hot_max_keys: _Some = 1_000_000
    hot_max_templates: _Some = 4096


class Templates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How many templates are active, and for how long."""

    default_inactivity_ttl_ms: _NotBelow = 3_600_000
    last_seen_persist_interval_ms: _Above = 300_000
    gc_interval_ms: _Above = 60_000
    max_active_templates_per_entity: _Some = 256
    max_active_templates_per_stream: _Some = 2048
    activation_rate_limit_per_minute: _NotBelow = 100


class Touch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """All of them, with their defaults."""

    enabled: bool = False
    coarse_interval_ms: _Above = 100
    touch_coalesce_window_ms: _Above = 100
    on_missing_before: Literal["coarse", "skipBefore", "error"] = "coarse"
    lag_degrade_fine_touches_at_source_offsets: _Count = 5000
    lag_recover_fine_touches_at_source_offsets: _Count = 1000
    fine_touch_budget_per_batch: _Count = 2000
    fine_tokens_per_second: _Count = 200_000
    fine_burst_tokens: _Count = 400_000
    lag_reserved_fine_touch_budget_per_batch: _Count = 200
    memory: Memory = Memory()
    templates: Templates = Templates()


def read_touch(part: Part) -> Touch:
    """The settings of a document; unknown ones and those out of range are noted, each at its place."""
    return _read_section(part, Touch)


def dump_touch(touch: Touch) -> dict[str, Any]:
    """The settings as they are shown and stored; where touch is disabled, only that."""
    document: dict[str, Any] = msgspec.to_builtins(touch)
    return document if touch.enabled else {"enabled": False}


def load_touch(document: dict[str, Any]) -> Touch:
    """The settings of a stored document."""
    return decoding.convert(document, Touch)


_Section = TypeVar("_Section", bound=msgspec.Struct)


def _read_section(part: Part, section: type[_Section]) -> _Section:
    fields = {field.encode_name: field for field in msgspec.structs.fields(section)}
    if not part.knows(fields):
        return section()
    members: dict[str, Any] = {}
    for name, field in fields.items():
        if not part[name].is_present:
            continue
        if isinstance(field.default, msgspec.Struct):
            members[field.name] = _read_section(part[name], type(field.default))
        else:
            members[field.name] = _value(part[name], field.type, field.default)
    return section(**members)


def _value(part: Part, kind: Any, default: Any) -> Any:
    try:
        return decoding.convert(part.value, kind)
    except msgspec.ValidationError as reason:
        text = str(reason)
        part.note(text[:1].lower() + text[1:])
        return default


#: The resources of a stream that this profile serves, where touch is on.
META, ACTIVATE, WAIT = "touch/meta", "touch/templates/activate", "touch/wait"


class StateProtocol(AppendHook):
    """Takes changes and control marks, and nothing else."""

    def __init__(self, settings: Settings) -> None:
        touch = load_touch(settings["touch"]) if "touch" in settings else None
        #: The settings of touch; None where it is off.
        self.touch: Touch | None = touch if touch is not None and touch.enabled else None

    def failures(self, joined: bytes, timestamp_us: int | None = None) -> list[Failure]:
        """What is wrong with messages."""
        return messages.failures(joined)

    def refusal(self, joined: bytes, failures: list[Failure], number: int = 0) -> BadRequest:
        """Why messages are not taken."""
        return messages.refusal(failures, number)


def _read(part: Part) -> Settings:
    if not part.knows(("touch",)) or not part["touch"].is_present:
        return {}
    return {"touch": dump_touch(read_touch(part["touch"]))}


STATE_PROTOCOL = Definition(
    name="state-protocol", read=_read, hook=StateProtocol, routes=frozenset({META, ACTIVATE, WAIT})
)

"""The options of the data source: Kafka's names where Kafka has them, in any letter case; what is wrong is named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, NamedTuple, cast

from headrace.client.client import Client
from headrace.errors import BadRequest
from headrace.format import offset as offsets

Mode = Literal["typed", "envelope"]
StoreAccess = Literal["auto", "direct", "http"]
_NAMES = (
    "url", "stream", "keyFile", "caFile", "mode", "schemaVersion", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "storeAccess",
)  # fmt: skip
_SPELLINGS = {name.lower(): name for name in _NAMES}
_NOT_OPTIONS = {
    "key": "options are logged: give the key in the environment variable HEADRACE_KEY, or in a file with keyFile",
    "path": "the stream is named with the option stream",
    "maxoffsetspertrigger": "it is of streaming reads, which this version does not have",
}
DEFAULT_URL = "http://127.0.0.1:4437"


class ReadOptions(NamedTuple):
    """The options of one read, checked."""

    url: str
    stream: str
    key_file: str | None
    ca_file: str | None
    #: None where the stream says: typed where it has a schema.
    mode: Mode | None
    schema_version: int | None
    starting_offset: str
    ending_offset: str
    starting_timestamp: str | None
    ending_timestamp: str | None
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    store_access: StoreAccess

    def connect(self) -> Client:
        """A client of the server, with the key of this machine."""
        key = os.environ.get("HEADRACE_KEY")
        if self.key_file is not None:
            try:
                key = Path(self.key_file).read_text().strip()
            except OSError as reason:
                raise BadRequest(f"keyFile: {reason}", field="keyFile") from reason
        return Client(self.url, key or None, ca_file=self.ca_file)


def read_options(all_options: Mapping[str, str]) -> ReadOptions:
    """Checked options; raises BadRequest, which names the option, for the first that is wrong."""
    options = {_spelled(name): value for name, value in all_options.items()}
    if not options.get("stream"):
        raise BadRequest('stream: name the stream to read with .option("stream", …)', field="stream")
    _refuse_both(options, "startingOffsets", "startingTimestamp")
    _refuse_both(options, "endingOffsets", "endingTimestamp")
    return ReadOptions(
        url=options.get("url") or os.environ.get("HEADRACE_URL") or DEFAULT_URL,
        stream=options["stream"],
        key_file=options.get("keyFile"),
        ca_file=options.get("caFile") or os.environ.get("HEADRACE_CA_FILE"),
        mode=cast("Mode | None", _choice(options, "mode", ("typed", "envelope"))),
        schema_version=_count(options, "schemaVersion"),
        starting_offset=_offset(options, "startingOffsets", "earliest"),
        ending_offset=_offset(options, "endingOffsets", "latest"),
        starting_timestamp=options.get("startingTimestamp"),
        ending_timestamp=options.get("endingTimestamp"),
        min_partitions=_count(options, "minPartitions"),
        max_records_per_partition=_count(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_choice(options, "failOnDataLoss", ("true", "false")) != "false",
        store_access=cast("StoreAccess", _choice(options, "storeAccess", ("auto", "direct", "http")) or "auto"),
    )


def _spelled(name: str) -> str:
    spelled = _SPELLINGS.get(name.lower())
    if spelled is not None:
        return spelled
    if name.lower() in _NOT_OPTIONS:
        raise BadRequest(f"{name} is no option: {_NOT_OPTIONS[name.lower()]}", field=name)
    near = get_close_matches(name.lower(), _SPELLINGS, 1)
    hint = f"did you mean {_SPELLINGS[near[0]]}?" if near else f"there are {', '.join(_NAMES)}"
    raise BadRequest(f"{name} is no option of headrace: {hint}", field=name)


def _refuse_both(options: Mapping[str, str], *names: str) -> None:
    if all(name in options for name in names):
        raise BadRequest(f"{' and '.join(names)} cannot be combined", field=names[-1])


def _choice(options: Mapping[str, str], name: str, values: tuple[str, ...]) -> str | None:
    value = options.get(name)
    if value is not None and value.lower() not in values:
        raise BadRequest(f"{name}: {value!r} is none of {', '.join(values)}", field=name)
    return None if value is None else value.lower()


def _count(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and 0 < int(value) < 2**31):
        raise BadRequest(f"{name}: {value!r} is not a whole number from 1 on", field=name)
    return int(value)


def _offset(options: Mapping[str, str], name: str, default: str) -> str:
    """An offset as the server takes it."""
    value = options.get(name, default)
    if value.lower() in ("earliest", "latest"):
        return "-1" if value.lower() == "earliest" else "now"
    try:
        offsets.decode(value)
    except ValueError as reason:
        raise BadRequest(f"{name}: {value!r} is neither earliest, latest nor an offset: {reason}", field=name) from None
    return value

"""Streams with search fields on a rig: events in several versions, companions at any progress, and what is found."""

from __future__ import annotations

import copy
from itertools import count
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from engine.registries import change, registry
from headrace.deadline import Deadline
from headrace.engine.log.stream import Stream
from headrace.engine.search.archive import Archive
from headrace.engine.search.search import SearchHits, search
from headrace.extract.columns import Extractor
from headrace.extract.postings import describe_companion, postings, stored_columns
from headrace.format.companion.layout import LIMITS, Companion, Limits
from headrace.format.companion.writer import write
from headrace.format.object_names import companion_key
from headrace.query import request as requests
from headrace.query.definition import decode_exact
from headrace.query.search import Search
from headrace.storage.derived import Companions
from headrace.types import JSON
from query.declarations import DOCUMENT
from server.registries import lens
from support.engine_rig import Rig, array

NAMES = count()
_PLACES = ("time", "service", "path", "request", "tags", "duration", "error", "why", "mute", "level")


def _shape(*more: str) -> dict[str, Any]:
    properties: dict[str, Any] = dict.fromkeys((*_PLACES, *more), True)
    if "http" in more:
        properties["http"] = {"type": "object", "properties": {"status": True}, "additionalProperties": False}
    return {"type": "object", "properties": properties, "additionalProperties": False}


#: The shapes of three versions, and how each becomes the next: a field is renamed, another goes into an object.
SHAPES = [_shape("code", "body"), _shape("code", "message"), _shape("http", "message")]
LENSES = [
    [{"op": "rename", "from": "/body", "to": "/message", "optional": True}],
    [{"op": "plunge", "from": "/code", "host": "/http", "name": "status", "optional": True}],
]


def document(version: int) -> dict[str, Any]:
    """A search document that uses everything, as it can be at a version."""
    given = copy.deepcopy(DOCUMENT)
    for name in ("status", "duration", "service", "error", "tags"):
        given["fields"][name]["sortable"] = True
    given["fields"]["message"]["bindings"] = [
        {"version": 1, "jsonPointer": "/body"},
        {"version": 2, "jsonPointer": "/message"},
    ]
    for name, field in list(given["fields"].items()):
        field["bindings"] = [binding for binding in field["bindings"] if binding["version"] <= version]
        if not field["bindings"]:
            del given["fields"][name]
    return given


class Asked(NamedTuple):
    """What was found, and the request that found it."""

    request: requests.SearchRequest
    found: SearchHits

    @property
    def seqs(self) -> list[int]:
        return [hit.seq for hit in self.found.hits]


class Searched:
    """A stream to search."""

    def __init__(self, rig: Rig, given: dict[str, Any] | None = None, schema: Any = None) -> None:
        self.rig = rig
        self.name = f"s{next(NAMES)}"
        rig.create(self.name, JSON)
        change(rig, self.name, schema=schema or SHAPES[0], search=given or document(1))

    @classmethod
    def of(cls, rig: Rig, name: str) -> Searched:
        """A stream that is there."""
        made = cls.__new__(cls)
        made.rig, made.name = rig, name
        return made

    @property
    def stream(self) -> Stream:
        return self.rig.find(self.name)

    @property
    def archive(self) -> Archive:
        return self.rig.engine.caches.archive()

    @property
    def search(self) -> Search:
        return self.archive.defined(self.stream, self.stream.head).definition.search

    def evolve(self) -> None:
        """Take the stream to its next version."""
        version = registry(self.rig, self.name).current_version
        given = lens(self.name, version, *LENSES[version - 1])
        change(self.rig, self.name, schema=SHAPES[version], lens=given, search=document(version + 1))

    def append(self, *events: Any) -> None:
        self.rig.append(self.name, array(*events))

    def documents(self) -> dict[int, Any]:
        """Every retained event in the newest shape."""
        first = self.stream.head.first_seq
        return dict(enumerate(map(decode_exact, self.rig.read(self.name, first)), first))

    def ask(self, q: str, **more: Any) -> Asked:
        """Search, as of now."""
        stream, head = self.stream, self.stream.head
        defined = self.archive.defined(stream, head)
        asked = requests.read({"q": q, **more}, defined.definition.search)
        # A busy machine is no reason to find less.
        deadline = Deadline(asked.timeout_ms / 1000 if "timeout_ms" in more else 60)
        return Asked(asked, search(self.archive, stream, head, defined, asked, deadline))

    def pages(self, q: str, **more: Any) -> list[Asked]:
        """All pages."""
        pages = [self.ask(q, **more)]
        while pages[-1].found.last is not None:
            pages.append(self.ask(q, **{**more, "search_after": pages[-1].found.last}))
        return pages

    def index(self, start: int, stop: int, limits: Limits = LIMITS, level: int = 0) -> Companion:
        """Describe a range of events by a companion in files, as the pipeline would."""
        stream, head = self.stream, self.stream.head
        defined = self.archive.defined(stream, head)
        definition = defined.definition
        batches = []
        with self.archive.snapshot(stream, head, defined) as look:
            at = start
            while at < stop:
                chunk = look.events.first_chunk(at, stop)
                batches += list(look.events.batches(chunk))
                at = chunk.stop
        rows = pa.Table.from_batches(batches)
        columns = Extractor(definition).columns(rows)
        version = pc.max(rows.column("version")).as_py()
        facts = {"stream": stream.name, "incarnation": stream.incarnation, "segments": 1, "level": level}
        info = describe_companion(columns, definition, first_seq=start, through_version=version, **facts)
        place = self.rig.engine.objects.local_path(companion_key(stream.name, stream.incarnation, "0-0-0", "columns"))
        assert place is not None
        place.parent.mkdir(parents=True, exist_ok=True)
        made = write(
            place.parent,
            info,
            unique=f"{next(NAMES):08x}",
            columns=stored_columns(columns),
            postings=postings(columns, definition),
            limits=limits,
        )
        self.rig.run(self.rig.engine.apply(lambda batch: Companions(batch.connection).add(stream.id, made)))
        return made

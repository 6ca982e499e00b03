"""The lives of streams on a server: what happens to each comes from its seed, and is the same in every run."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace.format import offset as offsets
from headrace.query.definition import Definition
from headrace.query.search import Search
from headrace.schema.registry import Registry
from support.changing_streams import KEYS, Loose, Shape, evolved
from support.generated_search import Searching
from support.http_caller import Caller

ROUTING = {"jsonPointer": "/k", "required": False}


class Life:
    """One stream: the keys of its events, and the shape that each version of it has."""

    def __init__(self, caller: Caller, seed: int) -> None:
        self.name = f"life-{seed}"
        self.random = Random(self.name)
        self.caller = caller
        self._is_loose = seed % 9 == 8
        self._forget_all()

    def _forget_all(self) -> None:
        self._shapes: dict[int, Shape] = {}
        self.keys: list[str | None] = []
        self.tails = {0: offsets.START}

    # -- what happens

    def begin(self) -> None:
        """The stream is created; it has a schema, a search configuration, and often a routing key."""
        loose = self._is_loose
        shape = (Loose if loose else Shape).first(self.random)
        self._searching = Searching(self.random, shape.places)
        self._shapes[1] = shape
        self.caller.done("PUT", self.name)
        self._change(schema=shape.schema, search=self._searching.document)
        self.routed = not loose and self.random.random() < 0.6
        if self.routed:
            self._change(routingKey=ROUTING)

    def fork(self, source: Life) -> None:
        """The stream begins as another one was at some place."""
        place = self.random.choice([at for at in source.tails if at >= source.first_seq()])
        at = {"Stream-Forked-From": f"/v1/stream/{source.name}", "Stream-Fork-Offset": source.tails[place]}
        self.caller.done("PUT", self.name, headers=at)
        registry = self.registry()
        self._shapes = {version: source._shapes[version] for version in registry.schemas}
        self._searching = Searching(self.random, {})
        self._searching.document = registry.search
        self.routed = registry.routing_key is not None
        self.keys = source.keys[:place]
        self.tails = {seq: text for seq, text in source.tails.items() if seq <= place}

    def begin_again(self) -> None:
        """The stream is deleted, and another one has its name."""
        self.caller.done("DELETE", self.name)
        self._forget_all()
        self.begin()

    def go_on(self, phase: int) -> None:
        """Appends, and before some of them changes of its schema or its search."""
        for _ in range(self.random.randint(1, 3)):
            chance = self.random.random()
            if phase and chance < 0.35:
                self.evolve()
            elif phase and chance < 0.6:
                self._change(search=self._searching.change(self.random))
            self.append(self.random.randint(3, 25))

    def append(self, count: int) -> None:
        """So many events in one request."""
        events = [self.shape.event(self.random) for _ in range(count)]
        key = None if self.routed or self.random.random() < 0.5 else self.random.choice(KEYS[:1])
        answer = self.caller.done("POST", self.name, events, {"Stream-Key": key} if key else {})
        self.keys += [event.get("k") for event in events] if self.routed else [key] * count
        self.tails[len(self.keys)] = answer.headers["stream-next-offset"]

    def evolve(self) -> None:
        """The next version, with a lens; search follows at once, or is left behind for a while."""
        shape, version = self.shape, self.version
        if isinstance(shape, Loose):
            return
        ops, made = evolved(self.random, shape)
        lens = {"apiVersion": "durable.lens/v1", "schema": self.name, "from": version, "to": version + 1, "ops": ops}
        follows = {"search": self._searching.follow(version + 1, made.places)} if self.random.random() < 0.8 else {}
        self._change(schema=made.schema, lens=lens, **follows)
        self._shapes[version + 1] = made

    def forget(self, size: int | None) -> None:
        """Keep so many bytes, or from now on everything."""
        self.caller.done("POST", f"{self.name}/_retention", {"bytes": size})

    # -- what is there

    @property
    def version(self) -> int:
        return max(self._shapes)

    @property
    def shape(self) -> Shape:
        """What is appended now."""
        return self._shapes[self.version]

    def registry(self) -> Registry:
        return Registry.load(self.caller.done("GET", f"{self.name}/_schema").json())

    def search(self) -> Search:
        definition = Definition.of(self.registry())
        assert definition is not None
        return definition.search

    def documents(self) -> dict[int, Any]:
        """The retained events as a plain read gives them."""
        found = self.caller.entries(self.name)
        return dict(enumerate(found, len(self.keys) - len(found)))

    def documents_of(self, version: int) -> dict[int, Any]:
        """The same in the shape of a version, up to the first that has no such form."""
        return dict(enumerate(self.caller.entries(self.name, schema_version=str(version)), self.first_seq()))

    def first_seq(self) -> int:
        return len(self.keys) - len(self.documents())

    def retained(self) -> int:
        """How many events are retained, in whatever version they can be read."""
        return sum(each["count"] for each in self.caller.done("GET", f"{self.name}/_plan").json()["ranges"])

    def pending(self) -> int:
        """How many events are in no segment yet."""
        return int(self._details()["pending_rows"])

    def segments(self) -> int:
        return int(self._details()["segment_count"])

    def bytes(self) -> int:
        """How much is kept."""
        return int(self._details()["total_size_bytes"])

    def _details(self) -> dict[str, Any]:
        found: dict[str, Any] = self.caller.done("GET", f"{self.name}/_details").json()["stream"]
        return found

    def _change(self, **body: Any) -> None:
        self.caller.done("POST", f"{self.name}/_schema", body)

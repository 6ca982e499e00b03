"""How often the object store was asked: in all, and for the streams that were asked for last."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Literal

from headrace.format.companion.names import COMPANIONS
from headrace.format.manifest import MANIFESTS, SEGMENTS

Verb = Literal["put", "get", "head", "list", "delete"]
Outcome = Literal["ok", "missing", "error"]

_ARTIFACTS = {MANIFESTS: "manifest", SEGMENTS: "segment", COMPANIONS: "bundled_companion"}
STREAMS = 2_000


class Requests:
    """Counts of requests; those of a stream are forgotten when many others came after it, the totals never."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[tuple[str, Verb, Outcome]] = Counter()
        self._streams: OrderedDict[str, Counter[tuple[str, Verb]]] = OrderedDict()

    def count(self, verb: Verb, key: str, outcome: Outcome) -> None:
        """One more request for the object, or the prefix, of this key."""
        top, _, rest = key.partition("/")
        artifact, stream = _ARTIFACTS.get(top, "meta"), rest.partition("/")[0]
        with self._lock:
            self._totals[artifact, verb, outcome] += 1
            if stream and artifact != "meta":
                self._streams.setdefault(stream, Counter())[artifact, verb] += 1
                self._streams.move_to_end(stream)
                if len(self._streams) > STREAMS:
                    self._streams.popitem(last=False)

    def totals(self) -> dict[tuple[str, Verb, Outcome], int]:
        """(artifact, verb, outcome) → requests since the start."""
        with self._lock:
            return dict(self._totals)

    def of(self, name_hash: str) -> dict[tuple[str, Verb], int]:
        """(artifact, verb) → requests for one stream, by the hash of its name."""
        with self._lock:
            return dict(self._streams.get(name_hash, {}))

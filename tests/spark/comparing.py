"""Answers of a server against a brute force over what plain reads give; every comparison is one case."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

from engine.search.oracle import Oracle
from headrace.format import offset as offsets
from headrace.query import predicate
from headrace.query import request as requests
from headrace.query.search import Distinct, Quantiles, Rollup
from headrace.query.sort import Order
from headrace.query.syntax import text
from headrace.reduce import request as aggregates
from reduce import oracle as reduced
from spark.lives import Life
from support import generated_queries as asking

#: Sketches hold so many values as they are; beyond, what they say has an error.
_EXACT = 150
_TRIES = 20
_PAGES = 6


class Comparison:
    """Questions to one stream, as it is now."""

    def __init__(self, life: Life, mark: str) -> None:
        self._caller, self._life = life.caller, life
        self._random = Random(f"{life.name} {mark}")
        self._search = life.search()
        self._documents = life.documents()
        self._oracle = Oracle(self._search, self._documents)

    def run(self, count: int) -> int:
        """So many questions of all kinds; answers how many answers were compared."""
        kinds = [self.search, self.search, self.filter, self.aggregate]
        for number in range(count):
            kinds[number % len(kinds)]()
        if self._life.routed:
            self.routing_keys()
        assert len(self._life.documents()) == len(self._documents), "nothing may change while it is compared"
        return count + self._life.routed

    def search(self) -> None:
        """All pages of a search."""
        body = asking.searched(self._random, self._search)
        asked = requests.read(body, self._search)
        wanted = self._oracle.expected(asked)
        body["size"] = max(body["size"], len(wanted) // _PAGES)
        found: list[Any] = []
        while True:
            page = self._page(body)
            assert page["coverage"]["complete"], body
            assert not body.get("track_total_hits") or page["total"] == {"value": len(wanted), "relation": "eq"}, body
            found += page["hits"]
            if page["next_search_after"] is None:
                break
            body["search_after"] = page["next_search_after"]
        seqs = [offsets.decode(hit["offset"]).position - 1 for hit in found]
        assert seqs == [seq for seq, _ in wanted], (body, seqs, wanted)
        for hit, (seq, place) in zip(found, wanted, strict=True):
            _check_hit(hit, place, self._documents[seq], asked.order)

    def _page(self, body: dict[str, Any]) -> Any:
        path, parameters = f"{self._life.name}/_search", _parameters(body)
        for _ in range(_TRIES):
            if len(body["q"]) % 2:
                answer = self._caller.ask("POST", path, body)
            else:
                answer = self._caller.ask("GET", path, **parameters)
            if answer.status != 408:  # on a busy machine there may be too little time
                break
        assert answer.status == 200, (body, answer.content)
        return answer.json()

    def filter(self) -> None:
        """A filtered read, to its end; the events may be wanted in the shape of an older version."""
        tree, key = asking.filtered(self._random, self._search)
        first = next(iter(self._documents), len(self._life.keys))
        start = self._random.choice([at for at in self._life.tails if at >= first] or [len(self._life.keys)])
        query = {"filter": text(tree), "offset": self._life.tails[start]}
        if key is not None:
            query["key"] = key
        holds, keys = predicate.compile(tree, self._search), self._life.keys
        matches = [
            seq
            for seq, document in self._documents.items()
            if seq >= start and holds(document) and key in (None, keys[seq])
        ]
        given = self._documents
        if self._random.random() < 0.2:
            version = self._random.randint(1, self._life.version)
            query["schema_version"] = str(version)
            given = self._life.documents_of(version)
            # The first that has no such form ends every plain read, but only reads that match it here.
            whole = len(given) == len(self._documents)
            matches = [seq for seq in matches if seq in given]
            found = self._caller.entries(self._life.name, **query)
            assert found[: len(matches)] == [given[seq] for seq in matches], query
            assert not whole or len(found) == len(matches), query
            return
        assert self._caller.entries(self._life.name, **query) == [given[seq] for seq in matches], query

    def aggregate(self) -> None:
        """The buckets of a rollup."""
        body, rollup = asking.aggregated(self._random, self._search)
        given = aggregates.read(body, self._search)
        asked = given.aggregate
        wanted = reduced.buckets(
            rollup,
            self._search,
            list(self._documents.values()),
            interval=asked.interval,
            start=asked.start,
            end=asked.end,
            group_by=asked.group_by,
            measures=asked.measures,
            where=given.where,
        )
        answer = self._caller.done("POST", f"{self._life.name}/_aggregate", body).json()
        assert answer["coverage"]["complete"], body
        _check_buckets(answer["buckets"], wanted, rollup, body)

    def routing_keys(self) -> None:
        """All pages of the keys."""
        wanted = sorted({key for seq in self._documents if (key := self._life.keys[seq]) is not None})
        found: list[str] = []
        query = {"limit": str(self._random.choice([1, 2, 100]))}
        while True:
            page = self._caller.done("GET", f"{self._life.name}/_routing_keys", **query).json()
            assert page["coverage"]["complete"]
            found += page["keys"]
            if page["next_after"] is None:
                break
            query["after"] = page["next_after"]
        assert found == wanted


def _parameters(body: dict[str, Any]) -> dict[str, str]:
    """A search as query parameters."""
    return {
        "q": body["q"],
        "size": str(body["size"]),
        **({"sort": ",".join(body["sort"])} if "sort" in body else {}),
        **({"track_total_hits": "true"} if "track_total_hits" in body else {}),
        **({"search_after": json.dumps(body["search_after"])} if "search_after" in body else {}),
    }


def _check_hit(hit: dict[str, Any], place: tuple[Any, ...], document: Any, order: Order) -> None:
    assert hit["source"] == document
    for key, given, wanted in zip(order, hit["sort"], place, strict=True):
        if key.is_score:
            assert math.isclose(given, wanted, abs_tol=1e-6) and given == hit["score"]
        elif not key.is_offset:
            assert given == wanted and type(given) is type(wanted), (key.name, given, wanted)


def _check_buckets(found: Any, wanted: Any, rollup: Rollup, body: Any) -> None:
    assert [bucket["start"] for bucket in found] == [bucket["start"] for bucket in wanted], body
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["end"] == theirs["end"]
        keys = [[group["key"] for group in bucket["groups"]] for bucket in (ours, theirs)]
        assert keys[0] == keys[1], (body, ours["start"], keys)
        for one, other in zip(ours["groups"], theirs["groups"], strict=True):
            assert one["measures"].keys() == other["measures"].keys(), body
            for name, value in other["measures"].items():
                given = one["measures"][name]
                assert _is_close(rollup.measures[name], given, value), (
                    body,
                    ours["start"],
                    one["key"],
                    name,
                    given,
                    value,
                )


def _is_close(measure: Any, given: Any, wanted: Any) -> bool:
    if isinstance(measure, Distinct):
        return abs(given["distinct"] - wanted["distinct"]) <= (0 if wanted["distinct"] < _EXACT else 0.05 * _EXACT)
    if isinstance(measure, Quantiles):
        assert wanted["count"] < _EXACT, "streams are small enough for sketches to be exact"
    return _same(given, wanted)


def _same(given: Any, wanted: Any) -> bool:
    """Whole numbers are the same, others almost."""
    if isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(_same(given[name], value) for name, value in wanted.items())
    if isinstance(wanted, float) or isinstance(given, float):
        return given is not None and wanted is not None and math.isclose(given, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return bool(given == wanted)

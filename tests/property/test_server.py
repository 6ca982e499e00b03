"""A real server and plain lists, driven through all verbs side by side, with restarts in between."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from itertools import count
from typing import Any

import httpx2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from property.life import Life, Triple

JSON, TEXT, OCTETS = "application/json", "text/plain", "application/octet-stream"
NAMES = ("a", "b", "c", "d", "e", "f")
KEYS = (None, "k", "ключ")
SHIFTS = (0, 0, 0, 0, -1, 1)
LIVES = count()
names = st.sampled_from(NAMES)
# Mostly names where something can happen.
living = st.runner().flatmap(lambda m: st.sampled_from(m.named("live") or NAMES)) | names
free = st.runner().flatmap(lambda m: st.sampled_from(m.named("gone", "none") or NAMES)) | names


class Machine(RuleBasedStateMachine):
    """Every rule asks the server and the lists the same thing."""

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server = server
        self.prefix = f"life-{next(LIVES)}/"
        self.lives: dict[str, Life] = {}
        self.stale: list[str] = []
        self.written = count()
        self.restarts = 0
        self._connect()

    def _connect(self) -> None:
        self.http = httpx2.Client(base_url=self.server.url, timeout=20)

    def teardown(self) -> None:
        try:
            self._check_everything()
        finally:
            self.http.close()

    def ask(self, method: str, name: str, *, expect: int, body: str = "", **headers: Any) -> httpx2.Response:
        given = {key.replace("_", "-").encode(): v.encode() for key, v in headers.items() if v is not None}
        target = name if name.startswith("/") else f"/v1/stream/{self.prefix}{name}"
        answer = self.http.request(method, target, content=body.encode(), headers=given)
        assert answer.status_code == expect, (answer.status_code, answer.text, target, headers)
        if answer.status_code >= 400 and method != "HEAD":
            assert answer.json()["error"]["code"]
        return answer

    def missing(self, name: str) -> int | None:
        """The status of every verb but PUT where no living stream has this name."""
        life = self.lives.get(name)
        if life is None or life.state == "gone":
            return 404
        return 410 if life.state == "soft" else None

    def named(self, *states: str) -> list[str]:
        """The names whose streams are in one of these states."""
        return [n for n in NAMES if (self.lives[n].state if n in self.lives else "none") in states]

    def texts(self, values: list[str]) -> list[str]:
        """Entries that are all different, as compact JSON texts."""
        return [json.dumps([next(self.written), value], ensure_ascii=False, separators=(",", ":")) for value in values]

    @staticmethod
    def body_of(life: Life, texts: list[str]) -> str:
        return f"[{','.join(texts)}]" if life.is_json and texts else "".join(texts)

    def remember(self, life: Life) -> None:
        before = self.lives.get(life.name)
        if before is not None:
            self.stale += sorted(before.own_offsets())
        self.lives[life.name] = life

    # --- the verbs

    @initialize(content_type=st.sampled_from([JSON, TEXT]))
    def begin_with_two_streams(self, content_type: str) -> None:
        for name in NAMES[:2]:
            self.put(name, content_type, ["begin", "here"], False, None)
            self.append(name, ["on"], "k", None, None, None, False, False)

    @rule(
        name=free,
        content_type=st.sampled_from([JSON, JSON, TEXT, OCTETS]),
        values=st.lists(st.text("xé", max_size=9), max_size=3),
        closed=st.sampled_from([False] * 5 + [True]),
        retention=st.none() | st.integers(0, 60),
    )
    def put(self, name: str, content_type: str, values: list[str], closed: bool, retention: int | None) -> None:
        found = self.lives.get(name)
        life = Life(name, content_type)
        life.closed, life.retention = closed, retention
        texts = self.texts(values)
        headers: dict[str, str | None] = {
            "content_type": content_type,
            "stream_closed": "true" if closed else None,
            "stream_retention_bytes": None if retention is None else str(retention),
        }
        body = self.body_of(life, texts)
        if found is None or found.state == "gone":
            answer = self.ask("PUT", name, body=body, expect=201, **headers)
            life.add(texts, None)
            life.learn(len(life), answer.headers["stream-next-offset"])
            self.remember(life)
        else:
            same = (found.content_type, found.closed, found.origin) == (content_type, closed, None)
            self.ask("PUT", name, body=body, expect=200 if same and found.state == "live" else 409, **headers)

    @rule(
        name=living,
        values=st.lists(st.text("yß", max_size=9), max_size=3),
        key=st.sampled_from(KEYS),
        producer=st.none() | st.tuples(st.sampled_from("pq"), st.sampled_from(SHIFTS), st.sampled_from(SHIFTS)),
        seq=st.none() | st.sampled_from(["1", "10", "2", "ä"]),
        match=st.sampled_from([None] * 5 + ["tail", "old", "*"]),
        close=st.sampled_from([False] * 6 + [True]),
        quoted=st.booleans(),
    )
    def append(
        self,
        name: str,
        values: list[str],
        key: str | None,
        producer: Triple | None,
        seq: str | None,
        match: str | None,
        close: bool,
        quoted: bool,
    ) -> None:
        life = self.lives.get(name)
        if life is None or life.state != "live":
            self.ask("POST", name, body="1", expect=self.missing(name) or 0, content_type=OCTETS)
            return
        texts = self.texts(values)
        triple = self._triple(life, producer)
        wanted = self._wanted(life, match)
        status, applies = self._outcome(life, texts, triple, seq, wanted, close)
        answer = self.ask(
            "POST",
            name,
            body=self.body_of(life, texts),
            expect=status,
            content_type=life.content_type,
            stream_key=key,
            stream_seq=seq,
            stream_closed="true" if close else None,
            if_match=f'"{wanted}"' if wanted and quoted else wanted,
            **dict(zip(("producer_id", "producer_epoch", "producer_seq"), map(str, triple or ()), strict=False)),
        )
        if applies:
            self._apply(life, texts, key, triple, seq, close)
        if status < 400 or status == 412:
            life.learn(len(life), answer.headers["stream-next-offset"])
        if status < 300 and triple:
            assert int(answer.headers["producer-seq"]) == max(life.producers[triple[0]][1], triple[2])

    @rule(name=living, values=st.lists(st.text("yß", max_size=9), min_size=1, max_size=3), key=st.sampled_from(KEYS))
    def append_plainly(self, name: str, values: list[str], key: str | None) -> None:
        self.append(name, values, key, None, None, None, False, False)

    @staticmethod
    def _triple(life: Life, producer: Triple | None) -> Triple | None:
        """A producer's next epoch and sequence number, shifted."""
        if producer is None:
            return None
        epoch, last = life.producers.get(producer[0], (0, -1))
        return producer[0], max(0, epoch + producer[1]), max(0, last + 1 + producer[2] if not producer[1] else 0)

    @staticmethod
    def _wanted(life: Life, match: str | None) -> str | None:
        if match == "tail":
            return life.offsets.get(len(life))
        return life.offsets[min(life.offsets)] if match == "old" else match

    @staticmethod
    def _outcome(
        life: Life,
        texts: list[str],
        triple: Triple | None,
        seq: str | None,
        wanted: str | None,
        close: bool,
    ) -> tuple[int, bool]:
        """The status an append must get, and whether it changes the stream."""
        if not texts and not close:
            return 400, False
        if life.closed:
            repeated = close and (triple == life.closed_by if triple else not texts)
            return (204 if repeated else 409), False
        if triple is not None:
            known = life.producers.get(triple[0], (triple[1], -1))
            if triple[1] < known[0]:
                return 403, False
            if triple[1] == known[0] and triple[2] <= known[1]:
                return 204, False
            if triple[1] == known[0] and triple[2] > known[1] + 1:
                return 409, False
        if wanted not in (None, "*", life.offsets.get(len(life))):
            return 412, False
        if seq is not None and life.stream_seq is not None and seq.encode() <= life.stream_seq.encode():
            return 409, False
        return (200 if triple and texts else 204), True

    @staticmethod
    def _apply(
        life: Life, texts: list[str], key: str | None, triple: Triple | None, seq: str | None, close: bool
    ) -> None:
        life.add(texts, key)
        life.stream_seq = seq or life.stream_seq
        if triple is not None:
            life.producers[triple[0]] = triple[1:]
        if close:
            life.closed, life.closed_by = True, triple

    @rule(name=living)
    def append_another_type(self, name: str) -> None:
        self.ask("POST", name, body="{}", expect=self.missing(name) or 409, content_type="text/csv")

    @rule(name=living, key=st.sampled_from(KEYS), data=st.data())
    def read_on_from_an_offset(self, name: str, key: str | None, data: st.DataObject) -> None:
        life = self.lives.get(name)
        if life is None or life.state != "live":
            self.ask("GET", name, expect=self.missing(name) or 0)
            return
        position = data.draw(st.sampled_from(sorted(life.offsets)))
        if not position:
            self._read(life, life.first_least, "-1", None)
        elif position < life.first_least:
            answer = self.ask("GET", f"{name}?offset={life.offsets[position]}", expect=410)
            assert answer.json()["error"]["code"] == "offset_gone"
            assert answer.headers["stream-earliest-offset"] >= life.offsets[position]
        elif position >= life.first_most:
            self._read(life, position, life.offsets[position].lower(), key)

    def _read(self, life: Life, position: int, offset: str, key: str | None) -> None:
        """Follow the pages from an offset to the tail, and compare."""
        found: list[str] = []
        while True:
            parameters = {"offset": offset} | ({"key": key} if key else {})
            answer = self.ask("GET", f"{life.name}?{httpx2.QueryParams(parameters)}", expect=200)
            assert answer.headers["content-type"] == life.content_type
            found += _entries(answer)
            offset = answer.headers["stream-next-offset"]
            done = answer.headers.get("stream-up-to-date") == "true"
            assert done == (offset == answer.headers["stream-end-offset"])
            assert answer.headers.get("stream-closed") == ("true" if done and life.closed else None)
            if done:
                break
        life.learn(len(life), offset)
        if not key and found != life.chosen(position, None):
            position = next(p for p in range(position, life.first_most + 1) if found == life.chosen(p, None))
            life.first_least = position
        assert found == life.chosen(position, key)

    @rule(name=living, count=st.integers(1, 12))
    def read_the_newest(self, name: str, count: int) -> None:
        expect, life = self.missing(name), self.lives.get(name)
        answer = self.ask("GET", f"{name}?last={count}", expect=expect or 200)
        if expect is not None or life is None:
            return
        begin, end = answer.headers["stream-start-offset"], answer.headers["stream-end-offset"]
        assert answer.headers["cache-control"] == "no-cache"
        found = _entries(answer)
        while (offset := answer.headers["stream-next-offset"]) != end:
            answer = self.ask("GET", f"{name}?offset={offset}&before={end}", expect=200)
            found += _entries(answer)
        begins = {max(len(life) - count, first): None for first in range(life.first_least, life.first_most + 1)}
        position = next(position for position in begins if found == life.chosen(position, None))
        life.learn(position, begin)
        life.learn(len(life), end)

    @precondition(lambda self: self.stale)
    @rule(name=living, data=st.data())
    def read_an_offset_of_another_life(self, name: str, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.stale))
        expect = self.missing(name)
        life = self.lives.get(name)
        if expect is None and life is not None and offset not in life.offsets.values():
            answer = self.ask("GET", f"{name}?offset={offset}", expect=410)
            assert answer.json()["error"]["code"] == "offset_fenced"
            self.ask(
                "POST",
                name,
                body="1",
                expect=409 if life.closed else 412,
                content_type=life.content_type,
                if_match=offset,
            )

    @rule(name=living)
    def head(self, name: str) -> None:
        expect, life = self.missing(name), self.lives.get(name)
        answer = self.ask("HEAD", name, expect=expect or 200)
        if expect is None and life is not None:
            life.learn(len(life), answer.headers["stream-next-offset"])
            assert answer.headers["content-type"] == life.content_type
            assert answer.headers.get("stream-closed") == ("true" if life.closed else None)

    @precondition(lambda self: len(self.named("live")) > 1)
    @rule(name=living)
    def delete(self, name: str) -> None:
        expect, life = self.missing(name), self.lives.get(name)
        self.ask("DELETE", name, expect=expect or 204)
        if expect is None and life is not None:
            life.end()

    @rule(
        source=living,
        name=free,
        where=st.sampled_from(["tail", "start", "known", "known"]),
        sub=st.integers(0, 4),
        values=st.lists(st.text("z", max_size=3), max_size=2),
        data=st.data(),
    )
    def fork(self, source: str, name: str, where: str, sub: int, values: list[str], data: st.DataObject) -> None:
        origin, found = self.lives.get(source), self.lives.get(name)
        path = f"/v1/stream/{self.prefix}{source}"
        if origin is None or origin.state != "live":
            self.ask("PUT", name, expect=404 if self.missing(source) == 404 else 409, stream_forked_from=path)
            return
        position, offset = self._fork_point(origin, where, data)
        sub = 0 if offset is None else sub
        headers: dict[str, Any] = {"stream_forked_from": path, "stream_fork_offset": offset}
        headers["stream_fork_sub_offset"] = str(sub) if sub else None
        if found is not None and found.state != "gone":
            repeated = found.was_forked(origin, None if offset is None else position, sub)
            same = found.state == "live" and not found.closed and repeated
            self.ask("PUT", name, expect=200 if same else 409, **headers)
        elif sub > origin.next_append(position):
            self.ask("PUT", name, expect=400, **headers)
        else:
            texts = self.texts(values)
            fork = self._forked(origin, name, position, sub)
            fork.origin = (origin, position, sub)
            answer = self.ask("PUT", name, body=self.body_of(fork, texts), expect=201, **headers)
            fork.add(texts, None)
            self.remember(fork)
            fork.learn(len(fork), answer.headers["stream-next-offset"])

    @rule(name=living)
    def fork_again(self, name: str) -> None:
        """The same fork, named by its place, whatever its source retains by now."""
        life = self.lives.get(name)
        if life is None or life.state != "live" or life.origin is None or life.origin[0].state != "live":
            return
        source, position, sub = life.origin
        offset = source.offsets.get(position) if position else "-1"
        if offset is not None:
            headers = {"stream_forked_from": f"/v1/stream/{self.prefix}{source.name}", "stream_fork_offset": offset}
            expect = 409 if life.closed else 200
            self.ask("PUT", name, expect=expect, stream_fork_sub_offset=str(sub) if sub else None, **headers)

    @staticmethod
    def _fork_point(origin: Life, where: str, data: st.DataObject) -> tuple[int, str | None]:
        """A position of which the model knows that it is retained, and how to name it."""
        safe = [position for position in sorted(origin.offsets) if position >= max(1, origin.first_most)]
        if where == "start" and origin.first_most == 0:
            return 0, "-1"
        if where == "known" and safe:
            position = data.draw(st.sampled_from(safe))
            return position, origin.offsets[position]
        return len(origin), None

    @staticmethod
    def _forked(origin: Life, name: str, position: int, sub: int) -> Life:
        whole = not sub or origin.is_json or sub == origin.next_append(position)
        steps = sub if origin.is_json else int(whole and sub > 0)
        fork = Life(name, origin.content_type, origin, position + steps)
        if not whole:
            fork.starts.append(len(fork))
            fork.entries.append(origin.entries[position].encode()[:sub].decode())
            fork.keys.append(origin.keys[position])
        return fork

    @rule(name=living, size=st.none() | st.integers(0, 60))
    def retain(self, name: str, size: int | None) -> None:
        expect, life = self.missing(name), self.lives.get(name)
        self.ask("POST", f"{name}/_retention", body=json.dumps({"bytes": size}), expect=expect or 204)
        if expect is None and life is not None:
            life.retention = size
            life.first_most = max(life.first_most, life.kept())

    @rule(limit=st.integers(1, 5))
    def list_the_streams(self, limit: int) -> None:
        found: list[dict[str, Any]] = []
        target: str | None = f"/v1/streams?prefix={self.prefix}&limit={limit}"
        while target:
            answer = self.ask("GET", target, expect=200)
            found += answer.json()
            link = re.fullmatch(r'<(.*)>; rel="next"', answer.headers.get("link", ""))
            target = link and link[1]
        living = sorted((self.prefix + n, life) for n, life in self.lives.items() if life.state == "live")
        assert [stream["name"] for stream in found] == [name for name, _ in living]
        for stream, (_, life) in zip(found, living, strict=True):
            assert stream["next_offset"] == str(len(life))
            assert stream["content_type"] == life.content_type
            assert stream["closed"] == life.closed

    # --- the world

    @precondition(lambda self: self.restarts < 2)
    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        self.restarts += 1
        self.http.close()
        if kill:
            self.server.kill()
        else:
            self.server.stop()
            for life in self.lives.values():
                life.first_most = max(life.first_most, life.kept())
                life.first_least = life.kept()  # the last sweep
        self.server.start()
        self._connect()
        self._check_everything()

    def _check_everything(self) -> None:
        self.list_the_streams(limit=3)
        for life in self.lives.values():
            self.head(life.name)
            if life.state == "live":
                self._read(life, life.first_least, "-1", None)


def _entries(answer: httpx2.Response) -> list[str]:
    """The entries of a page; a byte stream has no borders between them, so that its bytes stand for themselves."""
    if answer.headers["content-type"] == JSON:
        return [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in answer.json()]
    return list(answer.text)


@pytest.mark.timeout(1800)
def test_the_server_does_what_plain_lists_would_do(start_server: Callable[..., Any]) -> None:
    server = start_server(limits__read_bytes="64")
    deep = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
    size = settings(max_examples=500 if deep else 70, stateful_step_count=80 if deep else 50)
    run_state_machine_as_test(lambda: Machine(server), settings=size)  # type: ignore[arg-type]

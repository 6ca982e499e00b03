"""The newest entries equal the end of a full read: in rows, segments, versions, and sources of forks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.registries import lens, rename
from support.http_caller import Caller

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

NUMBERS = count()
STEPS = ["append"] * 4 + ["seal", "seal", "fork", "rename", "retain"]


@pytest.fixture(scope="module")
def caller(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A server whose segments and pages hold a few entries, and that seals when it is asked to."""
    settings = {"storage__seal_rows": "4", "storage__seal_age_s": "3600", "limits__read_bytes": "90"}
    started = type(server)(tmp_path_factory.mktemp("last") / "data", settings).start()
    caller = Caller(started.url)
    yield caller
    caller.close()
    started.kill()


def _schema(version: int) -> dict[str, Any]:
    member = {f"m{version}": {"type": "integer"}}
    return {"type": "object", "properties": member, "required": list(member), "additionalProperties": False}


class History:
    """A stream with a schema, and its forks, each with the version that it has reached."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.versions = {self._name(): 1}
        self._written = count()
        (first,) = self.versions
        caller.done("PUT", first)
        caller.done("POST", f"{first}/_schema", {"schema": _schema(1)})

    @staticmethod
    def _name() -> str:
        return f"last-{next(NUMBERS)}"

    def append(self, name: str, size: int) -> None:
        member = f"m{self.versions[name]}"
        self.caller.done("POST", name, [{member: next(self._written)} for _ in range(size)])

    def fork(self, name: str) -> None:
        fork = self._name()
        self.caller.done("PUT", fork, headers={"Stream-Forked-From": f"/v1/stream/{name}"})
        self.versions[fork] = self.versions[name]

    def rename(self, name: str) -> None:
        version = self.versions[name]
        change = lens(f"/v1/stream/{name}", version, rename(f"m{version}", f"m{version + 1}"))
        self.caller.done("POST", f"{name}/_schema", {"schema": _schema(version + 1), "lens": change})
        self.versions[name] = version + 1

    def retain(self, name: str, size: int) -> None:
        self.caller.done("POST", f"{name}/_retention", {"bytes": size})


@st.composite
def histories(draw: st.DrawFn, caller: Caller) -> History:
    history = History(caller)
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=14)):
        name = draw(st.sampled_from(sorted(history.versions)))
        if step == "append":
            history.append(name, draw(st.integers(1, 6)))
        elif step == "seal":
            caller.done("POST", f"{name}/_seal")
        elif step == "fork":
            history.fork(name)
        elif step == "rename":
            history.rename(name)
        elif step == "retain":
            history.retain(name, draw(st.integers(20, 200)))
    return history


def _newest(caller: Caller, name: str, size: int, **query: str) -> list[Any]:
    """The newest entries, page by page, each page as the one before says where it begins."""
    answer = caller.done("GET", name, last=str(size), **query)
    found, end = answer.json(), answer.headers["stream-end-offset"]
    start = answer.headers["stream-start-offset"]
    while answer.headers["stream-next-offset"] != end:
        answer = caller.done("GET", name, offset=answer.headers["stream-next-offset"], before=end, **query)
        found += answer.json()
    assert found == caller.entries(name, offset=start, **query)
    return found


@given(st.data())
def test_the_newest_entries_are_the_end_of_a_full_read(caller: Caller, data: st.DataObject) -> None:
    history = data.draw(histories(caller))
    size = data.draw(st.integers(1, 30))
    for name, newest in history.versions.items():
        version = data.draw(st.none() | st.integers(1, newest))
        query = {} if version is None else {"schema_version": str(version)}
        while True:
            before = caller.entries(name, **query)
            found = _newest(caller, name, size, **query)
            if caller.entries(name, **query) == before:  # retention may come by at any time
                break
        assert found == before[-size:]
        _goes_back(caller, name, before, size)


def _goes_back(caller: Caller, name: str, whole: list[Any], size: int) -> None:
    """Going backward, page by page, ends at the first entry, unless retention takes that away."""
    answer = caller.done("GET", name, last=str(size))
    begin, pages = answer.headers["stream-start-offset"], 0
    while begin != "0" * 26:
        answer = caller.ask("GET", name, last=str(size), before=begin)
        if answer.status == 410 or answer.headers["stream-start-offset"] == begin:
            break
        begin, pages = answer.headers["stream-start-offset"], pages + 1
    assert pages <= max(0, (len(whole) - 1) // size)

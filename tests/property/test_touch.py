"""Touches against a plain model: whoever waits is woken by every change that concerns it, and by no other.

The model keeps, for each change, the keys that it touches by the letter of the protocol, and answers a wait by looking
through all of them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.touch.touched import NAME, Touched, Wait, by, change
from headrace.profiles.state_protocol.keys import Template

ENTITIES = ("todos", "users")
TEMPLATES = [by("todos", "a"), by("todos", "b", "a"), by("users", "a")]
VALUES = ("x", "y", 1, None)
#: A row: two fields that pick it, and one more.
ROWS = st.fixed_dictionaries({"a": st.sampled_from(VALUES), "b": st.sampled_from(VALUES[1:]), "n": st.integers(0, 1)})
CHANGES = st.tuples(st.sampled_from(ENTITIES), st.sampled_from(("insert", "update", "delete")), ROWS, ROWS)
#: A family, a template, and the row that its arguments are taken from.
PLACES = st.tuples(st.sampled_from(("key", "key", "mem", "fld", "tbl")), st.integers(0, len(TEMPLATES) - 1), ROWS)
WAITS = st.tuples(
    st.just("wait"),
    st.lists(PLACES, min_size=1, max_size=3),
    st.sampled_from((0, 0, 0, 1, 2, 5)),  # so many cursors ago; 0 is now
    st.booleans(),  # exact
    st.booleans(),  # says which templates its keys are of
)
STEPS = st.lists(
    st.one_of(
        st.lists(CHANGES, min_size=1, max_size=6),
        WAITS,
        WAITS,
        WAITS,
        st.integers(0, len(TEMPLATES) - 1),
        st.sampled_from(["restart", "publish"]),
    ),
    min_size=8,
    max_size=30,
)
#: Templates that are there from the beginning.
FIRST = st.lists(st.integers(0, len(TEMPLATES) - 1), max_size=3, unique=True)
#: Settings under which little can be told.
TIGHT = st.builds(
    lambda budget, lag, reserve, index, pending, ttl, most: {
        "fineTouchBudgetPerBatch": budget,
        "lagDegradeFineTouchesAtSourceOffsets": lag,
        "lagRecoverFineTouchesAtSourceOffsets": 1,
        "lagReservedFineTouchBudgetPerBatch": reserve,
        "memory": {
            "bucketMs": 1,
            "keyIndexMaxKeys": index,
            "pendingMaxKeys": pending,
            "hotTemplateTtlMs": ttl,
            "hotMaxTemplates": most,
        },
    },
    st.integers(0, 2),
    st.sampled_from((0, 2, 4)),
    st.integers(0, 1),
    st.integers(1, 2),
    st.sampled_from((1, 100)),
    st.sampled_from((1, 10_000)),
    st.sampled_from((1, 2, 4096)),
)


def hashed(*parts: bytes) -> int:
    return xxhash.xxh3_64_intdigest(b"\0".join(parts))


def arguments(template: Template, row: dict[str, Any]) -> list[bytes] | None:
    values = [row[field.name] for field in template.fields]
    return None if None in values else [str(value).encode() for value in values]


def place_key(family: str, number: int, row: dict[str, Any]) -> int:
    """A key that a client might wait for; where the row has none, one that is never touched."""
    template = TEMPLATES[number]
    if family == "tbl":
        return hashed(b"tbl", template.entity.encode())
    found = arguments(template, row)
    if found is None:
        return 5
    parts = [template.id.to_bytes(8), *([b"n"] if family == "fld" else []), *found]
    return hashed(family.encode(), *parts)


class Model:
    """All changes, and what each of them touches."""

    def __init__(self) -> None:
        self.touched: list[set[int]] = []
        self.active_from: dict[int, int] = {}

    def append(self, entity: str, operation: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        keys = {hashed(b"tbl", entity.encode())}
        for number, template in enumerate(TEMPLATES):
            if template.entity == entity and number in self.active_from:
                keys |= self._rows(number, operation, before, after)
        self.touched.append(keys)

    @staticmethod
    def _rows(number: int, operation: str, before: dict[str, Any], after: dict[str, Any]) -> set[int]:
        rows = {"insert": [after], "delete": [before], "update": [before, after]}[operation]
        rows = [row for row in rows if arguments(TEMPLATES[number], row) is not None]
        places = {tuple(arguments(TEMPLATES[number], row) or ()) for row in rows}
        families = ["key", "mem"]
        if operation == "update" and len(rows) == 2 and len(places) == 1:
            outside = "n" not in TEMPLATES[number].names
            families = ["key", "fld"] if outside and before["n"] != after["n"] else ["key"]
        return {place_key(family, number, row) for family in families for row in rows}

    def concerns(self, since: int, keys: frozenset[int]) -> bool:
        return any(keys & touched for touched in self.touched[since:])

    def may_concern(self, since: int, templates: tuple[Template, ...]) -> bool:
        """Whether a template came only after a change of its entity that the cursor does not cover."""
        late = [one for one in templates if self.active_from.get(TEMPLATES.index(one), 0) > since]
        tables = frozenset(hashed(b"tbl", one.entity.encode()) for one in late)
        return self.concerns(since, tables)


class Story:
    """A stream, the model of it, and everyone who waits."""

    def __init__(self, db: Touched, *, tight: bool) -> None:
        self.db = db
        self.model = Model()
        self.cursors = [db.cursor]
        self.waits: list[tuple[Wait, int, tuple[Template, ...]]] = []
        self.tight = tight

    def play(self, steps: list[Any]) -> None:
        for step in steps:
            if isinstance(step, list):
                self._append(step)
            elif isinstance(step, int):
                self.db.activate(TEMPLATES[step])
                self.model.active_from.setdefault(step, len(self.model.touched))
            elif step == "restart":
                self._restart()
            elif step == "publish":
                self.db.rig.publish(NAME)
            else:
                self._wait(*step[1:])
            self._judge()

    def _append(self, changes: list[Any]) -> None:
        made = []
        for entity, operation, before, after in changes:
            self.model.append(entity, operation, before, after)
            made.append(change(entity, operation, None if operation == "insert" else before, after))
        self.db.append(*made)

    def _restart(self) -> None:
        self.db.rig.reopen()
        self.waits = []

    def _wait(self, places: list[Any], ago: int, exact: bool, named: bool) -> None:
        wanted = [place_key(*place) for place in places]
        of = {TEMPLATES[number] for family, number, _ in places if family != "tbl" and number in self.model.active_from}
        templates = tuple(sorted(of, key=lambda one: one.id)) if named else ()
        cursor = self.cursors[max(0, len(self.cursors) - ago)] if ago else "now"
        since = int(cursor.partition(":")[2]) if ago else len(self.model.touched)
        wait = self.db.ask(cursor, *wanted, templates=templates, exact=exact)
        self.waits.append((wait, since, templates))

    def _judge(self) -> None:
        """Everything is processed: who is to be woken was, and who was not waits on."""
        self.db.settle()
        self.cursors.append(self.db.cursor)
        for wait, since, templates in self.waits:
            concerned = self.model.concerns(since, wait.waiter.keys)
            if concerned:
                assert wait.outcome is True or (wait.waiter.exact and isinstance(wait.outcome, str)), "missed"
            if wait.outcome is None:
                assert wait.parked
            elif not concerned:
                self._excuse(wait, since, templates)
        self.waits = [one for one in self.waits if one[0].parked]

    def _excuse(self, wait: Wait, since: int, templates: tuple[Template, ...]) -> None:
        """A wait that no key of its own has ended: it may only be one that could not be told better."""
        assert not wait.waiter.exact or isinstance(wait.outcome, str), "an exact wait was ended by another key"
        assert self.tight or self.model.may_concern(since, templates), "woken for nothing"


@given(FIRST, STEPS)
@settings(max_examples=25, deadline=None)
def test_no_wake_up_is_missed_and_none_is_for_nothing(first: list[int], steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory, Touched(Path(directory)) as db:
        Story(db, tight=False).play([*first, *steps])


@given(TIGHT, FIRST, STEPS)
@settings(max_examples=40, deadline=None)
def test_under_pressure_no_wake_up_is_missed_and_exact_waits_stay_exact(
    touch: Any, first: list[int], steps: list[Any]
) -> None:
    with tempfile.TemporaryDirectory() as directory, Touched(Path(directory), **touch) as db:
        Story(db, tight=True).play([*first, *steps])

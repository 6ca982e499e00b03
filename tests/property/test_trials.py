"""The proof on data says of every event what a look at it alone says, however the events are cut and joined."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schema.document import problems
from headrace.schema.lens.document import fill_defaults, parse
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.proof import is_runnable, prove
from headrace.schema.registry import Registry
from headrace.schema.trial import MAX_NAMED, Findings, Trial
from schema.lens.evolutions import evolution, wild_ops
from schema.lens.trying import brute_force, events, lens_document

SEEDS = st.integers(0, 2**64 - 1)


class Case:
    """A stream with two versions, the second of which is proposed, and events of the first."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        old, new, ops = evolution(random)
        if random.random() < 0.3:
            ops = wild_ops(random, old)
        lens = parse(lens_document(ops))
        self.is_usable = isinstance(lens, Lens) and not problems(new) and is_runnable(new, lens.ops)
        if isinstance(lens, Lens) and self.is_usable:
            self.is_proven = not prove(old, new, lens.ops).problems
            self.new, self.lenses = new, [fill_defaults(lens, new)]
            registry = Registry.empty("s").advanced(old, None, 0).advanced(new, lens_document(ops), 0)
            self.trial = Trial(registry)
            self.events = list(events(random, old))
            self.expected = [brute_force(self.lenses, new, event) for event in self.events]


def looked_at(case: Case) -> Findings:
    """What a trial finds where the events are cut at random, and looked at in any order."""
    count, pieces, start = len(case.events), [], 0
    while start < count:
        stop = case.random.randint(start + 1, count)
        pieces.append((start, stop))
        start = stop
    case.random.shuffle(pieces)
    found = Findings()
    for start, stop in pieces:
        joined = msgspec.json.encode(case.events[start:stop])[1:-1]
        found += case.trial.check(start, 1, joined, stop - start)
    return found


def test_a_verdict_equals_a_look_at_every_event() -> None:
    seen = Counter[str]()

    @settings(max_examples=600)
    @given(SEEDS)
    def holds(seed: int) -> None:
        case = Case(seed)
        if not case.is_usable:
            seen["unusable"] += 1
            return
        found = looked_at(case)
        counts = Counter(case.expected)
        assert found.events == len(case.events)
        assert found.lens == counts["lens"]
        assert found.schema == counts["schema"]
        failing = [(seq, cause) for seq, cause in enumerate(case.expected) if cause != "fits"]
        assert [(misfit.seq, misfit.cause) for misfit in found.misfits] == failing[:MAX_NAMED]
        assert all(misfit.reason for misfit in found.misfits)
        if case.is_proven:
            assert not found.failing, "what is proven holds on data"
        seen.update(case.expected)
        seen["carried without proof" if not case.is_proven and not found.failing else "others"] += 1

    holds()
    assert seen["fits"] >= 2_000
    assert seen["lens"] >= 200
    assert seen["schema"] >= 200
    assert seen["carried without proof"] >= 20


@settings(max_examples=200)
@given(st.lists(st.integers(0, 400), max_size=300, unique=True), st.integers(1, 60), st.randoms(use_true_random=False))
def test_findings_add_up_in_any_order(failing: list[int], step: int, random: Random) -> None:
    trial = Trial(Registry.empty("s").advanced({"not": {"const": 1}}, None, 0))
    values = [int(seq in set(failing)) for seq in range(401)]
    starts = list(range(0, 401, step))
    random.shuffle(starts)
    found = Findings()
    for start in starts:
        part = values[start : start + step]
        found += trial.check(start, 1, msgspec.json.encode(part)[1:-1], len(part))
    assert found.events == 401
    assert found.lens == 0
    assert found.schema == len(failing)
    assert [misfit.seq for misfit in found.misfits] == sorted(failing)[:MAX_NAMED]

"""Laws of descriptors: additive changes have proven lenses, spelling does not matter, and a diff tells all there is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.reduce.features.table import TableReducer
from headrace.schema.descriptor.diff import diff, fingerprint
from headrace.schema.descriptor.generated import json_schema, make_lens, write_node
from headrace.schema.descriptor.nodes import Event, FeatureVersion, Node, Table
from headrace.schema.descriptor.registration import Registration, read_registration
from headrace.schema.descriptor.validate import resolve_table, sort_nodes, validate
from headrace.schema.diff import judge
from headrace.schema.document import Validator
from headrace.schema.lens.document import parse
from headrace.schema.lens.forward import forward, run
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.proof import prove
from headrace.schema.lens.values import Raw
from schema.descriptor.payloads import Descriptor
from schema.descriptor.strategies import evolved, instances, pipelines, sources, variations


def nodes_of(sent: list[Descriptor]) -> dict[str, Node] | None:
    found = read_registration({"descriptors": sent})
    assert isinstance(found, Registration), found
    return None if validate(found.nodes, found.nodes) else found.nodes


def test_every_additive_change_has_a_lens_that_is_proven_and_runs() -> None:
    seen = Counter[str]()

    @settings(max_examples=150)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        old = data.draw(sources())
        new = data.draw(evolved(old))
        document = make_lens(old, new)
        assume(
            not any(
                field.required and field.default is None and name not in old.schema
                for name, field in new.schema.items()
            )
        )
        before = {"Txn": old}
        lost = {loss.message.split(" ", 1)[1] for loss in diff(before, {"Txn": new}).losses}
        assert document is not None, (old, new)
        assert all(message.startswith("loses its default") for message in lost), lost
        parsed = parse(document)
        assert isinstance(parsed, Lens)
        one, other = json_schema(old), json_schema(new)
        proof = prove(one, other, parsed.ops, judge)
        assert proof.problems == [], (old, new)
        steps = forward(proof.ops)
        holder: list[Any] = [Raw(msgspec.json.encode(data.draw(instances(old))))]
        run(steps, holder, 0)
        assert Validator(other).accepts(msgspec.json.decode(msgspec.json.encode(holder[0])))
        seen["with steps" if parsed.ops else "without"] += 1
        seen["widened"] += any(field.type != new.schema[name].type for name, field in old.schema.items())

    holds()
    assert min(seen.values()) >= 10, seen


@settings(max_examples=150)
@given(sources(), sources())
def test_a_lens_is_given_only_where_it_is_sound_and_where_no_event_is_refused(old: Event, new: Event) -> None:
    document = make_lens(old, new)
    found = diff({"Txn": old}, {"Txn": new})
    if document is None:
        assert found.destructive
        return
    parsed = parse(document)
    assert isinstance(parsed, Lens)
    assert prove(json_schema(old), json_schema(new), parsed.ops, judge).problems == []
    told = ("loses its default", " is removed", " becomes '")
    assert all(any(part in loss.message for part in told) for loss in found.losses)


@settings(max_examples=150)
@given(pipelines(), st.randoms(use_true_random=False))
def test_order_and_spelling_change_nothing(sent: list[Descriptor], random: Any) -> None:
    known = nodes_of(sent)
    assume(known is not None)
    assert known is not None
    written = [write_node(node) for node in known.values()]
    random.shuffle(written)
    again = nodes_of([dict(reversed(descriptor.items())) for descriptor in written])
    assert again == known
    assert fingerprint(again) == fingerprint(known)
    found = diff(known, again)
    assert found.added == []
    assert found.removed == []
    assert found.changed == []
    assert found.losses == []
    assert found.dropped == {}
    assert {fate for fates in found.state_effects.values() for fate in fates.values()} <= {"kept"}
    places = {name: at for at, name in enumerate(sort_nodes(again))}
    assert all(places[node.upstream] < places[name] for name, node in again.items() if not isinstance(node, Event))


def test_a_diff_tells_all_there_is() -> None:
    seen = Counter[str]()

    @settings(max_examples=250)
    @given(pipelines(), pipelines())
    def holds(before: list[Descriptor], after: list[Descriptor]) -> None:
        old, new = nodes_of(before), nodes_of(after)
        assume(old is not None and new is not None)
        assert old is not None
        assert new is not None
        found = diff(old, new)
        assert found == diff(dict(reversed(old.items())), dict(reversed(new.items())))
        same = fingerprint(old) == fingerprint(new)
        assert same is (not found.added and not found.removed and not found.changed)
        assert set(found.added) == new.keys() - old.keys()
        assert set(found.removed) == old.keys() - new.keys()
        assert found.destructive or not (found.removed or found.dropped)
        tables = {name: set(node.features) for name, node in new.items() if isinstance(node, Table)}
        assert {name: set(fates) for name, fates in found.state_effects.items()} == tables
        told = {change["name"]: change for change in found.changed}
        for name, fates in found.state_effects.items():
            for feature, fate in fates.items():
                _is_told(told.get(name, {}), feature, fate, is_new=name in found.added)
                seen[fate] += 1
                assert fate != "zeroed" or found.destructive

    holds()
    assert min(seen[fate] for fate in ("kept", "additive", "zeroed")) >= 10, seen


def _is_told(change: dict[str, Any], feature: str, fate: str, *, is_new: bool) -> None:
    """Whether a fate can be read off what is told."""
    afresh = {*change.get("zeroed_features", ()), *(one["name"] for one in change.get("changed_features", ()))}
    assert (fate == "zeroed") is (feature in afresh)
    assert (fate == "additive") is (is_new or feature in change.get("added_features", ()))


def _folded(nodes: dict[str, Node], table: str, events: list[dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
    """The features of every key after all events."""
    resolved = resolve_table(nodes, table)
    reducer = TableReducer(resolved, {name: FeatureVersion(name, 0) for name in resolved.table.features})
    states: dict[bytes, Any] = {}
    for seq, one in enumerate(events):
        placed = reducer.key_and_row(one)
        if placed is not None:
            key, row = placed
            states[key] = reducer.fold(states.get(key), 1_000 + seq, seq, row)
    return {key: reducer.finish(state, 2_000) for key, state in states.items()}


EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.sampled_from("uvw"),
            "amount": st.integers(-3, 5),
            "n": st.integers(-3, 5),
            "ok": st.booleans(),
        }
    ),
    min_size=3,
    max_size=12,
)


def test_a_feature_that_is_kept_would_have_come_to_the_same() -> None:
    seen = Counter[str]()

    @settings(max_examples=400)
    @given(pipelines().flatmap(lambda sent: st.tuples(st.just(sent), variations(sent))), EVENTS)
    def holds(pair: tuple[list[Descriptor], list[Descriptor]], events: list[dict[str, Any]]) -> None:
        old, new = map(nodes_of, pair)
        assume(old is not None and new is not None)
        assert old is not None
        assert new is not None
        for table, fates in diff(old, new).state_effects.items():
            kept = [name for name, fate in fates.items() if fate == "kept"]
            if not kept:
                continue
            was, now = (_folded(nodes, table, events) for nodes in (old, new))
            assert was.keys() == now.keys()
            for key, row in was.items():
                assert {name: row[name] for name in kept} == {name: now[key][name] for name in kept}
            seen["as it was" if old == new else "changed around it"] += 1

    holds()
    assert min(seen["as it was"], seen["changed around it"]) >= 20, seen

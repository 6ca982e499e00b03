"""What fragments speak for: counted from states and the tail alike, fresh, and per user."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.engine.derive import local_worker
from headrace.errors import NoSchemaForEntityType, UnknownEntityType
from headrace.reduce.fragments.reducer import MAX_KEYS
from headrace.reduce.fragments.rules import BAD_NAME, BLACKLISTED, MIXED, TOO_FEW, TOO_FEW_SOURCES
from headrace.schema.entity.observation import Observation, decode
from headrace.schema.entries import entries_of
from headrace.storage.entity_types import EVERYBODY
from reduce.fragments.counting import count_observations, of_everyone, of_user
from support.enhancement_rig import Growing, bytes_of
from support.entity_rig import contact

NANOS = 1_700_000_000_123_456_789


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Growing]:
    with Growing(tmp_path) as rig:
        rig.register_type(contact())
        yield rig


def observations(rig: Growing) -> list[tuple[int, int, Observation]]:
    """Everything that was stored and is in the log, read as plain events."""
    stream = rig.find("entities/contact")
    return [
        (row.seq + place, row.append_us, decode(bytes(body)))
        for row in rig.engine.wal.scan(stream.id, 0, stream.head.next_seq)
        for place, body in enumerate(entries_of(row.body))
    ]


def test_a_candidate_tells_how_often_what_was_seen_and_where(rig: Growing) -> None:
    first = rig.clock.us + 1_000_000
    for number in range(3):
        rig.said(f"{number}@x.y", nick=f"n{number}")
    rig.said("0@x.y", nick=7)
    found = rig.candidate("nick")
    assert found.frequency == 4
    assert found.types == {"string": 3, "number": 1}
    assert found.sources == 3
    assert found.entities == 3
    assert found.type_share == 0.75
    assert found.field_type == "string"
    assert found.users == 1
    assert found.first_seen_us == first
    assert found.last_seen_us == first + 3_000_000
    assert sorted(map(str, found.examples)) == ["7", "n0", "n1", "n2"]
    assert 0.6 < found.confidence < 0.9
    assert [reason.code for reason in found.reasons] == [MIXED]


@pytest.mark.parametrize("cut", [0, 1, 7, 12])
def test_states_and_the_tail_count_as_one_pass_does(rig: Growing, cut: int) -> None:
    rig.tallied()  # from now on they are counted ahead
    for number in range(12):
        rig.said(f"{number % 5}@x.y", user=f"u{number % 2}", nick=number if number % 3 else f"n{number}", odd=None)
        if number + 1 == cut:
            rig.seal_type()
            rig.work()
    everything = count_observations(observations(rig)) if cut == 0 else None
    for owner in ("u0", "u1", EVERYBODY):
        found = rig.tallied(owner)
        assert found.complete and found.next_seq - found.first_seq == 12
        if everything is not None:
            wanted = of_user(everything, owner) if owner else of_everyone(everything)
            assert bytes_of(found.fragments.stats) == bytes_of(wanted)
        assert found.fragments.stats["nick"].frequency == (12 if owner == EVERYBODY else 6)
        assert found.fragments.stats["odd"].nulls == (12 if owner == EVERYBODY else 6)
    assert len(rig.fragment_states()) == (cut > 0)


def test_levels_of_states_count_the_same(tmp_path: Path) -> None:
    with Growing(tmp_path, pipeline={"min_rows": 1, "fan_out": 2}) as rig:
        rig.register_type(contact())
        rig.tallied()
        for number in range(8):
            rig.said(f"{number}@x.y", nick=number, **{f"only_{number}": True})
            rig.seal_type()
            rig.work()
        assert max(state.level for state in rig.fragment_states()) >= 2
        found = rig.tallied()
        assert found.complete and found.fragments.stats["nick"].frequency == 8
        assert {f"only_{number}" for number in range(8)} < found.fragments.stats.keys()


def test_a_user_sees_only_their_own_fragments(rig: Growing) -> None:
    rig.said("a@x.y", user="ann", secret="s1")
    rig.said("b@x.y", user="bob", other="o1")
    assert [one.fragment_key for one in rig.analysed("ann").candidates] == ["secret"]
    assert [one.fragment_key for one in rig.analysed("bob").candidates] == ["other"]
    assert {one.fragment_key for one in rig.analysed(EVERYBODY).candidates} == {"secret", "other"}
    assert rig.analysed("eve").candidates == []


def test_thresholds_are_three_values_of_two_sources_and_95_percent_of_one_type(rig: Growing) -> None:
    for number in range(3):
        rig.store(
            *({"entity_type": "contact", "email": f"{number}{each}@x.y", "one": each} for each in range(2)),
            source_id="s",
        )
    assert rig.reasons("one") == [TOO_FEW_SOURCES]
    rig.said("a@x.y", two="x")
    rig.said("b@x.y", two="y")
    assert rig.reasons("two") == [TOO_FEW]
    rig.said("c@x.y", two="z")
    assert rig.candidate("two").promotable
    for number in range(18):
        rig.said(f"{number}@y.y", mixed="x" if number else 5)
    assert rig.reasons("mixed") == [MIXED]
    rig.said("19@y.y", mixed="y")
    rig.said("20@y.y", mixed="z")
    assert rig.candidate("mixed").promotable


def test_names_that_are_banned_or_odd_are_never_promoted(rig: Growing) -> None:
    rig.set(blacklist=("_test*", "internal*"))
    for number in range(3):
        rig.said(f"{number}@x.y", _test_a=1, Internal_b=2, x=3, _edge="y", **{"two words": "t"})
    assert rig.reasons("_test_a") == [BLACKLISTED, BAD_NAME]
    assert rig.reasons("Internal_b") == [BLACKLISTED]
    for name in ("x", "_edge", "two words"):
        assert rig.reasons(name) == [BAD_NAME]
    assert rig.enhance().outcome.number is None


def test_what_everybody_bans_is_banned_for_users_too(rig: Growing) -> None:
    rig.set(blacklist=("inter*",))
    rig.set("ann", enabled=False)
    for number in range(3):
        rig.said(f"{number}@x.y", user="ann", internal=number)
    assert rig.reasons("internal", "ann") == [BLACKLISTED]


def test_a_cautious_global_schema_asks_for_twice_as_much(rig: Growing) -> None:
    rig.set(global_conservative=True)
    for number in range(5):
        rig.said(f"{number}@x.y", nick=f"n{number}")
    assert rig.reasons("nick", EVERYBODY) == [TOO_FEW]
    assert rig.candidate("nick", "local").promotable
    rig.said("6@x.y", nick="n6")
    assert rig.candidate("nick", EVERYBODY).promotable


def test_trusted_sources_ask_for_half_as_much_of_a_users_schema(rig: Growing) -> None:
    for owner in (EVERYBODY, "local"):
        rig.set(owner, trusted_source_relaxation=True)
    for number in range(2):
        rig.said(f"{number}@x.y", nick=f"n{number}", meta={"observation_source": "import"})
        rig.said(f"{number}@x.y", odd=f"n{number}", meta={"observation_source": "sensor"})
    assert rig.candidate("nick", "local").promotable
    assert rig.reasons("odd", "local") == [TOO_FEW]
    assert rig.reasons("nick", EVERYBODY) == [TOO_FEW]


@pytest.mark.parametrize(
    ("value", "converter"),
    [
        (NANOS, "timestamp_nanos_to_iso"),
        (1_700_000_000_123, "timestamp_ms_to_iso"),
        (1_700_000_000, "timestamp_s_to_iso"),
    ],
)
def test_moments_given_for_a_date_propose_the_converter_of_their_magnitude(
    rig: Growing, value: int, converter: str
) -> None:
    rig.update_type(fields_to_add=[{"field_name": "born", "field_type": "date"}])
    ids = [rig.said(f"{number}@x.y", born=value + number) for number in range(3)]
    found = rig.candidate("born")
    assert found.change == "add_converters"
    assert [one.function for one in found.converters] == [converter]
    assert found.promotable is True
    enhanced = rig.enhance()
    assert rig.version() == "1.2.0"
    assert enhanced.outcome.proposal.bump.name == "MINOR"
    rig.migrate("born")
    assert rig.snapshot(ids[0])["born"].startswith("2023-11-14T22:13:20")
    assert rig.analysed().candidates == []
    assert rig.enhance().outcome.number is None


def test_a_type_without_a_schema_for_the_owner_is_said_to_have_none(rig: Growing) -> None:
    with pytest.raises(UnknownEntityType):
        rig.analysed(entity_type="nothing")
    rig.store({"entity_type": "thing", "name": "a"}, user="ann")
    with pytest.raises(NoSchemaForEntityType):
        rig.analysed(EVERYBODY, "thing")
    with pytest.raises(UnknownEntityType):
        rig.analysed("bob", "thing")


def test_what_is_not_counted_yet_is_said_to_be_missing(tmp_path: Path) -> None:
    with Growing(tmp_path, features={"fold_rows": 10}) as rig:
        rig.register_type(contact())
        for number in range(60):
            rig.said(f"{number}@x.y", nick=number)
        rig.seal_type()
        rig.said("z@x.y", nick=5)
        found = rig.tallied()
        assert found.complete is False
        assert found.missing == 60
        assert found.fragments.stats["nick"].frequency == 1
        rig.work()
        found = rig.tallied()
        assert found.complete is True
        assert found.missing == 0
        assert found.fragments.stats["nick"].frequency == 61


def test_the_server_counts_itself_where_no_worker_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_worker, "WORKERS_FIRST_S", 0.05)
    monkeypatch.setattr(local_worker, "_PAUSE_S", 0.01)
    with Growing(tmp_path, helps=True, features={"fold_rows": 10}) as rig:
        rig.register_type(contact())
        for number in range(60):
            rig.said(f"{number}@x.y", nick=number)
        rig.seal_type()
        deadline = time.monotonic() + 20
        while not rig.tallied().complete:
            assert time.monotonic() < deadline
            rig.run(asyncio.sleep(0.02))
        assert rig.tallied().fragments.stats["nick"].frequency == 60


def test_fragments_are_counted_again_after_everything_local_is_lost(tmp_path: Path) -> None:
    storage = {"object_store": str(tmp_path / "store")}
    with Growing(tmp_path / "one", storage=storage) as rig:
        rig.register_type(contact())
        rig.tallied()
        for number in range(6):
            rig.said(f"{number}@x.y", nick=number)
        rig.run(rig.engine.sealer.publish_journals())
        rig.seal_type()
        rig.work()
        wanted = bytes_of(rig.tallied().fragments.stats)
    with Growing(tmp_path / "two", storage=storage) as rig:
        assert bytes_of(rig.tallied().fragments.stats) == wanted


def test_of_very_many_keys_some_are_left_out_and_that_is_said(rig: Growing) -> None:
    for number in range(25):
        rig.said(f"{number}@x.y", always=number, **{f"key_{number}_{each}": each for each in range(100)})
    found = rig.tallied()
    assert found.fragments.truncated is True
    assert found.complete is False
    assert len(found.fragments.stats) == MAX_KEYS

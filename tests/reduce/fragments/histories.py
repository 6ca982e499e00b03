"""Observations with fragments, for tests of their laws."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headrace.reduce.fragments.rules import Settings
from headrace.schema.entity.accept import Fragment
from headrace.schema.entity.observation import Observation
from reduce.policies.samples import FIRST_US, observed
from schema.entity.strategies import simple, values

Told = tuple[int, int, Observation]

#: Numbers and texts at the edges of what converters take.
edges = st.sampled_from(
    [
        *(0, 0.0, -0.0, -1, 0.5, 999_999_999, 10**9, 4_102_444_800, 4_102_444_800.5, 4_102_444_801, 9_999_999_999),
        *(10**10, 4_102_444_800_000, 4_102_444_800_000.5, 4_102_444_800_001, 10**13, 10**17 - 1, 10**17, 1.7e18),
        *(4_102_444_800_000_000_000, 4_102_444_800_000_000_001, 10**30, 1e300),
        *(" 12 ", "+5", "-0", "00", "0.5", "1e5", "1e999", "TRUE ", " 0", "no", "2026-02-30", "2026-01-31T10:00"),
    ]
)
given_values = values | simple | edges
#: Values that often come together.
families: st.SearchStrategy[list[Any]] = st.sampled_from(
    [
        ["1", "12", "-5.5"],
        ["0", "1"],
        ["yes", "no", True],
        [1_700_000_000, 1_700_000_000.5],
        [1_700_000_000_123],
        [1_700_000_000_123_456_789],
        ["2026-01-31", "2026-02-01T10:00:00Z"],
        [1, 2.5],
        ["x", "0012"],
        [[], [1]],
        [{}],
    ]
)
kinds = st.sampled_from(["string", "number", "date", "boolean", "array", "object"])
settings = st.builds(
    Settings,
    user_id=st.sampled_from([None, "local"]),
    min_occurrences=st.integers(1, 4),
    min_share=st.sampled_from([0.95, 0.7, 0.5]),
    global_conservative=st.booleans(),
    trusted_source_relaxation=st.booleans(),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Told]:
    """Observations with fragments, mostly alike."""
    likely = st.sampled_from([*draw(families), *draw(families)] if draw(st.booleans()) else draw(families))
    value = draw(st.sampled_from([likely, likely | given_values]))
    found = []
    for seq in range(draw(st.integers(1, 16))):
        fragments = [
            Fragment(key, draw(value), draw(st.sampled_from(["unknown_field"] * 4 + ["converted_value_original"])))
            for key in draw(st.lists(st.sampled_from(["extra", "name", "account_id", "x"]), max_size=3, unique=True))
        ]
        members = {
            "user_id": draw(st.sampled_from(["ada", "bob"])),
            "entity_id": draw(st.sampled_from(["ent_1", "ent_2"])),
            "source_id": draw(st.sampled_from(["src_1", "src_2", None])),
            "observation_source": draw(st.sampled_from(["import", "human"])),
        }
        found.append((seq, FIRST_US + seq, observed(f"o{seq}", fragments=tuple(fragments), **members)))
    return found

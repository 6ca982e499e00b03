"""Observations of some entities, with many ties, for tests of their laws."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from headrace.schema.entity.nodes import Policy, ReducerConfig
from headrace.schema.entity.observation import Observation
from reduce.policies.samples import FIRST_US, observed

NAMES = ("name", "age", "tags")
ENTITIES = ("ent_1", "ent_2")

scalars = st.sampled_from(["x", "y", '["x", 3]', "[", 1, 1.0, 2, True, None, 2**70, {"a": 1}, {"a": 1.0}])
values = scalars | st.lists(scalars, max_size=4)
policies = st.builds(
    Policy,
    st.sampled_from(["last_write", "highest_priority", "most_specific", "merge_array"]),
    st.sampled_from(["observed_at", "source_priority"]),
)
configs = st.builds(
    ReducerConfig,
    st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, policies)),
    st.lists(st.sampled_from(["human", "sensor", "sync"]), unique=True).map(tuple),
    st.dictionaries(st.sampled_from(["crm-a", "crm-b"]), st.sampled_from([1, 500, 1001])),
)
seeds = st.integers(0, 2**32)

Told = tuple[int, int, Observation]


KINDS = ("observation",) * 6 + ("correction", "migration", "deletion", "restoration")


@st.composite
def histories(draw: st.DrawFn, kinds: Sequence[str] = KINDS, users: Sequence[str] = ("local", "ada")) -> list[Told]:
    """Observations of some entities, in the order of the log, with many ties."""
    found = []
    for seq in range(draw(st.integers(1, 14))):
        members = {
            "kind": draw(st.sampled_from(kinds)),
            "entity_id": draw(st.sampled_from(ENTITIES)),
            "user_id": draw(st.sampled_from(users)),
            "schema_version": draw(st.sampled_from(["1.0.0", "1.1.0"])),
            "source_priority": draw(st.sampled_from([100, 1000])),
            "observation_source": draw(st.sampled_from(["sensor", "human", "other"])),
            "specificity_score": draw(st.sampled_from([None, 0.0, 0.5])),
            "source_id": draw(st.sampled_from([None, "crm-a", "crm-b", "crm-c"])),
        }
        given = draw(st.fixed_dictionaries({}, optional=dict.fromkeys((*NAMES, "other"), values)))
        # Ids do not come in the order of the log.
        id = f"{seq * 7 % 16:02}"
        found.append((seq, FIRST_US + seq, observed(id, draw(st.integers(0, 3)), fields=given, **members)))
    return found

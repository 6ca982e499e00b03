"""Numbers of entities keep their digits from the request to constraints and converters: held to fractions."""

from __future__ import annotations

from fractions import Fraction

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import BadRequest
from headrace.schema.entity.identity import name_part
from headrace.schema.entity.nodes import Constraints
from headrace.schema.entity.request import read_store_request
from headrace.schema.entity.values import compile_check, decimal

NEAR = st.sampled_from([0, 2**53, 2**60, 10**18, 2**63, 10**22]).flatmap(lambda near: st.integers(near - 3, near + 3))
TAILS = st.sampled_from(["", ".0", ".00", "e0", "0e-1", ".0E+0", ".5", ".00000000000000000000001"])
SPELLED = st.builds("{}{}{}".format, st.sampled_from(["", "-"]), NEAR.map(lambda near: abs(near) or 1), TAILS)


@given(SPELLED, st.integers(-2, 2))
@example("9007199254740993.0", 1)
@example("1.152921504606847e+18", 0)
@example("1.152921504606847e+18", 1)
def test_a_number_of_an_entity_is_what_its_digits_say(spelled: str, distance: int) -> None:
    exact = Fraction(spelled)
    try:
        [entity] = read_store_request(
            f'{{"entities": [{{"entity_type": "t", "n": {spelled}}}]}}'.encode(), "u"
        ).entities
    except BadRequest as refusal:
        assert refusal.facts["field"] == "n"
        assert exact.denominator != 1
        return
    stored = msgspec.json.decode(msgspec.json.encode(entity))["n"]
    assert Fraction(decimal(stored)) == exact
    assert Fraction(name_part(stored) or "") == exact
    if exact.denominator == 1:
        limit = int(exact) + distance
        assert (compile_check("n", Constraints(min=limit))(stored) is None) == (exact >= limit)
        assert (compile_check("n", Constraints(max=limit))(stored) is None) == (exact <= limit)
        assert (compile_check("n", Constraints(enum=(limit,)))(stored) is None) == (exact == limit)
        assert (compile_check("n", Constraints(banned=(limit,)))(stored) is None) == (exact != limit)

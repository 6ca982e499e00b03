from __future__ import annotations

import pytest

from headrace.schema.entity.names import check_type_name, is_plural, lint_type_name, normalise_type_name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("contact", "contact"),
        ("Conversation Message", "conversation_message"),
        ("Line--Item ", "line_item"),
        ("Café—Bar", "cafe_bar"),
        ("__x__", "x"),
        ("", "generic"),
        ("联系人", "generic"),
        ("a" * 100, "a" * 64),
        ("a" * 63 + "-b", "a" * 63),
    ],
)
def test_a_name_has_one_spelling(given: str, name: str) -> None:
    assert normalise_type_name(given) == name
    assert normalise_type_name(name) == name


@pytest.mark.parametrize("name", ["contacts", "people", "bank_accounts", "categories", "boxes", "children"])
def test_a_plural_is_seen(name: str) -> None:
    assert [notice.code for notice in check_type_name(name)] == ["ERR_PLURAL_ENTITY_TYPE"]


@pytest.mark.parametrize(
    "name", ["address", "status", "analysis", "news", "series", "bus", "lens", "contact", "topics_x"]
)
def test_a_singular_that_ends_alike_is_none(name: str) -> None:
    assert not is_plural(name)


@pytest.mark.parametrize("name", ["test", "test_contact", "tmp_x", "foo", "test42", "dummy_order"])
def test_a_test_is_seen(name: str) -> None:
    assert [notice.code for notice in check_type_name(name)] == ["ERR_FORBIDDEN_ENTITY_TYPE"]


@pytest.mark.parametrize("name", ["blood_test", "testament", "attempt", "barrel", "temperature"])
def test_what_only_contains_such_a_word_is_none(name: str) -> None:
    assert check_type_name(name) == []


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("lineItem", "NAME_NOT_SNAKE_CASE"),
        ("order_record", "NAME_REDUNDANT_SUFFIX"),
        ("thing", "NAME_TOO_GENERIC"),
        ("ab", "NAME_TOO_SHORT"),
    ],
)
def test_what_is_odd_is_told(given: str, code: str) -> None:
    assert [notice.code for notice in lint_type_name(given)] == [code]


def test_nothing_is_told_of_a_good_name() -> None:
    assert lint_type_name("conversation_message") == []

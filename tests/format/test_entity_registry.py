from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from headrace.errors import CorruptData
from headrace.format.entity_registry import StoredChange, decode, encode, key, number_of


def change(number: int) -> StoredChange:
    return StoredChange(number, "contact", "u", 7, "somebody", msgspec.Raw(b'{"action":"activate"}'))


def test_a_run_of_changes_is_read_back_as_it_was() -> None:
    changes = [change(3), change(4)]
    found = decode(encode(changes), key(3))
    assert [msgspec.json.encode(one) for one in found] == [msgspec.json.encode(one) for one in changes]
    assert encode(changes) == encode(found)


@pytest.mark.parametrize(("text", "number"), [(key(12), 12), ("entities/changes-12.json", None), ("features/x", None)])
def test_a_key_tells_its_number(text: str, number: int | None) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (lambda data: data[:-10], "document"),
        (lambda data: data.replace(b"somebody", b"someb0dy"), "checksum"),
        (lambda data: data.replace(b'"version":1', b'"version":2'), "version"),
        (lambda data: data.replace(b'"headrace":"entities"', b'"headrace":"features"'), "version"),
        (lambda data: encode([change(4)]), "identity"),
        (lambda data: encode([change(3), change(5)]), "identity"),
        (lambda data: encode([]), "identity"),
    ],
)
def test_what_is_damaged_is_told(damage: Callable[[bytes], bytes], check: str) -> None:
    with pytest.raises(CorruptData) as reason:
        decode(damage(encode([change(3)])), key(3))
    assert reason.value.facts == {"object": key(3), "check": check}

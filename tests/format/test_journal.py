from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from headrace.errors import CorruptData
from headrace.format.journal import ENTITIES, FEATURES, StoredChange, StoredVersion

STORED = StoredVersion(7, 123, "ada", "fraud", msgspec.Raw(b'{"nodes":{}}'))
KEY = FEATURES.key(7)


def change(number: int) -> StoredChange:
    return StoredChange(number, "contact", "u", 7, "somebody", msgspec.Raw(b'{"action":"activate"}'))


def test_a_version_is_read_back_as_it_was() -> None:
    assert KEY == "features/registry-000000000007.json"
    assert FEATURES.number_of(KEY) == 7
    assert FEATURES.decode(FEATURES.encode([STORED]), KEY) == [STORED]
    assert FEATURES.encode([STORED]) == FEATURES.encode([STORED])


@pytest.mark.parametrize("key", ["features/registry-7.json", "manifests/a/b/c.json", "features/registry-000000000007"])
def test_other_keys_are_no_versions(key: str) -> None:
    assert FEATURES.number_of(key) is None


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (lambda data: data[:-10], "document"),
        (lambda data: data.replace(b'"ada"', b'"eve"'), "checksum"),
        (lambda data: data.replace(b'"version":1', b'"version":2', 1), "version"),
        (lambda data: data.replace(b'"headrace":"features"', b'"headrace":"manifest"'), "version"),
        (lambda data: b"\xff" + data, "document"),
    ],
)
def test_a_damaged_version_is_found_and_named(damage: Callable[[bytes], bytes], check: str) -> None:
    with pytest.raises(CorruptData) as reason:
        FEATURES.decode(damage(FEATURES.encode([STORED])), KEY)
    assert reason.value.facts == {"object": KEY, "check": check}


def test_a_version_under_another_key_is_refused() -> None:
    with pytest.raises(CorruptData, match="another key"):
        FEATURES.decode(FEATURES.encode([STORED]), FEATURES.key(8))


def test_a_run_of_changes_is_read_back_as_it_was() -> None:
    changes = [change(3), change(4)]
    decoded = ENTITIES.decode(ENTITIES.encode(changes), ENTITIES.key(3))
    assert [msgspec.json.encode(record) for record in decoded] == [msgspec.json.encode(record) for record in changes]
    assert ENTITIES.encode(changes) == ENTITIES.encode(decoded)


@pytest.mark.parametrize(
    ("text", "number"), [(ENTITIES.key(12), 12), ("entities/changes-12.json", None), ("features/x", None)]
)
def test_a_key_tells_the_number_of_a_change(text: str, number: int | None) -> None:
    assert ENTITIES.number_of(text) == number


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (lambda data: data[:-10], "document"),
        (lambda data: data.replace(b"somebody", b"someb0dy"), "checksum"),
        (lambda data: data.replace(b'"version":1', b'"version":2'), "version"),
        (lambda data: data.replace(b'"headrace":"entities"', b'"headrace":"features"'), "version"),
        (lambda data: ENTITIES.encode([change(4)]), "identity"),
        (lambda data: ENTITIES.encode([change(3), change(5)]), "identity"),
        (lambda data: ENTITIES.encode([]), "identity"),
    ],
)
def test_a_damaged_run_of_changes_is_found_and_named(damage: Callable[[bytes], bytes], check: str) -> None:
    with pytest.raises(CorruptData) as reason:
        ENTITIES.decode(damage(ENTITIES.encode([change(3)])), ENTITIES.key(3))
    assert reason.value.facts == {"object": ENTITIES.key(3), "check": check}

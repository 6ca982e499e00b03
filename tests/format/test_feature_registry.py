from __future__ import annotations

import msgspec
import pytest

from headrace.errors import CorruptData
from headrace.format import feature_registry as features
from headrace.format.feature_registry import StoredVersion

STORED = StoredVersion(7, 123, "ada", "fraud", msgspec.Raw(b'{"nodes":{}}'))
KEY = features.key(7)


def test_a_version_is_read_back_as_it_was() -> None:
    assert KEY == "features/registry-000000000007.json"
    assert features.version_of(KEY) == 7
    assert features.decode(features.encode(STORED), KEY) == STORED
    assert features.encode(STORED) == features.encode(STORED)


@pytest.mark.parametrize("key", ["features/registry-7.json", "manifests/a/b/c.json", "features/registry-000000000007"])
def test_other_keys_are_no_versions(key: str) -> None:
    assert features.version_of(key) is None


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda data: data[:-10], "document"),
        (lambda data: data.replace(b'"ada"', b'"eve"'), "checksum"),
        (lambda data: data.replace(b'"version":1', b'"version":2', 1), "version"),
        (lambda data: data.replace(b'"headrace":"features"', b'"headrace":"manifest"'), "version"),
        (lambda data: b"\xff" + data, "document"),
    ],
)
def test_damage_is_found_and_named(change: object, check: str) -> None:
    with pytest.raises(CorruptData) as damage:
        features.decode(change(features.encode(STORED)), KEY)  # type: ignore[operator]
    assert damage.value.facts == {"object": KEY, "check": check}


def test_a_version_under_another_key_is_refused() -> None:
    with pytest.raises(CorruptData, match="another key"):
        features.decode(features.encode(STORED), features.key(8))

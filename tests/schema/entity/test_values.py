from __future__ import annotations

from typing import Any

import pytest

from headrace.schema.entity.values import VALIDATORS

GOOD: dict[str, list[Any]] = {
    "email": ["a@b.co", "first.last+tag@mail.example.org", "ü@example.org"],
    "url": ["https://example.org", "http://localhost:8080/x?y=1#z", "ftp://user@host.net/f", "https://[::1]:443/"],
    "iso_date": ["2026-01-31", "2024-02-29"],
    "iso_datetime": ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+02:00"],
    "phone": ["+49 (30) 1234-567", "5551234", "+15551234567"],
    "currency": ["EUR"],
    "country": ["DE"],
    "slug": ["a", "a-b-2"],
    "uuid": ["6fa459ea-ee8a-3ca4-894e-db77e160355e"],
    "non_empty": ["x", [0], {"a": 1}],
    "integer": [1, 2.0, -3, 10**30],
    "positive": [1, 0.1],
    "non_negative": [0, 2],
}
BAD: dict[str, list[Any]] = {
    "email": ["a", "a@", "@b.co", "a@b", "a b@c.de", "a@b..de", "a..b@c.de", ".a@c.de", "a@-b.de", "x" * 65 + "@b.co"],
    "url": ["example.org", "https://", "https:// x", "//x", "http://-a.b"],
    "iso_date": ["2026-02-30", "2026-W01-1", "2026-1-1", "2026-01-31T00:00:00Z", "20260131"],
    "iso_datetime": ["2026-01-31", "2026-01-31T12:00:00", "2026-02-30T12:00:00Z"],
    "phone": ["123", "abc", "+" + "1" * 16, "555-"],
    "currency": ["eur", "EURO"],
    "country": ["de", "DEU"],
    "slug": ["A", "-a", "a--b", ""],
    "uuid": ["6fa459ea", "6fa459eaee8a3ca4894edb77e160355e"],
    "non_empty": ["", "  ", [], {}],
    "integer": [1.5],
    "positive": [0, -1],
    "non_negative": [-0.5],
}


@pytest.mark.parametrize("name", VALIDATORS)
def test_a_validator_accepts_what_it_says_and_nothing_else(name: str) -> None:
    accepts = VALIDATORS[name].accepts
    assert [value for value in GOOD[name] if not accepts(value)] == []
    assert [value for value in BAD[name] if accepts(value)] == []

"""The examples of registrations are what the server takes and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import testing
from headrace.client.requests import Request
from headrace.client.transport import Transport

WIRE = Path(__file__).parents[2] / "examples" / "wire"


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WIRE / name).read_text())
    return found


def answer(app: hr.App, document: Any) -> tuple[int, dict[str, Any]]:
    transport = Transport(app.client.settings)
    try:
        body = json.dumps(document).encode()
        found = transport.send(Request("POST", "/v1/register", {"content-type": "application/json"}, body))
        return found.status, json.loads(found.body)
    finally:
        transport.close()


@pytest.fixture
def app() -> Iterator[testing.VirtualApp]:
    """The pipeline of the fraud team, with one payment."""
    with testing.app() as app:
        status, found = answer(app, example("register-fraud-team.request.json"))
        assert status == 200
        assert found["status"] == "ok"
        assert found["registry_version"] == 1
        assert found["added"] == sorted(
            one["name"] for one in example("register-fraud-team.request.json")["descriptors"]
        )
        app.push("Payment", PAYMENT)
        yield app


PAYMENT = {
    "payment_id": "p1",
    "card": "c1",
    "merchant": "m1",
    "amount": 12.5,
    "currency": "EUR",
    "approved": False,
}


def test_what_was_registered_computes(app: testing.VirtualApp) -> None:
    assert app.push("Payment", PAYMENT).idempotent_replay
    features = ["payments_1h", "spent_24h", "decline_rate_1h", "top_merchants_7d", "fastest_kmh"]
    assert app.get("CardRisk", "c1", features=features) == {
        "payments_1h": 1,
        "spent_24h": 12.5,
        "decline_rate_1h": 1.0,
        "top_merchants_7d": [{"value": "m1", "count": 1}],
        "fastest_kmh": None,
    }
    assert app.get("CardMerchant", ["c1", "m1"]) == {"payments": 1, "cents": 1250}
    assert app.get("Everything")["channels"] == {"web": 1.0}


def test_a_loss_is_a_conflict_word_for_word(app: testing.VirtualApp) -> None:
    asked = {**example("register-force.request.json"), "force": False}
    assert answer(app, asked) == (409, answered_after(1, example("register-conflict.error.json")))
    assert app.registry().registry_version == 1


def answered_after(pushed: int, document: dict[str, Any]) -> dict[str, Any]:
    """The example, for a source that has so many events: what is reborn is born after them."""
    for feature in document["plan"]["features"]:
        if feature.get("born") == "now":
            feature["seq"] = pushed
    return document


def test_force_loses_what_the_conflict_named_and_nothing_else(app: testing.VirtualApp) -> None:
    status, found = answer(app, example("register-force.request.json"))
    conflict = example("register-conflict.error.json")
    assert status == 200
    assert found["status"] == "ok"
    assert found["registry_version"] == 2
    assert found["removed"] == conflict["removed"]
    assert found["changed"] == conflict["changed"]
    row = app.get("CardRisk", "c1")
    assert row["payments_1h"] == 0
    assert row["spent_24h"] == 12.5
    assert "first_seen" not in row


def test_a_dry_run_changes_nothing(app: testing.VirtualApp) -> None:
    status, found = answer(app, example("register-dry-run.request.json"))
    assert status == 200
    assert found["status"] == "ok"
    assert found["registry_version"] == 1
    assert found["changed"] == [
        {"name": "CardRisk", "added_features": ["currencies_24h"]},
        {"name": "Payment", "added_fields": [{"name": "terminal", "type": "str", "required": False}]},
    ]
    assert "currencies_24h" not in app.get("CardRisk", "c1")

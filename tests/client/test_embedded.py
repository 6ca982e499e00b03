"""A server of one's own, in a child process."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import TooLarge


def test_what_was_stored_is_there_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither somebody's settings nor the file in the working directory are those of the embedded server.
    monkeypatch.setenv("HEADRACE_SERVER__HOST", "nowhere.invalid")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.toml").write_text("[nonsense]\n")
    with hr.App.embedded("data") as app:
        app.client.stream("notes").create(body={"n": 1})
    with hr.App.embedded(tmp_path / "data") as app:
        assert [batch.items for batch in app.client.stream("notes").read()] == [[{"n": 1}]]


@hr.event(dedupe_key="id")
class Order:
    id: str
    user: str


@hr.table(key="user")
def Orders(order: Order):  # type: ignore[no-untyped-def]
    return order.agg(n=hr.count())


def test_features_and_what_they_count_are_there_the_next_time(tmp_path: Path) -> None:
    with hr.App.embedded(tmp_path) as app:
        app.register(Orders)
        first = app.push(Order, {"id": "1", "user": "u"})
    with hr.App.embedded(tmp_path) as app:
        assert not app.register(Orders)
        again = app.push(Order, {"id": "1", "user": "u"})
        assert (again.offset, again.idempotent_replay) == (first.offset, True)
        app.push(Order, {"id": "2", "user": "u"})
        assert app.get(Orders, "u") == {"n": 2}


def test_the_process_ends_with_the_app(tmp_path: Path) -> None:
    app = hr.App.embedded(tmp_path)
    app.close()
    with pytest.raises(hr.Unreachable), hr.Client(app.client.settings.url, retry_for=0) as client:
        client.stream("notes").info()


def test_settings_are_those_of_the_server(tmp_path: Path) -> None:
    with hr.App.embedded(tmp_path, limits__body_bytes="100") as app, pytest.raises(TooLarge):
        app.client.stream("notes").create(body={"long": "x" * 200})


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(hr.Unreachable, match=r"did not start: .*nonsense"):
        hr.App.embedded(tmp_path, limits__nonsense="1")

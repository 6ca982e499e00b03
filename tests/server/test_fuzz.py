"""The server against its own OpenAPI document, with generated requests that fit it and that do not."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import settings
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

import requests
from headrace.server.routes.route_table import openapi_document

if TYPE_CHECKING:
    from tests.conftest import ServerProcess
    from tests.server.conftest import Api

SCALE = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 1
#: Of each operation, besides the many that are the same every time: a value and its neighbours for every limit.
EXAMPLES = 20 if SCALE == 1 else 600
QUICK = {"server__long_poll_s": "0.02", "server__max_long_poll_s": "0.05", "server__sse_lifetime_s": "0.05"}

# What fits the document one value at a time may still not fit together.
FREE_TO_REFUSE = [positive_data_acceptance]

schemathesis.serializer.alias("application/x-protobuf", "application/octet-stream")


def without_defaults(node: Any) -> Any:
    """The document without defaults: schemathesis cannot hash objects in them, and would wait as long as they say."""
    if isinstance(node, list):
        return [without_defaults(item) for item in node]
    if not isinstance(node, dict):
        return node
    is_schema = "type" in node or "anyOf" in node
    return {name: without_defaults(value) for name, value in node.items() if not (is_schema and name == "default")}


schema = schemathesis.openapi.from_dict(without_defaults(openapi_document()))
# What is wrong may be too long as well, and is refused for that first.
rejection = schema.config.checks.negative_data_rejection
rejection.expected_statuses = [*rejection.expected_statuses, "413"]
of_streams = schema.include(path_regex=r"^/v1/stream/\{name\}")
of_touches = schema.include(path_regex=r"^/v1/stream/\{name\}/touch/")


@pytest.fixture(scope="module")
def server(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose live reads end soon."""
    quick = type(server)(tmp_path_factory.mktemp("quick") / "data", QUICK).start()
    yield quick
    quick.kill()


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """A client that keeps its connections."""
    with requests.Session() as session:
        yield session


@pytest.fixture(scope="module")
def names(api: Api) -> Iterator[str]:
    """Names of streams of every kind, again and again."""
    headers: dict[str, dict[str, str]] = {
        "json": {"content-type": "application/json"},
        "text": {"content-type": "text/plain"},
        "bytes": {},
        "closed": {"content-type": "application/json", "stream-closed": "true"},
        "short": {"stream-ttl": "1"},
        "kept": {"stream-retention-bytes": "10"},
        "fork": {"stream-forked-from": "/v1/stream/json"},
    }

    def alive() -> Iterator[str]:
        for name in itertools.cycle(headers):
            api.put(f"/v1/stream/{name}", headers=headers[name])
            yield name

    return alive()


class Touched:
    """A stream of the state protocol, on which waits have something to wait for."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._path = "/v1/stream/touched"
        self._turn = itertools.count()
        touch = {"enabled": True, "memory": {"bucketMs": 1}, "templates": {"activationRateLimitPerMinute": 0}}
        profile = {"kind": "state-protocol", "touch": touch}
        assert api.put(self._path, headers={"content-type": "application/json"}).status_code == 201
        assert api.post(f"{self._path}/_profile", {"profile": profile}).status_code == 200

    def take_part_in(self, case: Any) -> None:
        """Let a request be about this stream, while it changes; often with a cursor and templates that it knows."""
        change = {"type": "todos", "key": "1", "value": {"user": "a"}, "headers": {"operation": "insert"}}
        assert self._api.post(self._path, [change]).status_code == 204
        case.path_parameters["name"] = "touched"
        if case.meta is None or not case.meta.generation.mode.is_positive:
            return  # what must be refused stays as it is
        body = case.body
        if isinstance(case.query, dict) and "timeoutMs" in case.query:
            case.query["timeoutMs"] = "5"
        if isinstance(body, dict) and "cursor" in body:
            known = self._api.get(f"{self._path}/touch/meta").json()["cursor"]
            body |= {"cursor": (known, "now", body["cursor"])[next(self._turn) % 3], "timeoutMs": 5}


@schema.parametrize()
@settings(max_examples=EXAMPLES)
def test_every_operation_answers_as_the_document_says(
    case: Any, server: ServerProcess, api: Api, session: requests.Session
) -> None:
    case.call_and_validate(base_url=server.url, session=session, excluded_checks=FREE_TO_REFUSE)


@of_streams.parametrize()
@settings(max_examples=EXAMPLES)
def test_operations_on_living_streams_answer_as_the_document_says(
    case: Any, server: ServerProcess, names: Iterator[str], session: requests.Session
) -> None:
    case.path_parameters["name"] = next(names)
    case.call_and_validate(
        base_url=server.url, session=session, excluded_checks=[*FREE_TO_REFUSE, negative_data_rejection]
    )


@pytest.fixture(scope="module")
def touched(api: Api) -> Touched:
    """A stream whose touches are told, with a template and changes."""
    return Touched(api)


@of_touches.parametrize()
@settings(max_examples=100 * SCALE)
def test_touches_answer_as_the_document_says(case: Any, server: ServerProcess, touched: Touched) -> None:
    touched.take_part_in(case)
    case.call_and_validate(base_url=server.url, excluded_checks=FREE_TO_REFUSE)


def test_chains_of_operations_answer_as_the_document_says(server: ServerProcess, api: Api) -> None:
    class Chain(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"base_url": server.url}

        def validate_response(self, response: Any, case: Any, **options: Any) -> None:
            case.validate_response(response, excluded_checks=FREE_TO_REFUSE)

    # The same chain may go another way when earlier ones have left streams behind: exploring ends there, and every
    # answer up to then was held against the document.
    with contextlib.suppress(FlakyStrategyDefinition):
        run_state_machine_as_test(Chain, settings=settings(max_examples=25 * SCALE, stateful_step_count=8))


def test_the_document_is_served_as_it_is(api: Api) -> None:
    assert api.get("/openapi.json").json() == openapi_document()

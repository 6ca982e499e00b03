"""Every route at its limits, beside plain appends: nothing keeps the event loop to itself, and no append waits long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from bench.stalls.beside import Beside, beside
from bench.stalls.load import Load

from headrace.server.routes.route_table import openapi_document
from server.conftest import Api
from server.limit_cases import CASES, LITTLE, World

if TYPE_CHECKING:
    from tests.conftest import ServerProcess

pytestmark = pytest.mark.timeout(180)

#: Processor time that the loop may spend between two of its ticks, and the longest wait of an append on a busy machine.
MOST_BUSY_S, MOST_WAIT_S = 0.1, 2.5
#: What a load is answered: 408 where a busy machine is too slow, 429 where a queue is full.
TAKEN = {"200", "201", "202", "204", "408", "429"}
BROKEN = ("500", "502", "504")


@pytest.fixture(scope="module")
def world(server: ServerProcess) -> Iterator[World]:
    """A server with some of everything."""
    api = Api(server.url)
    made = World(api)
    made.prepare()
    yield made
    api.client.close()


def driven(world: World, make_load: Callable[[], Load]) -> Beside:
    """What came of a load beside appends, none of which was refused or waited for long.

    A load that keeps the loop busy does so again; what else the machine does at the time, such as taking the processor
    away in the middle of a step, it does not.
    """
    port = urlsplit(world.api.url).port
    assert port is not None
    came = beside(port, make_load(), "/v1/stream/plain")
    if came.busy is not None and came.busy.bound > MOST_BUSY_S:
        came = beside(port, make_load(), "/v1/stream/plain")
    assert came.busy is not None and came.busy.bound <= MOST_BUSY_S, came
    assert came.longest <= MOST_WAIT_S, came
    assert came.refused == 0
    assert not any(status in BROKEN or not status.isdigit() for status in came.statuses), came.statuses
    return came


def test_every_route_is_driven() -> None:
    paths = openapi_document()["paths"]
    routes = {(method.upper(), path) for path, item in paths.items() for method in item.keys() - {"parameters"}}
    assert CASES.keys() | LITTLE.keys() == routes, "a route is asked at its limits, or does little whatever is asked"
    assert not CASES.keys() & LITTLE.keys()


@pytest.mark.parametrize("route", CASES, ids=" ".join)
def test_a_route_at_its_limits_does_not_keep_others_waiting(world: World, route: tuple[str, str]) -> None:
    case = CASES[route]
    came = driven(world, lambda: case.load(world))
    assert sum(came.statuses.values()) == case.connections * case.rounds
    assert case.is_refused or came.statuses.keys() <= TAKEN


def test_routes_that_do_little_do_not_keep_others_waiting(world: World) -> None:
    requests = [request for made in LITTLE.values() for request in made(world)]
    driven(world, lambda: Load(requests, connections=32, rounds=8))

"""SIGKILL to a copy of a stream into entities, and to the server: begun again, every event is an observation once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import headrace as hr
from headrace.client.entities import Entities

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

EVENTS, PEOPLE, KILLS = 20_000, 50, 3
COMMAND = [sys.executable, "-c", "from headrace.cli.main import main; main()"]
WORDS = ["entity", "observe", "--from-stream", "people", "--type", "person", "--map", "name=/who/name", "--map", "n=n"]


def start_copy(url: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "HEADRACE_URL": url}
    return subprocess.Popen([*COMMAND, *WORDS], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def count(url: str) -> int:
    """How many observations are there."""
    with hr.Client(url) as client:
        return next((int(stream["next_offset"]) for stream in client.streams(prefix="entities/")), 0)


@pytest.mark.parametrize("victim", ["copy", "server"])
def test_a_copy_that_is_killed_and_begun_again_stores_every_event_once(start_server: StartServer, victim: str) -> None:
    chance = random.Random(victim)
    server = start_server()
    with hr.Client(server.url) as client:
        stream = client.stream("people")
        stream.create()
        stream.append([{"who": {"name": f"p{number % PEOPLE}"}, "n": number} for number in range(EVENTS)])
    kills = 0
    while kills < KILLS:
        before = count(server.url)
        process = start_copy(server.url)
        while count(server.url) == before and process.poll() is None:
            time.sleep(0.005)  # there is no event: the observations are counted by another process
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        kills += 1
        process.wait()
        if victim == "server":
            server.kill()
            server.start()
    assert 0 < count(server.url) <= EVENTS
    assert start_copy(server.url).wait(120) == 0
    assert start_copy(server.url).wait(120) == 0
    assert count(server.url) == EVENTS
    with hr.Client(server.url) as client:
        entities = Entities(client)
        people = list(entities.list("person"))
        observed = [
            observation for person in people for observation in entities.observations(person.entity_id, order="oldest")
        ]
        newest = {person.snapshot["n"] for person in people}
    assert sorted(observation["fields"]["n"] for observation in observed) == list(range(EVENTS))
    assert len({observation["origin"]["offset"] for observation in observed}) == EVENTS
    assert newest == set(range(EVENTS - PEOPLE, EVENTS))  # the last event of each in the stream counts

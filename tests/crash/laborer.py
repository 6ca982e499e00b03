"""A worker for feature tables in a process of its own, for tests that kill it."""

from __future__ import annotations

import random
import sys
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

import msgspec

from headrace.reduce.work_units import Unit
from support.feature_rig import perform
from support.log_stream import Logs

_PAUSE_S = 0.03


def _work_once(logs: Logs, chance: random.Random) -> None:
    """Perform what one lease holds, and say when it begins and how many units are done; some commits are sent twice."""
    leased = logs.ask("POST", "/v1/work/lease", {"worker": "laborer", "limit": 4, "jobs": ["features"]})
    if leased["lease"] is None:
        time.sleep(_PAUSE_S)
        return
    print(0, flush=True)
    results = [perform(msgspec.convert(unit, Unit), leased["store"]) for unit in leased["units"]]
    body: Any = {"token": leased["lease"]["token"], "results": msgspec.to_builtins(results)}
    for _ in range(chance.randrange(1, 3)):
        settled = logs.ask("POST", f"/v1/work/leases/{leased['lease']['id']}/commit", body)["results"]
        print(sum(one["outcome"] == "committed" for one in settled), flush=True)


def _work(logs: Logs, chance: random.Random) -> None:
    """Work until the server is gone."""
    while True:
        try:
            _work_once(logs, chance)
        except HTTPError as refused:
            if refused.code != 409:  # the lease is lost, or was ended by the first of two commits
                raise


def main() -> None:
    """Work for each server whose address comes in."""
    chance = random.Random(1)
    for address in sys.stdin:
        try:
            _work(Logs(address.strip()), chance)
        except HTTPError as refused:
            print(refused.read().decode(), file=sys.stderr, flush=True)
            raise
        except (OSError, HTTPException):
            continue


if __name__ == "__main__":
    main()

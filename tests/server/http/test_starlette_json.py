from __future__ import annotations

import json

from headrace.errors import Overloaded, ProducerFenced
from headrace.server.http.starlette_json import failure_response, json_response


def test_an_answer_is_json_that_nobody_stores() -> None:
    response = json_response({"ü": [1]}, status=201, headers={"link": "x"})
    assert response.status_code == 201
    assert json.loads(response.body) == {"ü": [1]}
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["link"] == "x"


def test_a_failure_carries_its_facts_in_body_and_headers() -> None:
    response = failure_response(Overloaded("full", retry_after=3, queue="append"))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    error = {"code": "overloaded", "message": "full", "retry_after": 3, "queue": "append"}
    assert json.loads(response.body) == {"error": error}
    assert failure_response(ProducerFenced("late", producer_epoch=4)).headers["producer-epoch"] == "4"

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from headrace.config import Config, LimitsConfig, StorageConfig
from headrace.engine.assembly import Engine
from headrace.engine.runtime.gates import Gates
from headrace.engine.runtime.memory import MemoryMonitor
from headrace.errors import BadRequest, every_error
from headrace.format import offset as offsets
from headrace.server.routes import service
from headrace.server.routes.report import Report
from headrace.server.routes.route_table import ROUTES, openapi_document
from headrace.server.routes.streams import read_retention
from headrace.storage.keys import MAX_TEXT

DOCUMENT = openapi_document()
VERBS = {"get", "put", "post", "delete", "head"}


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for verb, operation in item.items():
            if verb in VERBS:
                yield path, verb, operation


def _schema(path: str, verb: str = "get", status: str = "200") -> dict[str, Any]:
    answer = DOCUMENT["paths"][path][verb]["responses"][status]
    schema: dict[str, Any] = answer["content"]["application/json"]["schema"]
    return schema | {"components": DOCUMENT["components"]}


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return DOCUMENT["components"]["schemas"][name] if name else schema


def test_the_document_is_json_and_every_reference_leads_somewhere() -> None:
    text = msgspec.json.encode(DOCUMENT).decode()
    assert DOCUMENT["openapi"] == "3.1.0"
    references = set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', text))
    assert references == set(DOCUMENT["components"]["schemas"])


def test_operations_have_names_of_their_own_and_links_lead_to_them() -> None:
    names = [operation["operationId"] for _, _, operation in _operations()]
    assert len(names) == len(set(names))
    for _, _, operation in _operations():
        for answer in operation["responses"].values():
            assert {link["operationId"] for link in answer.get("links", {}).values()} <= set(names)


def test_every_placeholder_of_a_path_is_a_parameter() -> None:
    for path, item in DOCUMENT["paths"].items():
        declared = {given["name"] for given in item.get("parameters", ()) if given["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path))


def test_every_route_is_documented_once() -> None:
    declared = [(route.address, route.method.lower()) for route in ROUTES if route.is_documented]
    assert sorted(declared) == sorted((path, verb) for path, verb, _ in _operations())
    assert len(set(declared)) == len(declared)


def test_every_failure_names_its_codes() -> None:
    codes: dict[int, set[str]] = {}
    for error in every_error():
        codes.setdefault(error.status, set()).add(error.code)
    for path, verb, operation in _operations():
        for status, answer in operation["responses"].items():
            parts = answer.get("content", {}).get("application/json", {}).get("schema", {}).get("allOf", ())
            for part in parts:
                if "properties" in part:
                    named = set(part["properties"]["error"]["properties"]["code"]["enum"])
                    assert named and named <= codes[int(status)], (path, verb, status)


def test_every_schema_is_a_schema() -> None:
    for _, _, operation in _operations():
        for given in operation["parameters"]:
            jsonschema_rs.validator_for(given["schema"])
        for answer in operation["responses"].values():
            for media in answer.get("content", {}).values():
                jsonschema_rs.validator_for(media["schema"] | {"components": DOCUMENT["components"]})


def test_the_users_one_may_name_are_described_as_the_users_of_keys() -> None:
    named = [
        given["schema"] for _, _, one in _operations() for given in one["parameters"] if given["name"] == "user_id"
    ]
    bodies = [one["requestBody"]["content"] for _, _, one in _operations() if "requestBody" in one]
    schemas = [content["application/json"]["schema"] for content in bodies if "application/json" in content]
    flat = [_resolved(part) for schema in schemas for part in schema.get("anyOf", [schema])]
    given = [part["properties"]["user_id"] for part in flat if "user_id" in part.get("properties", {})]
    named += [part for schema in given for part in schema.get("anyOf", [schema]) if part != {"type": "null"}]
    assert len(named) > 20
    assert {(schema["minLength"], schema["maxLength"]) for schema in named} == {(1, MAX_TEXT)}


def test_every_status_an_error_can_have_is_described() -> None:
    described = {int(status) for _, _, operation in _operations() for status in operation["responses"]}
    # 405 answers verbs that are not in the document, and 500 is never meant.
    assert {error.status for error in every_error()} - described == {405, 500}


def test_subscriptions_are_described_only_where_they_are_served() -> None:
    without = set(openapi_document(subscriptions=False)["paths"])
    assert {path for path in DOCUMENT["paths"] if "__ds" in path} == set(DOCUMENT["paths"]) - without


def test_the_server_answers_as_described(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = await Engine.open(Config(storage=StorageConfig(data_dir=str(tmp_path))))
        gates = Gates(LimitsConfig())
        monitor = MemoryMonitor(gates, limit_bytes=None)
        report, readiness = Report(engine, gates, monitor), service.Readiness(engine)
        readiness.serving = True
        for path, answer in (
            ("/v1/server/_details", report.details()),
            ("/v1/server/_mem", report.memory()),
            ("/health/ready", await readiness.check()),
        ):
            jsonschema_rs.validate(_schema(path), msgspec.to_builtins(answer))
        await engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("-1", True),
        ("now", True),
        (offsets.START, True),
        (offsets.encode(0, 1), True),
        (offsets.encode(2**32 - 1, 2**64 - 1), True),
        (offsets.encode(7, 12345).lower(), True),
        ("", False),
        ("0", False),
        (offsets.encode(0, 1)[:-1] + "1", False),
        ("U" * 26, False),
    ],
)
def test_the_described_offset_is_the_one_that_is_understood(text: str, fits: bool) -> None:
    parameters = DOCUMENT["paths"]["/v1/stream/{name}"]["get"]["parameters"]
    schema = next(given["schema"] for given in parameters if given["name"] == "offset")
    assert jsonschema_rs.is_valid(schema, text) is fits


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        ({"age": "24h", "bytes": 5}, True),
        ({"age": None}, True),
        ({}, True),
        ({"age": "0s"}, False),
        ({"age": 5}, False),
        ({"bytes": -1}, False),
        ({"size": 1}, False),
    ],
)
def test_the_described_retention_rule_is_the_one_that_is_understood(rule: dict[str, Any], fits: bool) -> None:
    content = DOCUMENT["paths"]["/v1/stream/{name}/_retention"]["post"]["requestBody"]["content"]
    assert jsonschema_rs.is_valid(_resolved(content["application/json"]["schema"]), rule) is fits
    try:
        read_retention(msgspec.json.encode(rule))
    except BadRequest:
        assert not fits
    else:
        assert fits

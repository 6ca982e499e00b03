"""The OpenAPI document: every route, its parameters, and every status it answers with, written as data."""

from __future__ import annotations

from importlib.metadata import version

from headrace.server.routes.openapi.aggregate import AGGREGATE_PATHS
from headrace.server.routes.openapi.details import DETAILS_PATHS
from headrace.server.routes.openapi.enhancement import ENHANCEMENT_PATHS
from headrace.server.routes.openapi.entities import ENTITY, ENTITY_PATHS
from headrace.server.routes.openapi.entity_types import ENTITY_TYPE, ENTITY_TYPE_PATHS
from headrace.server.routes.openapi.erasures import ERASURE, ERASURE_PATHS
from headrace.server.routes.openapi.features import FEATURE_PATHS
from headrace.server.routes.openapi.observations import OBSERVATION_PATHS
from headrace.server.routes.openapi.profiles import PROFILE, PROFILE_PATHS
from headrace.server.routes.openapi.schemas import REGISTRY, SCHEMA_PATHS, VERIFICATION
from headrace.server.routes.openapi.search import SEARCH_PATHS
from headrace.server.routes.openapi.service import SERVER_PATHS
from headrace.server.routes.openapi.streams import DESCRIPTOR, STREAM_PATHS
from headrace.server.routes.openapi.subscriptions import SUBSCRIPTION, SUBSCRIPTION_PATHS
from headrace.server.routes.openapi.tables import TABLE_PATHS
from headrace.server.routes.openapi.touch import TOUCH_PATHS
from headrace.server.routes.openapi.words import TEXT, Node, record
from headrace.server.routes.openapi.work import WORK_PATHS


def document(*, subscriptions: bool = True) -> Node:
    """The whole document, with subscriptions where they are served."""
    error = record(error=record(code=TEXT, message=TEXT))
    derived = {**SEARCH_PATHS, **AGGREGATE_PATHS, **FEATURE_PATHS, **TABLE_PATHS, **WORK_PATHS, **PROFILE_PATHS}
    paths = {**SERVER_PATHS, **STREAM_PATHS, **SCHEMA_PATHS, **DETAILS_PATHS, **derived}
    paths |= ENTITY_TYPE_PATHS | ENHANCEMENT_PATHS | OBSERVATION_PATHS | ENTITY_PATHS | ERASURE_PATHS | TOUCH_PATHS
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version("headrace"),
            "description": "Durable event streams over HTTP. Errors have a stable `code`.",
        },
        "paths": {**paths, **(SUBSCRIPTION_PATHS if subscriptions else {})},
        "components": {
            "schemas": {
                "Error": error,
                "Stream": DESCRIPTOR,
                "Entity": ENTITY,
                "EntityType": ENTITY_TYPE,
                "Erasure": ERASURE,
                "Profile": PROFILE,
                "Registry": REGISTRY,
                "Verification": VERIFICATION,
                "Subscription": SUBSCRIPTION,
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "token": {"type": "http", "scheme": "bearer", "description": "the token of a wake"},
            },
        },
        "security": [{}, {"key": []}],
    }

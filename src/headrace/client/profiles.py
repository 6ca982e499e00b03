"""Profiles on the wire: what is asked of what a stream means, and what the answers say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.client import answers
from headrace.client.answers import Answer
from headrace.client.requests import Request, stream_path
from headrace.types import JSON

#: A profile as it is shown: its kind, and its settings beside it.
Profile = dict[str, Any]


class _Resource(msgspec.Struct):
    profile: Profile


def show(name: str) -> Request:
    """GET: the profile of a stream."""
    return Request("GET", _path(name))


def change(name: str, kind: str, settings: Mapping[str, Any] | None, *, dry_run: bool = False) -> Request:
    """POST: another profile, or other settings; a dry run only asks."""
    body = {"profile": {**(settings or {}), "kind": kind}}
    target = f"{_path(name)}?dry_run=true" if dry_run else _path(name)
    return Request("POST", target, {"content-type": JSON}, msgspec.json.encode(body), changes=not dry_run)


def profile(answer: Answer) -> Profile:
    """The profile of a stream."""
    return answers.decoded(answer.checked().body, _Resource).profile


def _path(name: str) -> str:
    return f"{stream_path(name)}/_profile"

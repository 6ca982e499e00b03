"""One form for all spellings of the same nodes."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from headrace.deadline import check_deadline
from headrace.schema.descriptor.nodes import Node
from headrace.schema.spelling import plain


def fingerprint(nodes: Mapping[str, Node]) -> str:
    """A hash of nodes that neither their order, nor the order of keys, nor a way to spell anything changes."""
    return sha256(canonical(dict(nodes))).hexdigest()


def canonical(value: Any) -> bytes:
    """The one spelling of a node or a part of one: keys in order, whole numbers without fraction."""
    return msgspec.json.encode(plain(msgspec.to_builtins(value)), order="sorted")


def alike(one: Any, other: Any) -> bool:
    """Whether two nodes, or parts, say the same; true is not 1."""
    check_deadline()
    return canonical(one) == canonical(other)

"""Companions whose files were damaged, in any place: filtered reads and aggregates do without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.search.searches import Searched
from headrace.deadline import Deadline
from headrace.engine.search.aggregate import aggregate
from headrace.engine.search.filtered_read import filtered
from headrace.errors import ObjectMissing
from headrace.format.object_names import companion_key
from headrace.query.filter import Filter, Limits
from headrace.query.request import query
from headrace.reduce.request import read
from reduce.answers import decoded
from support.engine_rig import Rig
from support.stored_objects import placed

SPAN = {"rollup": "requests", "interval": "1m", "from": 0, "to": 10**15}


def described(rig: Rig) -> tuple[Searched, Path, Path]:
    """A stream whose events are all in a companion, and the files of that."""
    stream = Searched(rig)
    stream.append(*({"time": n, "service": f"s{n % 3}", "code": n, "body": "red green"} for n in range(40)))
    rig.publish(stream.name)
    made = stream.index(0, 40)
    places = [
        rig.engine.objects.local_path(companion_key(stream.name, stream.stream.incarnation, made.name, part))
        for part in ("columns", "postings")
    ]
    assert places[0] is not None and places[1] is not None
    return stream, places[0], places[1]


def filtered_times(stream: Searched, text: str) -> list[Any]:
    found, head = stream.stream, stream.stream.head
    defined = stream.archive.defined(found, head)
    asked = Filter(text, query(text, defined.definition.search, field="filter", mode="filter"))
    assert head.registry is not None
    view = head.registry.view(None)
    limits = Limits(1 << 20, 1 << 20)
    return filtered(stream.archive, found, head, defined, 0, asked, None, view, limits, Deadline(60)).parts


def counted(stream: Searched, **more: Any) -> int:
    found, head = stream.stream, stream.stream.head
    defined = stream.archive.defined(found, head)
    asked = read({**SPAN, **more}, defined.definition.search)
    answer = aggregate(stream.archive, found, head, defined, asked, Deadline(60))
    assert not answer.missing.events
    return sum(group["measures"]["all"]["count"] for bucket in decoded(answer.buckets) for group in bucket["groups"])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("part", [0, 1])
def test_what_a_damaged_companion_held_is_found_in_the_segments(rig: Rig, part: int, share: float) -> None:
    stream, *files = described(rig)
    whole = files[part].read_bytes()
    at = min(int(len(whole) * share), len(whole) - 8)
    files[part].write_bytes(whole[:at] + bytes(byte ^ 0xFF for byte in whole[at : at + 8]) + whole[at + 8 :])
    assert len(filtered_times(stream, "status:>=30 service:s0")) == 4
    assert len(filtered_times(stream, "service:s0 OR service:s1")) == 27
    assert counted(stream) == 40
    assert counted(stream, q="status:>=30 service:s0") == 4


def test_a_missing_segment_is_named_by_whatever_needs_it(rig: Rig) -> None:
    stream = Searched(rig)
    stream.append(*({"time": n, "service": "s", "code": n, "body": "red"} for n in range(20)))
    rig.publish(stream.name)
    [segment] = placed(rig, stream.name)
    rig.engine.objects.delete([segment.key])
    for ask in (lambda: filtered_times(stream, "service:s"), lambda: counted(stream)):
        with pytest.raises(ObjectMissing) as missing:
            ask()
        assert missing.value.facts["object"] == segment.key

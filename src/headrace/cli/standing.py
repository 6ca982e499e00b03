"""The details of a stream for people: a few facts, and a table of its indexes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

COLUMNS = ("index", "of", "segments", "behind", "size", "state")

_FAMILIES = {"exact": "exact values", "col": "columns", "fts": "full text", "agg": "rollups"}
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


def facts(details: dict[str, Any]) -> dict[str, Any]:
    """What a stream holds, and where."""
    stream, stored, status = details["stream"], details["storage"]["object_storage"], details["index_status"]
    events = int(stream["next_offset"])
    companions = status["bundled_companions"]
    return {
        "stream": stream["name"],
        "content_type": stream["content_type"],
        "events": f"{events:,} appended, {size(stream['total_size_bytes'])} retained",
        "published": f"{int(stream['uploaded_through']) + 1:,} in {stored['segment_object_count']:,} segments, "
        f"{size(stored['segments_bytes'])}",
        "pending": f"{int(stream['pending_rows']):,}, {size(stream['pending_bytes'])}",
        "companions": f"{companions['object_count']:,} objects, {size(companions['bytes_at_rest'])}",
        "schema_version": details["schema"]["currentVersion"],
        "last_append": stream["last_append_at"],
        "closed": stream["closed"],
    }


def indexes(status: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for every index that a stream should have."""
    return list(_lines(status, status["segments"]["total_count"]))


def _lines(status: dict[str, Any], total: int) -> Iterator[dict[str, Any]]:
    if status["routing_key_lexicon"]["configured"]:
        lexicon = status["routing_key_lexicon"]
        yield _line("routing keys", "", lexicon, lexicon["indexed_segment_count"], total)
    for family in status["search_families"]:
        covered, outdated = family["covered_segment_count"], family["stale_segment_count"]
        fields = ", ".join(family["fields"])
        yield _line(_FAMILIES[family["family"]], fields, family, covered, total, outdated)


def _line(name: str, fields: str, index: dict[str, Any], covered: int, total: int, outdated: int = 0) -> dict[str, Any]:
    done = index["fully_indexed_uploaded_segments"]
    return {
        "index": name,
        "of": fields,
        "segments": f"{covered:,} of {total:,}",
        "behind": None if index["lag_ms"] is None else span(int(index["lag_ms"])),
        "size": size(index["bytes_at_rest"]),
        "state": "complete" if done else f"{outdated:,} segments outdated" if outdated else "building",
    }


def size(digits: str) -> str:
    """Bytes in a unit that leaves few digits."""
    number, units = float(digits), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while number >= 1024 and unit != "TiB":
        number, unit = number / 1024, next(units)
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def span(millis: int) -> str:
    """A time in its greatest unit."""
    for length, unit in _UNITS:
        if millis >= length:
            return f"{millis / length:.0f} {unit}"
    return "0 ms"

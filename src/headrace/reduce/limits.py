"""How many groups an aggregate has at most, and the refusal of more."""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import TooManyGroups


class GroupLimits(NamedTuple):
    """How many groups one answer has at most, over all its buckets, and how many bytes their states take."""

    groups: int
    bytes: int

    def require(self, groups: int, size: int) -> None:
        """Raise TooManyGroups where so many groups, or states of so many bytes, go over a limit."""
        require_groups(groups, self.groups)
        if size > self.bytes:
            raise _refused(f"the groups of the answer would take more than {self.bytes} bytes", self.bytes)


def require_groups(count: int, most: int | None) -> None:
    """Raise TooManyGroups where there are more groups than one answer holds."""
    if most is not None and count > most:
        raise _refused(f"the answer would have more than {most} groups over all its buckets", most)


def _refused(reason: str, limit: int) -> TooManyGroups:
    advice = "ask for a shorter range, a longer interval or fewer dimensions, or narrow it by q"
    return TooManyGroups(f"{reason}; {advice}", field="group_by", limit=limit)

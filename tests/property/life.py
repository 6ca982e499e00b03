"""A stream as plain lists: what the server must answer, without a server."""

from __future__ import annotations

START = "0" * 26
JSON = "application/json"
Triple = tuple[str, int, int]


class Life:
    """The model of a stream, from its creation to its end."""

    def __init__(self, name: str, content_type: str, source: Life | None = None, fork_point: int = 0) -> None:
        self.name, self.content_type, self.is_json = name, content_type, content_type == JSON
        self.source, self.fork_point = source, fork_point
        self.origin: tuple[Life, int, int] | None = None
        self.forks: list[Life] = []
        self.state = "live"
        self.closed = False
        self.closed_by: Triple | None = None
        self.stream_seq: str | None = None
        self.producers: dict[str, tuple[int, int]] = {}
        self.entries: list[str] = source.entries[:fork_point] if source else []
        self.keys: list[str | None] = source.keys[:fork_point] if source else []
        self.starts: list[int] = [s for s in source.starts if s < fork_point] if source else []
        self.offsets: dict[int, str] = {0: START}
        self.retention: int | None = None
        # Retention is applied by a sweep at a time of its own: the first entry lies between these.
        self.first_least: int = min(source.first_least, fork_point) if source else 0
        self.first_most: int = min(source.first_most, fork_point) if source else 0
        if source is not None:
            self.offsets |= {p: text for p, text in source.offsets.items() if p <= fork_point}
            source.forks.append(self)

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, texts: list[str], key: str | None) -> None:
        if texts:
            self.starts.append(len(self))
            self.entries += texts if self.is_json else ["".join(texts)]
            self.keys += [key] * (len(self) - len(self.keys))
        self.first_most = max(self.first_most, self.kept())

    def kept(self) -> int:
        """Where the first entry lies once a sweep has come by."""
        if self.retention is None or self._bytes_between(self.first_least, len(self)) <= self.retention:
            return self.first_least
        later = [start for start in [*self.starts, len(self)] if start >= self.first_least]
        return next(start for start in later if self._bytes_between(start, len(self)) <= self.retention)

    def _bytes_between(self, start: int, stop: int) -> int:
        commas = sum(p not in self.starts for p in range(start + 1, stop))
        return sum(len(text.encode()) for text in self.entries[start:stop]) + commas

    def learn(self, position: int, text: str) -> None:
        """An offset that the server named: always the same for a position, and sorted like it."""
        assert self.offsets.setdefault(position, text) == text
        ordered = [self.offsets[p] for p in sorted(self.offsets)]
        assert ordered == sorted(set(ordered))

    def chosen(self, position: int, key: str | None) -> list[str]:
        """What a read from a position on must find; bytes of byte streams are listed one by one."""
        pairs = zip(self.entries[position:], self.keys[position:], strict=True)
        texts = [text for text, k in pairs if key is None or k == key]
        return texts if self.is_json else list("".join(texts))

    def next_append(self, position: int) -> int:
        """How many messages, or bytes, a fork can go into the append that follows a position."""
        if position >= len(self):
            return 0
        if not self.is_json:
            return len(self.entries[position].encode())
        return next(s for s in [*self.starts, len(self)] if s > position) - position

    def end(self) -> None:
        """Delete it; it stays for its forks, and the last fork takes its deleted ancestors along."""
        self.state = "soft" if any(fork.state != "gone" for fork in self.forks) else "gone"
        if self.state == "gone" and self.source is not None and self.source.state == "soft":
            self.source.end()

    def was_forked(self, source: Life, position: int | None, sub: int) -> bool:
        """Whether a fork is this one, asked for again; without a position it stands where it once was put."""
        if self.origin is None:
            return False
        return self.origin[0] is source and position in (None, self.origin[1]) and sub == self.origin[2]

    def own_offsets(self) -> set[str]:
        """Offsets that only this life and its forks may accept."""
        return {text for position, text in self.offsets.items() if position > self.fork_point}

"""The JSON text of what lies at the sources of fields, for all events of one version at once.

What a lens converts may depend on all digits of a number, so those that DuckDB spells anew are taken from the event
itself. What a lens puts together from several places is taken from promoted events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extract.raw import at_pointers, each
from headrace.extract.scalars import is_spelled_alike, may_be_rounded
from headrace.extract.texts import Column, Flags, Texts, valid
from headrace.schema.lens.ops import Wrap
from headrace.schema.lens.pullback import Constant, Either, Rebuild, Source, Stored
from headrace.schema.pointer import Pointer


class Taken(NamedTuple):
    """The JSON texts at each source, and the events of which they cannot be had."""

    texts: list[Column]
    odd: Flags


def at_sources(
    payloads: Column, sources: Sequence[Source], promote: Callable[[bytes], bytes], few: int, exact: Sequence[bool]
) -> Taken:
    """What lies at the sources in events of one version; ``promote`` brings an event to the newest.

    ``exact`` says of which sources all digits of a number are wanted, and not only those of the nearest double.
    """
    odd = np.zeros(len(payloads), np.bool_)
    stored = at_pointers(payloads, [place for source in sources for place in _pointers(source)], odd, few)
    rebuilt = [source.pointer for source in sources if isinstance(source, Rebuild)]
    newest = at_pointers(each(promote, payloads), rebuilt, odd, few) if rebuilt else {}
    events = _Events(payloads, stored, newest, odd)
    texts = [events.text(source, np.ones(len(payloads), np.bool_)) for source in sources]
    for number, (source, is_exact) in enumerate(zip(sources, exact, strict=True)):
        if is_exact:
            texts[number] = events.with_all_digits(source, texts[number])
    return Taken(texts, odd)


def unwrapped(source: Source) -> Source:
    """A source of the same values, where arrays are looked into anyway: one that is put around a value is left out."""
    match source:
        case Stored(pointer, conversions) if all(isinstance(op, Wrap) for op in conversions):
            return Stored(pointer)
        case Either(test, present, absent):
            return Either(test, unwrapped(present), unwrapped(absent))
    return source


def _pointers(source: Source) -> Iterator[Pointer]:
    match source:
        case Stored(pointer):
            yield pointer
        case Either(test, present, absent):
            yield test
            yield from _pointers(present)
            yield from _pointers(absent)


class _Events(NamedTuple):
    """Events, with what lies in them as they are stored and as they are now."""

    payloads: Column
    stored: Mapping[Pointer, Column]
    newest: Mapping[Pointer, Column]
    odd: Flags

    def text(self, source: Source, rows: Flags) -> Column:
        """What lies at a source; only some rows matter."""
        match source:
            case Stored(pointer, conversions):
                return self._converted(source, rows) if conversions else self.stored[pointer]
            case Rebuild(pointer=pointer):
                return self.newest[pointer]
            case Constant():
                return pa.repeat((source.evaluate(b"") or b"").decode(), len(self.payloads))
            case Either(test, present, absent):
                there = valid(self.stored[test])
                made = self.text(present, rows & there), self.text(absent, rows & ~there)
                return pc.if_else(pa.array(there), *made)
        return pa.nulls(len(self.payloads), pa.string())

    def with_all_digits(self, source: Source, texts: Column) -> Column:
        """The texts at a source; those that hold a number which DuckDB may have rounded come from the event itself."""
        here = valid(texts)
        may_differ = here.copy()
        may_differ[here] = may_be_rounded(Texts(texts.drop_null()))
        if not may_differ.any():
            return texts
        found = each(source.evaluate, self.payloads.filter(pa.array(may_differ)))
        self.odd[np.flatnonzero(may_differ)[~valid(found)]] = True
        return pc.replace_with_mask(texts, pa.array(may_differ), found)

    def _converted(self, source: Stored, rows: Flags) -> Column:
        found = self.stored[source.pointer]
        here = rows & valid(found)
        by_value, by_event = here.copy(), here.copy()
        by_value[here] = is_spelled_alike(Texts(found.filter(pa.array(here))))
        by_event &= ~by_value
        known = found.filter(pa.array(by_value)).dictionary_encode()
        values = each(Stored((), source.conversions).evaluate, known.dictionary).take(known.indices)
        made = pc.replace_with_mask(pa.nulls(len(found), pa.string()), pa.array(by_value), values)
        events = each(source.evaluate, self.payloads.filter(pa.array(by_event)))
        made = pc.replace_with_mask(made, pa.array(by_event), events)
        self.odd[here & ~valid(made)] = True
        return made

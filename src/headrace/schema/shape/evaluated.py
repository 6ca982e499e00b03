"""Which members a schema and the schemas it always applies have spoken of, for ``unevaluatedProperties``."""

from __future__ import annotations

from typing import NamedTuple

from headrace.schema.shape.model import Facts
from headrace.schema.shape.source import Source

_SOMETIMES = ("anyOf", "oneOf", "if", "not", "dependentSchemas", "dependencies")


class Evaluated(NamedTuple):
    """The names and patterns spoken of for sure; ``certain`` where there cannot be more."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    everything: bool = False
    certain: bool = True

    def __or__(self, other: object) -> Evaluated:
        assert isinstance(other, Evaluated)
        return Evaluated(
            self.names | other.names,
            self.patterns | other.patterns,
            self.everything or other.everything,
            self.certain and other.certain,
        )


def evaluated(source: Source, above: Facts = frozenset()) -> Evaluated:
    """What the schema speaks of apart from its own ``unevaluatedProperties``."""
    keywords, fact = source.keywords(), source.fact
    if fact in above:
        return Evaluated(certain=False)
    found = Evaluated(
        frozenset(keywords.get("properties", ())),
        frozenset(keywords.get("patternProperties", ())),
        "additionalProperties" in keywords or (bool(above) and "unevaluatedProperties" in keywords),
        not any(name in keywords for name in _SOMETIMES),
    )
    for schema in keywords.get("allOf", ()):
        found |= evaluated(source.at(schema), above | {fact})
    if "$ref" in keywords:
        target = source.root.resolve(keywords["$ref"])
        found |= evaluated(target, above | {fact}) if target else Evaluated(certain=False)
    return found

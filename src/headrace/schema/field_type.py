"""The types of the fields of events and rows, which descriptors declare and expressions compute with."""

from __future__ import annotations

from typing import Literal, TypeAlias

Type: TypeAlias = Literal["str", "f64", "i64", "bool", "bytes", "datetime"]

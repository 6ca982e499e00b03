from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.format.decoded_columns import keep_freed_pages


@pytest.fixture(autouse=True)
def _default_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    yield
    pa.set_memory_pool(before)


def test_pages_are_kept_where_arrow_can() -> None:
    keep_freed_pages()
    offered = "jemalloc" in pa.supported_memory_backends()
    assert pa.default_memory_pool().backend_name == ("jemalloc" if offered else "system")


def test_a_pool_that_someone_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "system")
    keep_freed_pages()
    assert pa.default_memory_pool().backend_name == "system"

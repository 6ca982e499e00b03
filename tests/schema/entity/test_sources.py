"""Names of sources: which text is one, and what a request means that gives a name, an id or both."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadRequest, SourceMismatch
from headrace.schema.entity import request
from headrace.schema.entity.sources import SourceName, identify, name_of

_PATTERN = SourceName.__metadata__[0].extra_json_schema["pattern"]  # type: ignore[attr-defined]
texts = (
    st.text(max_size=12)
    | st.text("crm- \t\x00é", max_size=8)
    | st.sampled_from(["src_", "src_a", "e\u0301", "x" * 257])
)


@given(texts)
def test_a_name_is_visible_text_and_equal_names_are_equal_text(text: str) -> None:
    is_name = (
        1 <= len(text) <= 256
        and not any(unicodedata.category(letter) == "Cc" and letter < "\x80" for letter in text)
        and not text[0].isspace()
        and not text[-1].isspace()
        and not text.startswith("src_")
        and unicodedata.normalize("NFC", text) == text
    )
    if is_name:
        assert identify(text, None) == identify(text, text) == name_of(text) == text
        assert re.search(_PATTERN, text)
    else:
        with pytest.raises(BadRequest) as refusal:
            identify(text, None)
        assert refusal.value.facts["field"] == "source"


def test_a_name_and_an_id_are_the_same_source_or_refused() -> None:
    assert identify(None, None) is None
    assert identify(None, "9f0c") == "9f0c"
    with pytest.raises(SourceMismatch) as refusal:
        identify("crm-a", "9f0c", "entity 3, _meta: ")
    assert refusal.value.code == "source_mismatch" and refusal.value.facts["field"] == "source"
    assert refusal.value.message.startswith("entity 3, _meta: 'crm-a'")


def test_a_source_without_a_name_has_an_id_of_its_content() -> None:
    assert name_of(None) is None
    assert name_of(request.address_of_contents([{"entity_type": "contact"}], "local")) is None


@pytest.mark.parametrize(
    "named", [b'"source": "crm-a"', b'"source_id": "crm-a"', b'"source": "crm-a", "source_id": "crm-a"']
)
def test_a_request_is_the_same_however_it_gives_its_source(named: bytes) -> None:
    parsed = request.read_store_request(b'{"entities": [{"entity_type": "contact"}], ' + named + b"}", "local")
    assert parsed.source_id == "crm-a"
    same = request.read_store_request(b'{"source_id": "crm-a", "entities": [{"entity_type": "contact"}]}', "local")
    assert parsed == same


def test_the_digest_of_a_request_without_a_source_is_that_of_earlier_versions() -> None:
    """Requests that were stored before sources had names are found again by their idempotency keys."""
    parsed = request.read_store_request(b'{"entities": [{"entity_type": "contact", "name": "Ada"}]}', "local")
    assert parsed.digest.hex() == "d13c294b6c51ce87f6e52073cdde2590d0edc52f805797f317ea37bab198b93f"
    assert (
        request.read_store_request(
            b'{"entities": [{"entity_type": "contact", "name": "Ada"}], "source": null}', "local"
        ).digest
        == parsed.digest
    )

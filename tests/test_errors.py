from __future__ import annotations

import pickle

import pytest

from headrace import errors
from headrace.errors import HeadraceError, every_error

OWN = [kind for kind in every_error() if kind.__module__ == errors.__name__]
KINDS = sorted(OWN, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_code_a_status_and_says_what_it_means(kind: type[HeadraceError]) -> None:
    assert kind.code in (kind.code.lower(), kind.code.upper()) and kind.code.replace("_", "").isalpha()
    assert 400 <= kind.status < 600
    assert kind.__doc__


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("missing_field", 400),
        ("unknown_field", 400),
        ("schema_mismatch", 400),
        ("feature_not_in_table", 400),
        ("key_shape_mismatch", 400),
        ("batch_too_large", 400),
        ("unknown_event", 404),
        ("unknown_table", 404),
        ("registration_conflict", 409),
        ("managed_stream", 409),
        ("unsupported_media_type", 415),
    ],
)
def test_what_clients_of_features_know_stays_as_it_is(code: str, status: int) -> None:
    assert [kind.status for kind in KINDS if kind.code == code] == [status]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_crosses_processes_with_its_facts(kind: type[HeadraceError]) -> None:
    error = kind("a sentence", stream="s", n=3)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.message == error.message
    assert again.facts == error.facts
    assert again.body() == error.body()


def test_the_body_has_the_code_the_sentence_and_the_facts() -> None:
    error = errors.BadRequest("limit is too large", field="limit")
    assert error.body() == {"error": {"code": "bad_request", "message": "limit is too large", "field": "limit"}}


def test_facts_that_clients_act_on_are_headers_too() -> None:
    gap = errors.ProducerGap("missing", expected_seq=0, received_seq=5)
    assert gap.headers() == {"producer-expected-seq": "0", "producer-received-seq": "5"}
    closed = errors.StreamClosed("closed", next_offset=None)
    assert closed.headers() == {"stream-closed": "true"}


@pytest.mark.parametrize("kind", [errors.Overloaded, errors.Unavailable])
def test_what_may_be_tried_again_says_when(kind: type[HeadraceError]) -> None:
    assert int(kind("busy").headers()["retry-after"]) > 0
    assert kind("busy", retry_after=9).headers()["retry-after"] == "9"


def test_the_tree_in_the_docstring_names_every_error_of_the_module() -> None:
    missing = {kind.__name__ for kind in KINDS if kind.__name__ not in (errors.__doc__ or "")}
    assert missing <= {"UriTooLong", "HeadersTooLarge"}  # they stand in the line of TooLarge

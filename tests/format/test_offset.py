from __future__ import annotations

import pytest

from headrace.format.offset import START, Offset, decode, encode


def test_the_first_entry_of_epoch_0_has_the_documented_offset() -> None:
    assert encode(0, 1) == "00000000000000000004000000"


def test_the_start_is_all_zero_in_every_epoch() -> None:
    assert encode(0, 0) == encode(7, 0) == START
    assert decode(START) == Offset(0, 0)


def test_the_largest_offset_fills_128_bits() -> None:
    text = encode(2**32 - 1, 2**64 - 1)
    assert text == "7ZZZZZZZZZZZZZZZZZZW000000"
    assert decode(text) == Offset(2**32 - 1, 2**64 - 1)


def test_letters_that_are_easily_confused_are_read_as_crockford_says() -> None:
    assert decode("OoOoOoOoOoOoOoOoOoO4OOOOOO") == decode(encode(0, 1))
    assert decode(encode(0, 1 << 62).replace("1", "l")) == Offset(0, 1 << 62)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "26 characters"),
        ("-1", "26 characters"),
        ("0" * 25, "26 characters"),
        ("0" * 25 + "U", "Crockford"),
        ("0" * 25 + "é", "Crockford"),
        (" " + "0" * 25, "Crockford"),
        ("+" + "0" * 25, "Crockford"),
        ("0_" + "0" * 24, "Crockford"),
        ("8" + "0" * 25, "128 bits"),
        ("0" * 25 + "1", "32 bits"),
        ("00000040000000000000000000", "all-zero"),
    ],
)
def test_what_was_never_minted_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(text)

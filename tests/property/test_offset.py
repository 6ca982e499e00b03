"""Laws of offsets, held against a rendering that writes the bits out one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.format.offset import START, Offset, decode, encode

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
epochs = st.integers(0, 2**32 - 1)
positions = st.integers(1, 2**64 - 1)
minted = st.builds(encode, epochs, positions) | st.just(START)


def written_out(epoch: int, position: int) -> str:
    bits = f"{epoch:032b}{position:064b}{0:032b}".zfill(130)
    return "".join(ALPHABET[int(bits[at : at + 5], 2)] for at in range(0, 130, 5))


@given(epochs, positions)
def test_an_offset_is_the_bits_of_its_epoch_and_position_written_out(epoch: int, position: int) -> None:
    assert encode(epoch, position) == written_out(epoch, position)


@given(epochs, positions)
def test_what_was_encoded_is_decoded(epoch: int, position: int) -> None:
    assert decode(encode(epoch, position)) == Offset(epoch, position)


@given(st.lists(st.tuples(epochs, positions), min_size=2, max_size=20))
def test_texts_sort_like_epoch_and_position(places: list[tuple[int, int]]) -> None:
    texts = {place: encode(*place) for place in places}
    assert sorted(places) == sorted(places, key=texts.__getitem__)
    assert len(set(texts.values())) == len(set(places))


@given(epochs)
def test_the_start_is_the_same_in_every_epoch_and_sorts_first(epoch: int) -> None:
    assert encode(epoch, 0) == START < encode(0, 1)


@given(minted, st.randoms(use_true_random=False))
def test_letter_case_does_not_matter(text: str, random: object) -> None:
    mixed = "".join(random.choice((c.lower(), c)) for c in text)  # type: ignore[attr-defined]
    assert decode(mixed) == decode(text)


@given(
    st.text(max_size=30)
    | st.text(ALPHABET + ALPHABET.lower() + "OILoilUu-_ ", min_size=26, max_size=26)
    | st.text(ALPHABET, min_size=20, max_size=20).map(lambda head: head + "000000")
    | st.tuples(minted, st.integers(0, 25), st.characters()).map(lambda t: t[0][: t[1]] + t[2] + t[0][t[1] + 1 :])
    | st.tuples(minted, st.integers(0, 26), st.text(max_size=2)).map(lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :])
)
def test_whatever_is_accepted_is_the_text_of_an_offset_that_was_minted(text: str) -> None:
    try:
        place = decode(text)
    except ValueError:
        assert text not in {START, written_out(0, 1)}
        return
    canonical = text.upper().replace("O", "0").replace("I", "1").replace("L", "1")
    assert canonical == (written_out(*place) if place.position else START)


@given(epochs.filter(bool))
def test_an_epoch_without_a_position_was_never_minted(epoch: int) -> None:
    with pytest.raises(ValueError, match="all-zero"):
        decode(written_out(epoch, 0))


@given(epochs, positions, st.integers(1, 2**32 - 1))
def test_an_offset_inside_an_entry_was_never_minted(epoch: int, position: int, inside: int) -> None:
    bits = f"{epoch:032b}{position:064b}{inside:032b}".zfill(130)
    text = "".join(ALPHABET[int(bits[at : at + 5], 2)] for at in range(0, 130, 5))
    with pytest.raises(ValueError, match="32 bits"):
        decode(text)

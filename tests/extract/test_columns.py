from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from extract.expected import assert_equal, definition, documents_of, events, field
from headrace.deadline import Cancelled, Deadline
from headrace.extract.columns import Extractor
from headrace.query.definition import Definition
from headrace.query.values import lower, words
from schema.lens.wire import lens_of

#: One way opens events one by one, the other by DuckDB.
ways = pytest.mark.parametrize("few", [100_000, 0])


def extracted(made: Definition, payloads: list[str], versions: list[int] | int = 1, few: int = 0) -> pa.Table:
    return Extractor(made, few=few).columns(events(payloads, versions))


def cells(kind: str, payloads: list[str], few: int = 0, **more: Any) -> list[Any]:
    """The column of a field that is bound to /x."""
    table = extracted(definition({"x": field(kind, ["x"], **more)}), payloads, few=few)
    assert not any(table.column("odd").to_pylist())
    return table.column("w.x" if kind == "text" else "f.x").to_pylist()  # type: ignore[no-any-return]


def test_a_row_keeps_the_seq_and_the_key_of_its_event() -> None:
    table = extracted(definition({}), ["{}"] * 4)
    assert table.column("seq").to_pylist() == [7, 8, 9, 10]
    assert table.column("key").to_pylist() == ["k0", None, None, "k3"]
    assert table.column("odd").to_pylist() == [False] * 4


@ways
@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("keyword", ['"A b"', "5", "null", '"\\u00e9\\n"'], ["A b", None, None, "é\n"]),
        ("integer", ["5", "5.0", '"503"', "5.5", "true"], [5, 5, 503, None, None]),
        ("float", ["5", "-0.0", '".5"', "1e400", "[]"], [5.0, 0.0, 0.5, None, None]),
        ("date", ["5", '"1970-01-02"', '"1970-01-01T00:00:01Z"', '""'], [5, 86_400_000, 1000, None]),
        ("bool", ["true", '"False"', "0", "false"], [True, False, None, False]),
        ("text", ['"Hello, World_1!"', '"..."', '""', "1"], [" hello world 1 ", " ", " ", None]),
    ],
)
def test_a_value_is_typed_by_the_kind_of_its_field(kind: str, values: list[str], expected: list[Any], few: int) -> None:
    assert cells(kind, ["{}", *(f'{{"x":{value}}}' for value in values)], few) == [None, *expected]


@ways
def test_a_column_has_lists_where_any_event_has_several_values(few: int) -> None:
    payloads = ['{"x":[1,[2,[3,[4,[5,[6]]]]],7]}', '{"x":8}', '{"x":[]}', '{"x":[null,{"a":1},"x",["9"]]}']
    assert cells("integer", payloads, few) == [[1, 2, 3, 4, 5, 6, 7], [8], None, [9]]
    assert cells("integer", payloads[1:], few) == [8, None, 9]


@ways
def test_text_that_may_be_looked_for_by_its_parts_has_a_column_in_lower_case(few: int) -> None:
    payloads = ['{"x":["Été, ΣΑΣ","B"]}', '{"x":"\\"C\\""}']
    made = definition({"x": field("text", ["x"])}, containsDefaultFields=["x"])
    table = extracted(made, payloads, few=few)
    assert table.column("f.x").to_pylist() == [["été, σασ", "b"], ['"c"']]
    assert table.column("w.x").to_pylist() == [[" été σασ ", " b "], [" c "]]


@ways
@pytest.mark.parametrize("value", ["9223372036854775808", '"-9223372036854775809"', "[1, 1e22]"])
@pytest.mark.parametrize("kind", ["integer", "date"])
def test_a_number_beyond_int64_makes_its_row_odd(kind: str, value: str, few: int) -> None:
    fields = {"x": field(kind, ["x"]), "y": field("keyword", ["y"]), "t": field("text", ["y"], contains=True)}
    made = definition(fields, rollups=SUMMING)
    payloads = [f'{{"x":{value},"y":["a","b"],"n":1}}', '{"x":4,"y":"c","n":1}']
    table = extracted(made, payloads, few=few)
    assert table.column("odd").to_pylist() == [True, False]
    assert table.column("key").to_pylist() == ["k0", None]
    for name, expected in [("f.x", 4), ("f.y", "c"), ("w.t", " c "), ("f.t", "c"), ("p.r:m.count", 1)]:
        assert table.column(name).to_pylist() == [None, expected]


SUMMING = {
    "r": {
        "intervals": ["1m"],
        "measures": {
            "m": {
                "kind": "summary_parts",
                **{f"{part}JsonPointer": "/n" for part in ("count", "sum", "min", "max")},
                "histogramJsonPointer": "/h",
            }
        },
    }
}


@ways
def test_the_parts_of_a_summary_have_columns_of_their_own(few: int) -> None:
    made = definition({}, rollups=SUMMING)
    counts = ["2", "0", "-1", "1.5", '"2"', "[1]", "9007199254740992", "9007199254740994", "1e400"]
    payloads = [f'{{"n":{count},"h":{{"4":1,"5":2,"x":1}}}}' for count in counts] + [
        '{"n":1,"h":7}',
        '{"h":{"4":1}}',
        "[]",
    ]
    table = extracted(made, payloads, few=few)
    assert_equal(table, made, documents_of(payloads))
    assert table.column("p.r:m.count").to_pylist()[:6] == [2, 0, None, None, None, None]
    assert table.column("p.r:m.histogram").to_pylist()[:3] == [[(2, 3)], None, None]


def test_a_summary_that_a_lens_puts_into_an_array_is_none() -> None:
    made = definition({}, [lens_of(1, [{"op": "wrap", "path": "/n", "mode": "singleton"}])], rollups=SUMMING)
    assert extracted(made, ['{"n":1}'] * 2, [1, 2]).column("p.r:m.count").to_pylist() == [None, 1]


@ways
@pytest.mark.parametrize("payload", ['{"x":"\\ud800"}', '{"x":"\\uDC00 and more text","y":1}'])
def test_an_event_with_half_a_surrogate_pair_is_odd(payload: str, few: int) -> None:
    table = extracted(definition({"x": field("keyword", ["x"])}), ['{"x":"a"}', payload, '{"x":"b"}'], few=few)
    assert table.column("odd").to_pylist() == [False, True, False]
    assert table.column("f.x").to_pylist() == ["a", None, "b"]


@ways
def test_deep_nesting_is_read_as_far_as_it_holds_no_value(few: int) -> None:
    deep = "[" * 20_000 + "1" + "]" * 20_000
    table = extracted(definition({"x": field("integer", ["x"])}), [f'{{"x":5,"y":{deep}}}', f'{{"x":{deep}}}'], few=few)
    assert table.column("odd").to_pylist() == [False, True]
    assert table.column("f.x").to_pylist() == [5, None]


@ways
@pytest.mark.parametrize(("count", "odd"), [(2_048, False), (2_049, True)])
def test_a_text_field_with_more_values_than_positions_can_tell_makes_its_row_odd(
    count: int, odd: bool, few: int
) -> None:
    fields = {"x": field("text", ["x"]), "k": field("keyword", ["x"])}
    table = extracted(definition(fields), [json.dumps({"x": ["a"] * count})], few=few)
    assert table.column("odd").to_pylist() == [odd]
    assert table.column("w.x").null_count == odd
    assert table.column("f.k").null_count == odd


@ways
@pytest.mark.parametrize(("count", "odd"), [(2**19, False), (2**19 + 1, True)])
def test_a_text_field_with_more_words_than_positions_can_tell_makes_its_row_odd(
    count: int, odd: bool, few: int
) -> None:
    payload = f'{{"x":["{"a " * count}","{"é " * 2**19}"]}}'
    table = extracted(definition({"x": field("text", ["x"])}), ['{"x":"a"}', payload], few=few)
    assert table.column("odd").to_pylist() == [False, odd]


def test_events_before_a_break_are_odd() -> None:
    made = definition({"x": field("integer", ["x"], 3)}, [lens_of(1, []), None])
    table = extracted(made, ['{"x":1}'] * 4, [1, 2, 3, 4])
    assert table.column("odd").to_pylist() == [True, True, False, True]
    assert table.column("f.x").to_pylist() == [None, None, 1, None]


RENAMED = [{"op": "rename", "from": "/code", "to": "/status"}]
LEVELS = {"map": {"W": "warn", "1": "one"}, "default": "other"}
CONVERTED = [
    {"op": "convert", "path": "/x", "fromType": "string", "toType": "string", "forward": LEVELS, "backward": LEVELS}
]


@ways
def test_a_field_that_a_lens_moved_has_its_values_in_all_versions(few: int) -> None:
    made = definition({"x": field("integer", ["status"], 2)}, [lens_of(1, RENAMED)])
    table = extracted(made, ['{"code":1}', '{"status":2}', '{"code":3}', '{"status":4}'], [1, 2, 1, 2], few)
    assert table.column("f.x").to_pylist() == [1, 2, 3, 4]


@ways
def test_a_value_that_a_lens_converts_is_converted(few: int) -> None:
    made = definition({"x": field("keyword", ["x"])}, [lens_of(1, CONVERTED)])
    table = extracted(made, ['{"x":"W"}', '{"x":"W"}', '{"x":"V"}', '{"x":"W"}'], [1, 1, 1, 2], few)
    assert table.column("f.x").to_pylist() == ["warn", "warn", "other", "W"]


@ways
def test_a_conversion_sees_all_digits_of_a_number(few: int) -> None:
    spelled = {"builtin": "int_to_string"}
    op = {"op": "convert", "path": "/x", "fromType": "integer", "toType": "string", "forward": spelled}
    lens = lens_of(1, [{**op, "backward": {"builtin": "string_to_int"}}])
    made = definition({"x": field("keyword", ["x"])}, [lens])
    payloads = ['{"x":9007199254740993.0}', '{"x":1e2}', '{"x":12345678901234567890123}']
    expected = ["9007199254740993", "100", "12345678901234567890123"]
    assert extracted(made, payloads, few=few).column("f.x").to_pylist() == expected


@ways
@pytest.mark.parametrize("ops", [CONVERTED, [{"op": "in", "path": "/o", "ops": RENAMED}]])
def test_an_event_that_a_lens_cannot_carry_is_odd(ops: list[dict[str, Any]], few: int) -> None:
    fields = {"x": field("keyword", ["x"]), "o": field("integer", ["o"])}
    made = definition(fields, [lens_of(1, ops)])
    payloads = ['{"x":"W","o":{"code":1}}', '{"x":5,"o":{}}']
    assert extracted(made, payloads, few=few).column("odd").to_pylist() == [False, True]


def test_no_events_make_no_rows() -> None:
    made = definition({"x": field("integer", ["x"]), "t": field("text", ["x"], contains=True)}, rollups=SUMMING)
    for few in (0, 1):
        assert_equal(extracted(made, [], few=few), made, [])


def test_a_record_batch_and_a_sliced_table_are_read_alike() -> None:
    table = events([f'{{"x":{number}}}' for number in range(10)])
    made = Extractor(definition({"x": field("integer", ["x"])}), few=0)
    assert made.columns(table.to_batches()[0]).column("f.x").to_pylist() == [*range(10)]
    sliced = pa.concat_tables([table.slice(2, 3), table.slice(7, 2)])
    assert made.columns(sliced).column("f.x").to_pylist() == [2, 3, 4, 7, 8]


def test_lists_in_one_part_of_many_events_make_lists_of_all() -> None:
    payloads = [f'{{"x":{number}}}' for number in range(70_000)]
    payloads[69_999] = '{"x":[1,2]}'
    column = extracted(definition({"x": field("integer", ["x"])}), payloads).column("f.x")
    assert column.type == pa.list_(pa.int64())
    assert column.combine_chunks().flatten().to_pylist() == [*range(69_999), 1, 2]
    assert column[69_999].as_py() == [1, 2]


def test_large_events_are_read_in_parts() -> None:
    payloads = [f'{{"x":{number},"y":"{"z" * 1_000_000}"}}' for number in range(70)]
    column = extracted(definition({"x": field("integer", ["x"])}), payloads).column("f.x")
    assert column.to_pylist() == [*range(70)]


def test_an_extractor_may_be_used_from_several_threads() -> None:
    made = Extractor(definition({"x": field("integer", ["x"]), "t": field("text", ["t"])}), few=0)
    batches = [
        events([f'{{"x":{number},"t":"Word {number} é{part}"}}' for number in range(2_000)]) for part in range(4)
    ]
    expected = [made.columns(batch) for batch in batches]
    with ThreadPoolExecutor(4) as threads:
        for table, again in zip(expected * 3, threads.map(made.columns, batches * 3), strict=True):
            assert again.equals(table)


def test_every_character_is_folded_as_the_reference_folds_it() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    texts = ["-".join(characters[start : start + 512]) for start in range(0, len(characters), 512)]
    made = definition(
        {"t": field("text", ["t"], contains=True), "k": field("keyword", ["t"], normalizer="lowercase_v1")}
    )
    table = extracted(made, [json.dumps({"t": text}, ensure_ascii=False) for text in texts])
    assert table.column("w.t").to_pylist() == [f" {' '.join(words(text))} " if words(text) else " " for text in texts]
    assert table.column("f.t").to_pylist() == table.column("f.k").to_pylist() == [lower(text) for text in texts]


def test_every_spelling_of_a_moment_is_read_as_the_reference_reads_it() -> None:
    dates = [
        "2026-03-25",
        "2024-02-29",
        "2023-02-29",
        "1900-02-29",
        "2000-02-29",
        "0001-01-01",
        "9999-12-31",
        "0000-01-01",
    ]
    dates += ["1969-12-31", "2026-00-10", "2026-13-10", "2026-04-31", "2026-04-00", "2026/04/01", "2o26-04-01"]
    times = [
        "T10:11:12",
        "t23:59:59",
        " 00:00:00",
        "_10:11:12",
        "T24:00:00",
        "T10:60:00",
        "T10:11:60",
        "T10:11",
        "T1o:11:12",
    ]
    fractions = ["", ".", ".1", ".12", ".123", ".1239999", ".123456789", ".1234567890", ".12x", ",123"]
    zones = ["", "Z", "z", "+02:00", "-05:30", "+23:59", "+24:00", "+23:60", "+0200", "+2:00", "-00:00", "+aa:00", "ZZ"]
    payloads = [f'{{"x":"{"".join(parts)}"}}' for parts in product(dates, times, fractions, zones)]
    made = definition({"x": field("date", ["x"])})
    assert_equal(extracted(made, payloads), made, documents_of(payloads))


@pytest.mark.parametrize("fraction", ["", ".", ".1", ".123", ".123456789", ".1234567890", ".12x", "x123"])
@pytest.mark.parametrize("zone", ["", "Z", "-05:30", "+24:00"])
def test_moments_of_one_spelling_are_read_as_the_reference_reads_them(fraction: str, zone: str) -> None:
    payloads = [f'{{"x":"2026-{month:02}-29T10:11:12{fraction}{zone}"}}' for month in range(14)]
    made = definition({"x": field("date", ["x"])})
    assert_equal(extracted(made, payloads), made, documents_of(payloads))


def test_extraction_ends_when_nobody_waits_for_it() -> None:
    deadline, made = Deadline(600), Extractor(definition({"x": field("integer", ["x"])}))
    assert made.columns(events(['{"x": 1}']), deadline).num_rows == 1
    deadline.cancel()
    with pytest.raises(Cancelled):
        made.columns(events(['{"x": 1}']), deadline)

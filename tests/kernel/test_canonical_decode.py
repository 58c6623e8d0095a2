import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accord.kernel.canonical import MAX_BYTES, CanonicalError, decode, encode

fragments = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "\\",
        '"a"',
        '"b"',
        "1",
        "-0",
        "1.0",
        "1e5",
        "1E400",
        "-",
        "true",
        "null",
        "nul",
        " ",
        "\n",
        "\\u",
        "\\ud83d",
        "\\ude00",
        "0",
        "9007199254740993",
        "é",
        "1e",
        "\x00",
        "\ufeff",
        "\x7f",
        "NaN",
        '{"a":1}',
        '{"a":1,"a":2}',
        "[]",
        "//",
        "'",
    ]
)


@given(st.lists(fragments, max_size=12).map("".join))
@example('{"a":1,"b":{"c":1,"c":1}}')
@settings(max_examples=2000)
def test_every_text_is_read_as_the_standard_library_reads_it_or_refused_with_a_position(
    text: str,
) -> None:
    try:
        value = decode(text)
    except CanonicalError as error:
        assert error.position is not None
        assert 0 <= error.position <= len(text.encode())
    else:
        assert value == json.loads(text)
        assert decode(text.encode()) == value
        assert decode(encode(value)) == value


names = st.text("ab \t", max_size=3)
documents = st.recursive(
    st.none() | st.integers(-9, 9) | st.floats(-9, 9) | names,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(st.tuples(names, inner), max_size=4).map(dict)
    ),
)


@given(documents, st.sampled_from([None, 0, 2, "\t"]), st.integers(0, 30))
@settings(max_examples=500)
def test_white_space_hides_no_duplicate_member(value: Any, indent: Any, at: int) -> None:
    text = json.dumps(value, indent=indent, separators=(" , ", " : "))
    assert decode(text) == value
    # The same text with some member written twice in a row.
    members = list(re.finditer(r'"[^"]*" : (?:null|-?[0-9.]+)', text))
    if members:
        member = members[at % len(members)]
        twice = f"{text[: member.end()]} , {member.group()}{text[member.end() :]}"
        with pytest.raises(CanonicalError, match="occurs twice"):
            decode(twice)


@given(st.binary(max_size=40))
def test_no_bytes_make_the_parser_fail_otherwise(data: bytes) -> None:
    try:
        decode(data)
    except CanonicalError as error:
        assert error.position is not None


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        (b"", 0, "ends too soon"),
        (b'{"a":1,"a":2}', 7, "'a' occurs twice"),
        (b'{"a":1,"\\u0061":2}', 7, "'a' occurs twice"),
        (b'{"x": {"a":1}, "y":{"b":1, "b":1}}', 27, "'b' occurs twice"),
        (b"[NaN]", 1, "a value is missing"),
        (b"[Infinity]", 1, "a value is missing"),
        (b"-Infinity", 0, "a number that JSON does not know"),
        (b"[1e400]", 1, "beyond the range of a double"),
        (b'["\\ud800"]', 1, "surrogate"),
        (b'["\xed\xa0\x80"]', 2, "not UTF-8"),
        (b'"\xff"', 1, "not UTF-8"),
        (b"\xef\xbb\xbf1", 0, "byte order mark"),
        (b"1 2", 2, "after the end"),
        (b"[1,]", 3, "a value is missing"),
        (b"[1 2]", 3, "a comma or ]"),
        (b'{"a" 1}', 5, "a colon"),
        (b"{a:1}", 1, "member name"),
        (b"01", 1, "after the end"),
        (b'"\n"', 0, "control character"),
        (b"[9007199254740993]", 1, "cannot hold exactly"),
        (b"[-9007199254740993]", 1, "cannot hold exactly"),
        (b"12345678901234567890", 0, "cannot hold exactly"),
        (b"10000000000000000000000", 0, "cannot hold exactly"),
        (b"[" * 129, 128, "nested deeper"),
        (b"[" * 1_000_000, 128, "nested deeper"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, 5 * 128, "nested deeper"),
        (b" [ " * 129 + b" ] " * 129, 3 * 128 + 1, "nested deeper"),
    ],
)
def test_what_readers_could_disagree_about_is_refused_at_its_position(
    text: bytes, position: int, what: str
) -> None:
    with pytest.raises(CanonicalError, match=what) as caught:
        decode(text)
    assert caught.value.position == position
    assert f"byte {position} " in str(caught.value)


def test_an_error_names_line_and_column() -> None:
    with pytest.raises(CanonicalError, match=r"byte 13 \(line 2, column 4\)"):
        decode('{"ä": 1,\n   x}')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740991", 9007199254740991),
        ("9007199254740992", 9007199254740992.0),
        ("-9007199254740992", -9007199254740992.0),
        ("100000000000000000000", 1e20),
        ("[1, 2]", [1, 2]),
        ("\t1\r\n", 1),
        ('"\\ud83d\\ude00"', "😀"),
        ("1E2", 100.0),
    ],
)
def test_what_every_reader_agrees_on_is_read(text: str, value: Any) -> None:
    read = decode(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["-0", "[-0]", "-0.0"])
def test_minus_zero_keeps_its_sign(text: str) -> None:
    read = decode(text)
    assert repr(read[0] if isinstance(read, list) else read) == "-0.0"


def test_half_a_surrogate_pair_in_a_str_is_refused_with_its_position() -> None:
    with pytest.raises(CanonicalError, match="surrogate") as caught:
        decode('"ä\ud800"')
    assert caught.value.position == 3


def test_a_text_above_the_limit_is_refused_before_it_is_read() -> None:
    assert decode(b'"' + b"x" * 8 + b'"', max_bytes=10) == "x" * 8
    with pytest.raises(CanonicalError, match="11 bytes where at most 10 are read"):
        decode(b'"' + b"x" * 9 + b'"', max_bytes=10)
    with pytest.raises(CanonicalError, match="at most"):
        decode(b"[" * (MAX_BYTES + 1))
    with pytest.raises(CanonicalError, match="at most"):
        decode("ä" * 6, max_bytes=11)


def test_a_large_shallow_document_with_many_brackets_is_read() -> None:
    value: list[Any] = [{"a": [[], {}]} for _ in range(500)]
    assert decode(json.dumps(value)) == value
    assert decode(encode(value)) == value

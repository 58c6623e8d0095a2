import math
import struct
import threading
from collections import OrderedDict
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accord.kernel.canonical import MAX_DEPTH, CanonicalError, decode, encode, encode_reference

# Doubles of every size and shape: whole ones, huge ones and minus zero are what spellings part on.
doubles = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**23), 10**23).map(float),
    st.sampled_from([0.0, -0.0, 1e15, 1e16, 1e20, 1e21, 1e22, 5e-324, 1e-6, 1e-7, 203.0, -1.0]),
)
integers = st.one_of(
    st.integers(-(2**53) + 1, 2**53 - 1), st.integers(0, 2000).map(lambda n: 2**53 * 2 * n)
)
# Characters on both sides of U+FFFF sort differently as UTF-16; escapes and quotes hide strings.
texts = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('"\\.0,:e😀\uffee'))
)
values = st.recursive(
    st.none() | st.booleans() | integers | doubles | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=30,
)


@given(values)
@example({"\ufb33": 1, "\U0001f600": 2, "a": -0.0})
@example([203, 203.0, "1.0,2.0", '"1.0,', 1e300, -0.5])
@example({"null": None, "a": [1.0, "\\"], "1.0": "\\1.0,"})
@settings(max_examples=500)
def test_what_is_encoded_decodes_to_an_equal_value(value: Any) -> None:
    assert decode(encode(value)) == value


@given(values)
@settings(max_examples=500)
def test_the_fast_encoder_writes_what_the_reference_writes(value: Any) -> None:
    assert encode(value) == encode_reference(value)


@given(st.lists(st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack(">d", raw)[0])))
def test_any_bit_pattern_of_a_double_is_spelled_as_by_the_reference_or_refused(
    numbers: list[float],
) -> None:
    if all(map(math.isfinite, numbers)):
        assert encode(numbers) == encode_reference(numbers)
    else:
        with pytest.raises(CanonicalError, match="not a JSON number"):
            encode(numbers)


@given(st.lists(st.integers(0, 2**53 - 1), min_size=200, max_size=400))
@settings(max_examples=50)
def test_integers_whose_bytes_look_like_doubles_change_nothing(numbers: list[int]) -> None:
    value = {"numbers": numbers, "text": "1.0, 2.0,", "null": None}
    assert encode(value) == encode_reference(value)


@given(values)
def test_encoding_what_was_decoded_is_a_fixed_point(value: Any) -> None:
    text = encode(value)
    assert encode(decode(text)) == text


@pytest.mark.parametrize(
    ("value", "where", "what"),
    [
        ({"a": [1, math.nan]}, "/a/1", "nan"),
        ({"a": math.inf, "b": None}, "/a", "inf"),
        ([-math.inf], "/0", "-inf"),
        ({"x": 2**53 + 1}, "/x", "cannot hold exactly"),
        ([10**400], "/0", "cannot hold exactly"),
        ({"a/b": "\ud800"}, "/a~1b", "surrogate"),
        ({"\udfff": 1}, "the value itself", "surrogate"),
        ({"a": {1: 2}}, "/a", "not text"),
        ([b"bytes"], "/0", "no JSON form"),
        ({"s": {1, 2}}, "/s", "no JSON form"),
        (object(), "the value itself", "no JSON form"),
    ],
)
def test_a_value_that_json_cannot_carry_is_refused_with_its_place(
    value: object, where: str, what: str
) -> None:
    with pytest.raises(CanonicalError, match=what) as caught:
        encode(value)
    assert caught.value.where == where


class Level(IntEnum):
    LOW = 1


class Colour(StrEnum):
    RED = "red"


def test_subclasses_and_near_relatives_are_written_as_what_they_are() -> None:
    identity = UUID(int=7)
    value = OrderedDict(b=Level.LOW, a=(Colour.RED, np.float64(2.0), np.float64(0.1), identity))
    assert encode(value) == f'{{"a":["red",2,0.1,"{identity}"],"b":1}}'.encode()
    assert encode(value) == encode_reference(value)


def nested(depth: int, leaf: object) -> object:
    for level in range(depth):
        leaf = [leaf, 1] if level % 2 else {"k": leaf}
    return leaf


@pytest.mark.parametrize("padding", ["", "x" * 5000])
def test_the_depth_limit_is_the_same_for_short_and_long_values(padding: str) -> None:
    deepest = nested(MAX_DEPTH, padding)
    assert decode(encode(deepest)) == deepest
    with pytest.raises(CanonicalError, match="nested deeper"):
        encode(nested(MAX_DEPTH + 1, padding))


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(CanonicalError, match="nested deeper"):
        encode(value)


def test_many_threads_encode_deep_values_at_once() -> None:
    value = nested(MAX_DEPTH, "x" * 2000)
    expected = encode_reference(value)
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.extend(encode(value) for _ in range(50)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 400

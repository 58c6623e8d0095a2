"""Lines over messages: however they are cut, they come out whole."""

from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules import LineReader, cut_line

lines = st.lists(st.text(st.sampled_from("ab é🚀"), max_size=12).map(str.encode), max_size=6)


@given(lines, st.lists(st.integers(1, 9), min_size=1))
def test_however_lines_are_cut_they_are_read_whole(sent: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in sent)
    reader, read = LineReader(), []
    position = index = 0
    while position < len(stream):
        size = sizes[index % len(sizes)]
        read += reader.feed(stream[position : position + size])
        position, index = position + size, index + 1
    assert read == [line.strip(b" ") for line in sent if line.strip()]
    assert reader.dropped == 0


@given(lines, st.integers(4, 20))
def test_messages_are_within_the_limit_and_whole_utf8(sent: list[bytes], limit: int) -> None:
    for line in sent:
        cut = list(cut_line(line + b"\n", limit))
        assert b"".join(cut) == line + b"\n"
        for message in cut:
            message.decode()
            assert 0 < len(message) <= limit


def test_a_line_that_is_too_long_is_dropped_and_reading_goes_on() -> None:
    reader = LineReader(limit=5)
    assert reader.feed("123456") == []
    assert reader.feed("789") == []
    assert reader.feed("\n12345\n1234567\nok\n") == [b"12345", b"ok"]
    assert reader.dropped == 2


def test_an_endless_line_takes_no_memory() -> None:
    reader = LineReader(limit=1000)
    for _ in range(1000):
        assert reader.feed(b"x" * 1000) == []
        assert len(reader._begun) <= 1000
    assert reader.dropped == 1


def test_blank_lines_and_carriage_returns_are_skipped() -> None:
    assert LineReader().feed("\n\r\n  \n{}\r\n") == [b"{}"]


def test_text_and_bytes_may_be_mixed() -> None:
    reader = LineReader()
    assert reader.feed('{"a":') == []
    assert reader.feed(b'1}\n{"b"') == [b'{"a":1}']
    assert reader.feed(":\ud800}\n") == [b'{"b":\xed\xa0\x80}']

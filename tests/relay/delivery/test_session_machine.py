"""The state machine of a socket: whatever happens, rows go out in order and each once."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.connector import (
    INBOUND,
    PASSTHROUGH,
    BufferRow,
    DeliveryLimits,
    QueueState,
    SocketSession,
    SocketState,
    ranges,
    read_buffer_id,
)
from accord.relay.errors import RelayError

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "hint", "load", "late load", "send", "ack"]), st.integers(0, 9)
    ),
    max_size=80,
)


@given(before=st.integers(0, 12), window=st.integers(1, 5), steps=STEPS)
def test_rows_go_out_in_order_and_each_once(
    before: int, window: int, steps: list[tuple[str, int]]
) -> None:
    limits = DeliveryLimits(window=window)
    table = {seq: BufferRow(seq, INBOUND, "{}") for seq in range(1, before + 1)}
    session = SocketSession("alpha", QueueState("t", "s", before, 1, False), limits)
    session.move(SocketState.DRAINING)
    head, sent, reading = before, [], None
    for step, number in steps:
        if step in ("commit", "hint"):
            rows = [BufferRow(head + place, INBOUND, "{}") for place in range(1, number + 1)]
            table |= {row.seq: row for row in rows}
            head += number
            session.offer(rows if step == "commit" else [], head)
        elif step == "load":
            # Read now, told at a later step: much may happen in between.
            if (wanted := session.wants()) is not None:
                found = [table[seq] for seq in sorted(table) if seq > wanted[0]][: number + 1]
                reading = (wanted, found, len(found) <= number)
        elif step == "late load" and reading is not None:
            session.loaded(reading[0], reading[1], is_all=reading[2])
            reading = None
        elif step == "send":
            sent += session.take(10_000).sent
            assert session.unacked <= window
        elif step == "ack" and sent:
            seq = sent[number % len(sent)]
            assert (session.ack(seq) is not None) == (seq in table)
            table.pop(seq, None)
    while True:
        sent += session.take(10_000).sent
        acked = [seq for seq in sent if seq in table]
        for seq in acked:
            assert session.ack(seq) is not None
            del table[seq]
        wanted = session.wants()
        if wanted is not None:
            left = [table[seq] for seq in sorted(table) if seq > wanted[0]]
            session.loaded(wanted, left, is_all=True)
        elif not acked:
            break
    assert sent == sorted(set(sent))
    assert table == {}
    assert set(sent) == set(range(1, head + 1))
    assert session.is_drained


def test_a_step_that_no_socket_can_take_raises() -> None:
    session = SocketSession("alpha", QueueState("t", "s", 0, 1, False), DeliveryLimits())
    with pytest.raises(RelayError, match="from greeting to live"):
        session.move(SocketState.LIVE)
    session.move(SocketState.CLOSED)
    with pytest.raises(RelayError, match="from closed to greeting"):
        session.move(SocketState.GREETING)


def test_nothing_is_sent_before_hello_or_after_going_idle() -> None:
    session = SocketSession("alpha", QueueState("t", "s", 1, 1, False), DeliveryLimits())
    assert session.wants() is None
    session.move(SocketState.DRAINING)
    session.offer([BufferRow(1, INBOUND, "{}"), BufferRow(2, INBOUND, "{}")], 2)
    session.move(SocketState.IDLE)
    assert session.take(10_000).lines == []
    session.offer([BufferRow(3, INBOUND, "{}")], 3)
    assert session.take(10_000).lines == []
    assert session.wants() is None


def test_a_forward_waits_for_nobody_and_nobody_for_it() -> None:
    session = SocketSession("alpha", QueueState("t", "s", 0, 1, False), DeliveryLimits(window=3))
    session.move(SocketState.DRAINING)
    session.offer(
        [
            BufferRow(1, PASSTHROUGH, "{}"),
            BufferRow(2, INBOUND, "{}"),
            BufferRow(3, PASSTHROUGH, "{}"),
        ],
        3,
    )
    first = session.take(10_000)
    assert (first.sent, first.done) == ([1, 2, 3], [])
    assert session.ack(2) is not None
    session.move(SocketState.LIVE)
    session.offer([BufferRow(4, PASSTHROUGH, '{"a":1}')], 4)
    live = session.take(10_000)
    assert (live.sent, live.done) == ([], [4])
    assert live.lines == ['{"type":"passthrough_forward","forward":{"a":1}}\n']


@given(st.text(max_size=30), st.text(max_size=10))
def test_any_text_is_a_buffer_id_or_none(text: str, series: str) -> None:
    found = read_buffer_id(text, series)
    assert found is None or text == f"{series}-{text.rpartition('-')[2]}"
    assert read_buffer_id(BufferRow(17, INBOUND, "").line("s")[:0] + f"{series}-17", series) == 17


@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_exactly_their_numbers(numbers: set[int]) -> None:
    found = ranges(numbers)
    assert {each for first, last in found for each in range(first, last + 1)} == numbers
    assert all(one[1] + 1 < two[0] for one, two in itertools.pairwise(found))

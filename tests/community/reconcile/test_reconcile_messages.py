"""Any bytes at all are a message or are refused, and nobody can keep a session busy for ever."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.community.errors import Code, CommunityError
from accord.community.rules import (
    FIRST_BOUND,
    LAST_BOUND,
    MAX_SYNC_BODY,
    MAX_SYNC_RANGES,
    RangeMode,
    SyncBody,
    SyncIndex,
    SyncInitiator,
    SyncItem,
    SyncLimits,
    SyncMessage,
    SyncRange,
    decode_message,
    encode_item,
    encode_message,
    respond_sync,
)

SALT = b"8 bytes!"
LIMITS = SyncLimits()


def item(number: int) -> SyncItem:
    return number // 4, f"{number % 4:026d}", blake3(number.to_bytes(8)).digest()


def fetch(items: Sequence[SyncItem]) -> Iterator[SyncBody]:
    return (SyncBody(digest * 20) for _, _, digest in items)


INDEX = SyncIndex(item(number) for number in range(3000))

bounds = st.one_of(
    st.just(LAST_BOUND),
    st.builds(
        lambda lamport, tail: lamport.to_bytes(8) + tail,
        st.one_of(st.integers(0, 800), st.integers(0, 2**53)),
        st.one_of(st.just(b""), st.binary(max_size=48)),
    ),
    st.integers(0, 2999).map(lambda number: encode_item(item(number))),
)
ids = st.lists(st.binary(min_size=5, max_size=5), max_size=20).map(tuple)


@st.composite
def ranges(draw: st.DrawFn) -> list[SyncRange]:
    found: list[SyncRange] = []
    lower = FIRST_BOUND
    for upper in sorted(draw(st.sets(bounds, max_size=12))):
        mode = draw(st.sampled_from(RangeMode))
        fingerprint = (
            draw(st.binary(min_size=6, max_size=6)) if mode is RangeMode.FINGERPRINT else b""
        )
        named = draw(ids) if mode in (RangeMode.ITEMS, RangeMode.WANT) else ()
        found.append(SyncRange(lower, upper, mode, fingerprint, named))
        lower = upper
    return found


bodies = st.lists(st.builds(SyncBody, st.binary(max_size=200), st.booleans()), max_size=5)
rooms = st.one_of(st.integers(0, 5000), st.integers(0, 2**60))
messages = st.builds(SyncMessage, st.just(SALT), rooms, ranges(), bodies)


@given(messages)
def test_a_message_is_read_as_it_was_written(message: SyncMessage) -> None:
    assert decode_message(encode_message(message), LIMITS) == message


def answered(request: bytes) -> None:
    """A request is refused with its code, or gets a reply that is bounded and can be read."""
    try:
        answer = respond_sync(INDEX, request, fetch)
    except CommunityError as refused:
        assert refused.code is Code.BAD_REQUEST
        return
    assert len(answer.reply) <= LIMITS.message + MAX_SYNC_BODY
    decode_message(answer.reply, LIMITS)


@given(st.one_of(st.binary(), st.binary().map(lambda some: b"\1" + SALT + some)))
@settings(max_examples=300)
def test_any_bytes_are_refused_or_answered(request: bytes) -> None:
    answered(request)


@given(messages.map(encode_message), st.data())
@settings(max_examples=300)
def test_damaged_messages_are_refused_or_answered(request: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(request)))
    damaged = (
        request[:at]
        + data.draw(st.binary(max_size=3))
        + request[at + data.draw(st.integers(0, 3)) :]
    )
    answered(damaged)


HEAD = b"\1" + SALT + b"\0"


@pytest.mark.parametrize(
    ("request_bytes", "reason"),
    [
        (b"", "ends too early"),
        (b"\2" + SALT, "version 2"),
        (b"\1" + SALT[1:], "ends too early"),
        (HEAD, "ends too early"),
        (HEAD + b"\1", "ends too early"),
        (HEAD + b"\xff" * 9, "too long"),
        (HEAD + b"\xff" * 8 + b"\1", "ranges are above the limit"),
        (HEAD + b"\0\0\0", "after its end"),
        (HEAD + b"\1\1" + b"\0" * 5, "ends too early"),
        (HEAD + b"\2\x08\0", "not in order"),
        (HEAD + b"\2\4\0\4\0\0", "not in order"),
        (HEAD + b"\2\4\0\x08\0", "above every lamport"),
        (HEAD + b"\1\x0c\0\0", "no such length"),
        (HEAD + b"\1\x0c\x32" + b"\0" * 9, "no such length"),
        (HEAD + b"\1\x0c" + b"\xe1\x12" + b"\0" * 60, "no such length"),
        (HEAD + b"\1" + b"\xf8" + b"\xff" * 7 + b"\1", "above every lamport"),
        (HEAD + b"\1\x0a\x7f" + b"\0" * 20, "more than it holds"),
        (HEAD + b"\0\x7f", "more than it holds"),
        (HEAD + b"\0\1\xff\xff\x7f", "above the limit"),
        (HEAD + b"\0\1\x0a....", "ends too early"),
        (bytes(LIMITS.message + MAX_SYNC_BODY + 1), "above the limit"),
    ],
)
def test_what_is_wrong_with_a_message_is_said(request_bytes: bytes, reason: str) -> None:
    with pytest.raises(CommunityError, match=reason) as refused:
        respond_sync(INDEX, request_bytes, fetch)

    assert refused.value.code is Code.BAD_REQUEST


def everything(mode: RangeMode, **more: Any) -> SyncRange:
    return SyncRange(FIRST_BOUND, LAST_BOUND, mode, **more)


def test_a_request_without_room_still_gets_a_step_further() -> None:
    request = encode_message(SyncMessage(SALT, 0, [everything(RangeMode.ITEMS)], []))

    reply = decode_message(respond_sync(INDEX, request, fetch).reply, LIMITS)

    assert len(reply.bodies) == 1
    assert INDEX.rank(reply.ranges[-1].upper) == 1


def test_a_request_that_wants_what_nobody_has_costs_bounded_looks() -> None:
    request = encode_message(
        SyncMessage(SALT, 10**6, [everything(RangeMode.WANT, ids=(b"nobody"[:5],))], [])
    )

    reply = decode_message(respond_sync(INDEX, request, fetch, SyncLimits(looks=100)).reply, LIMITS)

    assert INDEX.rank(reply.ranges[-1].upper) == 100
    assert not reply.bodies


def test_as_many_ranges_as_a_message_may_have_are_answered_in_one() -> None:
    many = [
        SyncRange(number.to_bytes(8), (number + 1).to_bytes(8), RangeMode.FINGERPRINT, b"differ")
        for number in range(MAX_SYNC_RANGES)
    ]
    many[0] = many[0]._replace(lower=FIRST_BOUND)

    answered(encode_message(SyncMessage(SALT, 10**6, many, [])))


@given(st.lists(messages, min_size=1, max_size=8))
@settings(max_examples=200)
def test_whatever_a_responder_says_a_session_goes_on_or_stands_still(
    said: list[SyncMessage],
) -> None:
    session = SyncInitiator(INDEX, SALT, fetch)
    for message in said:
        request = session.request()
        if request is None:
            return
        rounds = session.rounds
        try:
            session.receive(encode_message(message))
        except CommunityError as refused:
            assert refused.code is Code.BAD_REQUEST
            assert (session.request(), session.rounds) == (request, rounds)


def contradicted(each: SyncRange) -> SyncRange:
    if each.mode is RangeMode.FINGERPRINT:
        return each._replace(fingerprint=b"differ")
    if each.mode is RangeMode.ITEMS:
        return each._replace(mode=RangeMode.WANT)
    return SyncRange(each.lower, each.upper, RangeMode.SETTLED)


def hostile(session: SyncInitiator, limit: int) -> int:
    """Contradict every fingerprint and want every item that is listed; count the round trips."""
    rounds = 0
    while (request := session.request()) is not None:
        rounds += 1
        assert rounds <= limit
        asked = decode_message(request, LIMITS)
        replies = [contradicted(each) for each in asked.ranges]
        end = replies[-1].upper if replies else FIRST_BOUND
        closing = [SyncRange(end, LAST_BOUND, RangeMode.SETTLED)] if end != LAST_BOUND else []
        session.receive(encode_message(SyncMessage(asked.salt, 10**6, [*replies, *closing], [])))
    return rounds


def test_a_responder_that_contradicts_everything_is_soon_through() -> None:
    assert hostile(SyncInitiator(INDEX, SALT, fetch), limit=30) > 3


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (SyncMessage(b"another!", 0, [everything(RangeMode.SETTLED)], []), "another session"),
        (SyncMessage(SALT, 0, [], []), "handles nothing"),
        (
            SyncMessage(SALT, 0, [everything(RangeMode.FINGERPRINT, fingerprint=b"differ")], []),
            "not asked",
        ),
        (SyncMessage(SALT, 0, [everything(RangeMode.ITEMS)], []), "not asked"),
        (SyncMessage(SALT, 0, [everything(RangeMode.WANT, ids=(b"12345",))], []), "not asked"),
        (
            SyncMessage(
                SALT,
                0,
                [SyncRange(FIRST_BOUND, (1).to_bytes(8), RangeMode.WANT, ids=(b"12345",))],
                [],
            ),
            "not asked",
        ),
        (
            SyncMessage(
                SALT,
                0,
                [SyncRange(FIRST_BOUND, (1).to_bytes(8), RangeMode.ITEMS, ids=(b"12345",) * 99)],
                [],
            ),
            "more open",
        ),
    ],
)
def test_a_reply_that_is_no_answer_is_refused(reply: SyncMessage, reason: str) -> None:
    session = SyncInitiator(INDEX, SALT, fetch, SyncLimits(pending=100))
    request = session.request()

    with pytest.raises(CommunityError, match=reason) as refused:
        session.receive(encode_message(reply))

    assert refused.value.code is Code.BAD_REQUEST
    assert session.request() == request


def test_a_reply_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(CommunityError, match="no request"):
        SyncInitiator(INDEX, SALT, fetch).receive(b"")


def test_a_salt_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        SyncInitiator(INDEX, b"short", fetch)

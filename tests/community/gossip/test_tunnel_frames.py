"""Tunnels over a pair of queues: windows, limits and malformed frames."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.errors import Code, CommunityError
from accord.community.rules.tunnels import (
    MAX_DATA,
    WINDOW,
    FrameKind,
    Pace,
    TunnelFrame,
    credit,
    parse_relayed,
    read_frame,
    relayed_address,
    retry_pause,
)
from accord.community.tunnels import MessageSocket, Tunnel, TunnelClosedError, TunnelStream
from accord.kernel.signing import SigningKey
from accord.testing import run_virtual

ANCHOR, NODE = (SigningKey.from_seed(bytes([number]) * 32).id for number in (1, 2))


def pair() -> tuple[MessageSocket, MessageSocket]:
    """The two ends of a WebSocket."""
    one: asyncio.Queue[bytes | None] = asyncio.Queue(8)
    other: asyncio.Queue[bytes | None] = asyncio.Queue(8)

    def end(out: Any, into: Any) -> MessageSocket:
        async def receive() -> bytes:
            message: bytes | None = await into.get()
            if message is None:
                raise TunnelClosedError
            return message

        return MessageSocket(out.put, receive)

    return end(one, other), end(other, one)


def living(
    work: Callable[[Tunnel], Awaitable[None]],
    accept: Callable[[TunnelStream], Awaitable[None]],
    most: int = 8,
) -> None:
    async def main() -> None:
        ours, theirs = pair()
        anchor, member = Tunnel(ours, most), Tunnel(theirs, most, accept)
        running = [asyncio.create_task(each.run()) for each in (anchor, member)]
        try:
            await work(anchor)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    run_virtual(main())


async def echo(stream: TunnelStream) -> None:
    while data := await stream.read():
        await stream.write(data)


async def said(stream: TunnelStream, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := await stream.read()):
        found += data
    return found


def test_streams_carry_more_than_a_window_both_ways() -> None:
    async def work(tunnel: Tunnel) -> None:
        stream = await tunnel.open("somebody")
        data = bytes(range(256)) * (3 * WINDOW // 256)
        _, found = await asyncio.gather(stream.write(data), said(stream, len(data)))
        assert found == data

    living(work, echo)


def test_a_stream_that_nobody_reads_delays_no_other() -> None:
    async def accept(stream: TunnelStream) -> None:
        await (asyncio.sleep(3600) if stream.number == 1 else echo(stream))

    async def work(tunnel: Tunnel) -> None:
        stuck = await tunnel.open("somebody")
        writing = asyncio.create_task(stuck.write(b"x" * 2 * WINDOW))
        stream = await tunnel.open("somebody")
        await stream.write(b"hello")
        assert await said(stream, 5) == b"hello"
        assert not writing.done()
        writing.cancel()

    living(work, accept)


def test_what_arrived_before_the_end_is_read() -> None:
    async def accept(stream: TunnelStream) -> None:
        await stream.write(b"good ")
        await stream.write(b"bye")

    async def work(tunnel: Tunnel) -> None:
        stream = await tunnel.open("somebody")
        assert await said(stream, 99) == b"good bye"
        with pytest.raises(TunnelClosedError):
            await stream.write(b"too late")

    living(work, accept)


def test_there_are_no_more_streams_than_the_limit() -> None:
    async def work(tunnel: Tunnel) -> None:
        first = await tunnel.open("somebody")
        await tunnel.open("somebody")
        with pytest.raises(CommunityError) as refused:
            await tunnel.open("somebody")
        assert refused.value.code is Code.CAPACITY_EXCEEDED
        await first.close()
        await tunnel.open("somebody")

    living(work, echo, most=2)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\x09\x00\x00\x00\x01"],
        [TunnelFrame(FrameKind.DATA, 1).encode()],
        [TunnelFrame(FrameKind.DATA, 1, b"x" * (MAX_DATA + 1)).encode()],
        [TunnelFrame(FrameKind.CREDIT, 1, b"\x00").encode()],
        [credit(1, 1).encode()],
        [TunnelFrame(FrameKind.DATA, 1, b"x" * MAX_DATA).encode()] * (WINDOW // MAX_DATA + 1),
        [TunnelFrame(FrameKind.OPEN, 7, b"").encode()],
    ],
    ids=[
        "empty",
        "unknown kind",
        "no data",
        "too long",
        "short credit",
        "credit for nothing",
        "more than the window",
        "a stream that the member may not begin",
    ],
)
def test_a_member_that_breaks_the_protocol_ends_its_tunnel(frames: list[bytes]) -> None:
    async def main() -> None:
        waiting = iter(frames)

        async def send(_message: bytes) -> None:
            pass

        async def receive() -> bytes:
            return next(waiting)

        tunnel = Tunnel(MessageSocket(send, receive), 8)
        stream = await tunnel.open("somebody")
        with pytest.raises(CommunityError) as refused:
            await tunnel.run()
        assert refused.value.code is Code.BAD_REQUEST
        # Whoever used it learns that it has ended.
        with pytest.raises(TunnelClosedError):
            await stream.write(b"x" * 2 * WINDOW)

    run_virtual(main())


@given(st.binary(max_size=64))
def test_a_message_is_a_frame_or_refused(message: bytes) -> None:
    try:
        frame = read_frame(message)
    except CommunityError as error:
        assert error.code is Code.BAD_REQUEST
    else:
        assert frame.encode() == message


@given(st.lists(st.integers(1, MAX_DATA), min_size=1, max_size=200))
def test_a_caller_passes_no_more_than_its_rate_and_a_second_in_advance(sizes: list[int]) -> None:
    pace, now, passed = Pace(64 * 1024), 0.0, 0
    for size in sizes:
        now += pace.passed(size, now)
        passed += size
        assert passed <= 64 * 1024 * (now + 1.0) + 1


def test_relayed_addresses_name_two_nodes() -> None:
    assert parse_relayed(relayed_address(ANCHOR, NODE)) == (ANCHOR, NODE)
    for address in ("https://10.0.0.1:7080", "relay://", f"relay://{ANCHOR}", "relay://a/b"):
        assert parse_relayed(address) is None


def test_a_tunnel_that_breaks_again_and_again_is_opened_less_often() -> None:
    assert [retry_pause(number) for number in (0, 1, 2, 3)] == [0.0, 2.0, 4.0, 8.0]
    assert retry_pause(50) == 300.0

"""Streams are copied while their server runs: what was acknowledged before is in the copy."""

import asyncio
from pathlib import Path

from accord.authority.nats import ListenAddress, connect, embedded_server, paused_server
from accord.kernel.clock import SystemClock
from accord.station.backup import _copy_streams

CLOCK = SystemClock()


async def test_what_was_acknowledged_before_a_backup_is_in_it_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    streams, copy = tmp_path / "nats", tmp_path / "copy"
    written, enough = 0, asyncio.Event()
    async with embedded_server(streams, ListenAddress(), CLOCK) as server:
        nats = await connect("write", server.cluster, server.cluster.authority)
        jetstream = nats.jetstream()
        await jetstream.add_stream(name="S", subjects=["events.v1.>"])

        async def write() -> None:
            nonlocal written
            while not enough.is_set():
                await jetstream.publish("events.v1.x", str(written).encode())
                written += 1

        writing = asyncio.create_task(write())
        while written < 50 and not writing.done():  # noqa: ASYNC110 - it says so in no other way
            await asyncio.sleep(0.01)
        before = written
        await asyncio.to_thread(_copy_streams, streams, copy, lambda _: None)
        after = written
        while written < after + 20 and not writing.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        enough.set()
        await writing
        await nats.close()
    async with embedded_server(copy, ListenAddress(), CLOCK) as server:
        nats = await connect("read", server.cluster, server.cluster.authority)
        kept = (await nats.jetstream().stream_info("S")).state.messages
        last = await nats.jetstream().get_msg("S", seq=kept)
        await nats.close()
    assert before <= kept <= written
    assert last.data == str(kept - 1).encode()


async def test_a_server_that_is_held_still_goes_on_when_whoever_held_it_is_gone(
    tmp_path: Path,
) -> None:
    async with embedded_server(tmp_path / "nats", ListenAddress(), CLOCK) as server:
        with paused_server(tmp_path / "nats") as runs:
            assert runs
            status = Path(f"/proc/{server.pid}/status").read_text()  # noqa: ASYNC240
            assert "State:\tT" in status
        nats = await connect("look", server.cluster, server.cluster.authority)
        assert nats.is_connected
        await nats.close()
    with paused_server(tmp_path / "nats") as runs:
        assert not runs

"""The connection beneath the fabric: order, pressure and errors, against a real server."""

import asyncio

import pytest
from nats.aio.msg import Msg
from nats.errors import BadHeaderError
from tests.fabric.fabric_network import connected

from accord.fabric.link import NatsClient, subscribe
from accord.testing.servers import Server as Process
from accord.testing.servers import nats_server


async def test_a_flush_comes_after_everything_that_was_said_before(nats: Process) -> None:
    async with connected(nats.url) as one, connected(nats.url) as other:
        for number in range(50):
            heard = await other.subscribe(f"order.{number}")
            await other.flush()
            await one.publish(f"order.{number}", b"x", headers={"name": "value"})
            await one.flush()
            assert (await heard.next_msg(5)).headers == {"name": "value"}
            await heard.unsubscribe()


async def test_a_drained_subscription_loses_nothing(nats: Process) -> None:
    async with connected(nats.url) as one, connected(nats.url) as other:
        heard: list[Msg] = []
        subscription = await subscribe(other, "drained", heard.append)
        await other.flush()
        for number in range(500):
            await one.publish("drained", str(number).encode())
        await one.flush()
        await subscription.drain()  # type: ignore[no-untyped-call]
        assert [msg.data for msg in heard] == [str(number).encode() for number in range(500)]
        await one.publish("drained", b"late")
        await one.flush()
        await other.flush()
        assert len(heard) == 500


async def test_more_than_the_socket_takes_at_once_arrives_in_order(nats: Process) -> None:
    async with connected(nats.url) as one, connected(nats.url) as other:
        heard: list[Msg] = []
        await subscribe(other, "much", heard.append)
        await other.flush()
        block = b"x" * 100_000
        for number in range(100):
            await one.publish("much", str(number).encode() + block, headers={"n": str(number)})
        await one.flush()
        async with asyncio.timeout(20):
            while len(heard) < 100:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
        numbers = [str(number) for number in range(100)]
        assert [msg.headers and msg.headers["n"] for msg in heard] == numbers


async def test_a_header_cannot_smuggle_in_a_command(nats: Process) -> None:
    async with connected(nats.url) as one, connected(nats.url) as other:
        heard = await other.subscribe("smuggled.>")
        await other.flush()
        value = "x\r\n\r\nPUB smuggled.in 1\r\nx\r\n"
        await one.publish("smuggled.first", b"1", headers={"name": value})
        with pytest.raises(BadHeaderError):
            await one.publish("smuggled.second", b"2", headers={"na\r\nme": "x"})
        await one.publish("smuggled.third", b"3")
        subjects = [(await heard.next_msg(5)).subject for _ in range(2)]
    assert subjects == ["smuggled.first", "smuggled.third"]


async def test_an_error_of_the_server_does_not_end_the_connection() -> None:
    with nats_server(options=["--user", "u", "--pass", "p"]) as server:
        told: list[Exception] = []

        async def tell(error: Exception) -> None:
            told.append(error)

        client = NatsClient()
        await client.connect(
            server.url, user="u", password="p", error_cb=tell, reconnect_time_wait=1
        )
        try:
            await client._process_err("'user authentication expired'\r\n")
            assert str(told[0]) == "nats: user authentication expired"
            assert client.is_connected
        finally:
            await client.close()

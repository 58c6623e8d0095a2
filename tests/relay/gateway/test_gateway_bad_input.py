"""Whatever a connector sends, the gateway drops it, counts it and serves on."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.relay.gateway.conftest import Running, echo, message, virtually

from accord.relay.errors import RelayError
from accord.relay.gateway import (
    GatewayLimits,
    GatewaySettings,
    GatewayState,
    RelayGateway,
    websocket_dialer,
)
from accord.relay.rules import (
    Described,
    HelloRefused,
    Inbound,
    InterruptInbound,
    OutboundResult,
    Result,
    write_frame,
)
from accord.testing import VirtualClock
from accord.testing.connector import DESCRIPTOR, GATEWAY, SECRET, Connector

GARBAGE = [
    "\n",
    "   \n\n",
    "null\n",
    "[]\n",
    "7\n",
    '"text"\n',
    "{}\n",
    '{"type":7}\n',
    '{"type":""}\n',
    '{"type":"hologram"}\n',
    '{"type":"inbound"}\n',
    '{"type":"inbound","event":[]}\n',
    '{"type":"inbound","event":{"text":7}}\n',
    '{"type":"inbound","event":{"source":{"chat_id":[]}},"bufferId":"b"}\n',
    '{"type":"inbound","event":{},"bufferId":7}\n',
    '{"type":"inbound","event":{},"bufferId":"' + "x" * 600 + '"}\n',
    '{"type":"outbound_result","requestId":"r"}\n',
    '{"type":"outbound_result","requestId":"r","result":{"success":1}}\n',
    '{"type":"interrupt_inbound"}\n',
    '{"type":"passthrough_forward","forward":{"bodyB64":"!"}}\n',
    '{"type":"passthrough_forward","forward":7}\n',
    '{"type":"hello","platform":"web","botId":""}\n',
    '{"type":"outbound","requestId":"r","action":{"op":"send"}}\n',
    '{"type":"inbound_ack","bufferId":"b"}\n',
    '{"type":"descriptor","descriptor":{}}\n',
    '{"a":1,"a":2}\n',
    '{"type":"inbound","event":' + "[" * 100_000 + "}\n",
    '{"type":NaN}\n',
    "\x00\x01\x02\n",
    "{" * 1000 + "\n",
]


async def test_garbage_on_a_real_socket_changes_nothing(
    connector: Connector, running: Running
) -> None:
    async with running() as gateway:
        await gateway.reached(GatewayState.RUNNING)
        for line in GARBAGE:
            await connector.raw(line)
        await connector.raw(b"\xff\xfe\x00 not UTF-8\n")
        await connector.raw("".join(GARBAGE))
        await connector.deliver(message("are you there?"), "b-1")
        await connector.until(lambda: connector.acks == ["b-1"] and bool(connector.texts))
        assert connector.texts == ["you said are you there?"]
        assert len(connector.dials) == 1
        assert gateway.counts["bad lines"] > 30
        assert gateway.counts["unknown frames"] >= 2


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=60).map(lambda text: text + "\n"),
            st.binary(max_size=60).map(lambda data: data + b"\n"),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=9),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["type", "event", "source", "x"]), inner)
                ),
                max_leaves=9,
            ).map(lambda value: json.dumps(value) + "\n"),
            st.builds(
                lambda kind, event: json.dumps({"type": kind, "event": event}) + "\n",
                st.sampled_from(["inbound", "passthrough_forward", "interrupt_inbound"]),
                st.dictionaries(
                    st.sampled_from(["text", "source", "message_id"]), st.integers() | st.text()
                ),
            ),
        ),
        max_size=12,
    )
)
def test_no_message_whatever_ends_a_gateway(sent: list[str | bytes]) -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        for data in sent:
            await connector.raw(data)
        await connector.raw("\n")
        await connector.deliver(message("last", "m-last", "c-last"), "b-last")
        await connector.until(lambda: "b-last" in connector.acks)
        await connector.until(lambda: "you said last" in connector.texts)

    virtually(scene)


@pytest.mark.parametrize("piece", [4, 7, 100, None])
async def test_frames_may_be_split_and_merged(
    connector: Connector, running: Running, piece: int | None
) -> None:
    connector.piece = piece
    async with running() as gateway:
        await gateway.reached(GatewayState.RUNNING)
        frames = [Inbound(message(f"grüße 🌍 {n}", f"m{n}", f"c{n}"), f"b-{n}") for n in range(5)]
        await connector.send(*frames)
        await connector.until(lambda: len(connector.acks) == 5 and len(connector.texts) == 5)
    assert connector.acks == [f"b-{n}" for n in range(5)]
    assert set(connector.texts) == {f"you said grüße 🌍 {n}" for n in range(5)}


async def test_frames_in_one_message_with_the_descriptor_are_not_lost(
    connector: Connector, running: Running
) -> None:
    connector.describes = False
    async with running() as gateway:
        await connector.until(lambda: bool(connector.hellos))
        early = Inbound(message("early"), "b-1")
        await connector.send(early, Described(DESCRIPTOR), Inbound(message("late", "m2"), "b-2"))
        await connector.until(lambda: connector.acks == ["b-1", "b-2"])
        await connector.until(lambda: len(connector.texts) == 2)
        assert gateway.health.state is GatewayState.RUNNING
    assert connector.texts == ["you said early", "you said late"]


async def test_an_endless_line_takes_no_memory_and_ends_at_its_newline(
    connector: Connector, running: Running
) -> None:
    limits = GatewayLimits(line_bytes=10_000, first_delay=0.01, edit=0.01)
    async with running(settings=GatewaySettings(limits=limits)) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        for _ in range(20):
            await connector.raw("x" * 9_000)
        await connector.raw("\n")
        await connector.deliver(message("after"), "b-1")
        await connector.until(lambda: bool(connector.texts))
        assert gateway.counts["lines too long"] == 1
        assert len(connector.dials) == 1


async def test_a_huge_message_costs_the_connection_and_not_the_gateway(
    connector: Connector, running: Running
) -> None:
    async with running() as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.raw(b"x" * (GatewayLimits().message_bytes + 1))
        await connector.until(lambda: len(connector.dials) == 2)
        await gateway.reached(GatewayState.RUNNING)
        await connector.deliver(message("after"), "b-1")
        await connector.until(lambda: bool(connector.texts))


async def test_a_dropped_connection_delivers_the_unacknowledged_again_and_runs_it_once(
    connector: Connector, running: Running
) -> None:
    async with running() as gateway:
        await gateway.reached(GatewayState.RUNNING)
        for number in range(20):
            await connector.deliver(message(f"n{number}", f"m{number}"), f"b-{number}")
            if number % 4 == 0:
                connector.drop()
                await connector.until(lambda: not connector.connected)
        await connector.until(lambda: len(connector.texts) == 20)
        await connector.until(lambda: len(set(connector.acks)) == 20)
    assert connector.texts == [f"you said n{number}" for number in range(20)]


async def test_frames_twice_in_disorder_and_of_nobody_run_each_event_once(
    connector: Connector, running: Running
) -> None:
    async with running() as gateway:
        await gateway.reached(GatewayState.RUNNING)
        one, two = message("one", "m1"), message("two", "m2", chat="c2")
        # The second before the first, each twice, and results that nobody asked for between.
        await connector.send(Inbound(two, "b-2"), Inbound(one, "b-1"))
        await connector.send(
            OutboundResult("nobody", Result(True, "m")),
            InterruptInbound("agent:main:web:group:nobody", "c9"),
            HelloRefused("web", "", "no such platform"),
            Inbound(one, "b-1"),
            Inbound(two, "b-2"),
        )
        await connector.until(lambda: sorted(connector.texts) == ["you said one", "you said two"])
        await connector.until(lambda: sorted(connector.acks) == ["b-1", "b-1", "b-2", "b-2"])
        # Under another id the same event is another delivery of it, and is run once, too.
        connector.drop()
        await connector.until(lambda: len(connector.dials) == 2)
        await gateway.reached(GatewayState.RUNNING)
        await connector.send(Inbound(one, "b-1"))
        await connector.until(lambda: connector.acks.count("b-1") == 3)
        await connector.deliver(message("three", "m3"), "b-3")
        await connector.until(lambda: "you said three" in connector.texts)
        assert len(connector.texts) == 3


async def test_an_upgrade_that_is_refused_by_http_is_tried_again(connector: Connector) -> None:
    answers = [
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/relay\r\nContent-Length: 0\r\n\r\n",
        b"not HTTP at all\r\n\r\n",
        b"",
    ]
    asked: list[bytes] = []
    enough = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[(len(asked) - 1) % len(answers)])
        writer.close()
        if len(asked) > len(answers):
            enough.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = RelayGateway(
        f"http://127.0.0.1:{port}",
        secret=SECRET,
        gateway_id=GATEWAY,
        agent=echo,
        settings=GatewaySettings(
            inbox="memory", limits=GatewayLimits(first_delay=0.01, longest_delay=0.02)
        ),
    )
    task = asyncio.create_task(gateway.run())
    async with asyncio.timeout(10):
        await enough.wait()
    gateway.stop()
    assert await task is GatewayState.STOPPED
    server.close()
    await server.wait_closed()
    assert gateway.counts["handshakes"] == 0
    assert len({line for line in asked if b"Bearer " in line}) == len(asked)


@pytest.mark.parametrize("url", ["c.example", "", "ftp://c.example", "wss://", "ws://[::1"])
async def test_an_address_that_is_none_is_a_sentence(url: str) -> None:
    with pytest.raises(RelayError, match="does not answer"):
        async with websocket_dialer(GatewayLimits(handshake=1.0))(url, "token"):
            pass


async def test_neither_secret_nor_token_is_logged_or_shown(
    connector: Connector,
    running: Running,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("DEBUG")
    connector.statuses.append(503)
    settings = GatewaySettings(identities=(("discord", "app-1"),))
    async with running(settings=settings) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        connector.drop()
        await connector.until(lambda: len(connector.dials) == 2 and len(connector.posts) == 2)
        await gateway.reached(GatewayState.RUNNING)
    shown = caplog.text + capsys.readouterr().out + repr(gateway) + repr(settings)
    assert "not connected" in shown
    assert SECRET not in shown
    for token in (*connector.dials, *connector.posts):
        assert token
        assert token not in shown


def test_frames_before_the_descriptor_have_a_limit() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.describes = False
        await connector.until(lambda: bool(connector.hellos))
        line = write_frame(Inbound(message("x"))).decode()
        await connector.raw(line * 5000)
        connector.describes = True
        await gateway.reached(GatewayState.RUNNING)
        assert len(connector.dials) == 2

    virtually(scene)

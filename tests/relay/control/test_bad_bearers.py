"""Bad tokens at a whole connector: closed with the right reason, counted, and nothing is told."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.fakes.sockets import MemorySocket

from accord.kernel import tokens
from accord.kernel.canonical import encode_base64url
from accord.kernel.clock import SystemClock
from accord.relay.connector import Keyring, open_connector

CLOCK = SystemClock()


async def test_each_is_refused_with_its_reason_counted_and_the_connector_serves_on(
    half: Any, tmp_path: Path
) -> None:
    async with open_connector(
        half.store,
        Keyring.load(tmp_path / "relay.key"),
        CLOCK,
        name="one",
        platforms=[MemoryPlatform(MemoryChat())],
    ) as connector:
        control, delivery = connector.control, connector.delivery
        made = await control.enrol((await control.mint_token("t1", "a1")).token, "gw")
        now = int(CLOCK.now())

        def token(of: str = "gw", secret: str = made.secret, at: int = now, ttl: int = 300) -> str:
            return tokens.make(of, secret, at, ttl)

        forged = token(secret="0" * 43)
        bad = {
            "expired": [token(at=now - 1000)],
            "unauthorized": [
                forged,
                token(ttl=86_400),
                encode_base64url(f"gw:0:{'0' * 64}".encode()),
                token(of="nobody"),
                token()[:-2],
                token() * 1000,
                "\ud800",
                "",
            ],
        }
        with structlog.testing.capture_logs() as logged:
            for reason, bearers in bad.items():
                for bearer in bearers:
                    socket = MemorySocket()
                    await delivery.endpoint.serve(socket, bearer)
                    assert socket.closed == (4401, reason), bearer[:40]
                assert connector.counts[f"connect refused {reason}"] == len(bearers)
            await control.revoke("a1")
            socket = MemorySocket()
            await delivery.endpoint.serve(socket, token())
            assert socket.closed == (4401, "revoked")
        told = json.dumps(logged, default=str)
        for secret in (made.secret, forged, token()):
            assert secret not in told
        other = await control.enrol((await control.mint_token("t1", "a2")).token, "gw2")
        socket = MemorySocket()
        socket.put('{"type":"hello","platform":"memory","botId":"bot"}\n')
        await _greeted(delivery, socket, tokens.make("gw2", other.secret, now))


async def _greeted(delivery: Any, socket: MemorySocket, bearer: str) -> None:
    serving = asyncio.create_task(delivery.endpoint.serve(socket, bearer))
    async with asyncio.timeout(20):
        assert '"descriptor"' in (await socket.get() or "")
    socket.cut()
    await serving


@pytest.mark.parametrize("wrong", [1, 6])
async def test_guessed_link_codes_are_counted(half: Any, wrong: int) -> None:
    for number in range(wrong):
        assert await half.say(f"/link {'ABCDEFGH'[number] * 5}-12345")
    counted = {rule: n for rule, n in half.directory.counts.items() if rule.startswith("link.")}
    assert sum(counted.values()) == wrong
    assert "link.asked" not in counted
    assert len(counted) == (1 if wrong == 1 else 2), counted

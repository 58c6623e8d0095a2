"""Services that this station calls, and what they try with their answers."""

import asyncio
from typing import Any

import pytest
from tests.attacks.test_peers import explode, listening, unexpanded

from accord.fabric.connection import ask, http_client
from accord.relay.platforms import base


async def test_a_compressed_answer_of_a_platform_is_not_unpacked() -> None:
    async with listening(explode) as port, base.open_client() as http:
        service = base.HttpService("the service", http)
        with unexpanded(), pytest.raises(TimeoutError):
            await service.call("POST", f"http://127.0.0.1:{port}/messages", json={})


async def test_a_platform_that_answers_without_end_is_left() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()

    async with listening(endless) as port, base.open_client() as http:
        service = base.HttpService("the service", http)
        with unexpanded():
            reply = await service.call("GET", f"http://127.0.0.1:{port}/")
    assert (reply.status, reply.body) == (200, b"")


async def test_a_compressed_answer_of_an_authority_is_not_unpacked() -> None:
    async with listening(explode) as port, http_client(None) as http:
        with unexpanded():
            answer: dict[str, Any] = await ask(http, f"http://127.0.0.1:{port}", "/", {})
    assert answer["status"] == "blocked"
    assert "compressed" in answer["message"]

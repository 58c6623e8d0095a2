"""What heartbeats say of an instance."""

import asyncio
import json
from typing import Any

from tests.fabric.fabric_network import linked
from tests.fabric.work_network import work

from accord.fabric import Terms
from accord.fabric.service import HEARTBEAT_SUBJECT, Health, send_heartbeats
from accord.testing.servers import Server


async def test_heartbeats_have_what_the_check_says_and_a_failing_one_is_unhealthy(
    nats: Server,
) -> None:
    answers: list[Health | Exception] = ["degraded", RuntimeError("the disk is gone"), "healthy"]

    async def check() -> Health:
        if not answers:
            return "healthy"
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    heard: asyncio.Queue[str] = asyncio.Queue()

    async def take(message: Any) -> None:
        heard.put_nowait(json.loads(message.data)["status"])

    async with linked(nats.url) as link, linked(nats.url) as listener:
        await listener.nats.subscribe(HEARTBEAT_SUBJECT, cb=take)
        await listener.nats.flush()
        async with send_heartbeats(link, Terms(work()), every=0.05, check=check):
            said = [await asyncio.wait_for(heard.get(), 20) for _ in range(3)]
    assert said == ["degraded", "unhealthy", "healthy"]

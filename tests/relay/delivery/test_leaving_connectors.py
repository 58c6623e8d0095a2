"""A connector that leaves finishes what agents asked for, and begins nothing more."""

import asyncio
from typing import Any

from tests.fakes.directory import MemoryDirectory
from tests.fakes.platform import MemoryChat

SEND: dict[str, Any] = {
    "op": "send",
    "chat_id": "c1",
    "content": "hi",
    "reply_to": None,
    "metadata": {},
}


async def test_what_was_begun_is_recorded_and_answered_for_by_the_next_one(
    open_world: Any,
) -> None:
    chat, directory = MemoryChat(), MemoryDirectory()
    letting: asyncio.Task[None]
    async with open_world(chat=chat, directory=directory) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        chat.write("ann", "c1", "hello")
        await gateway.events(1)
        chat.hang = asyncio.Event()
        gateway.say({"type": "outbound", "requestId": "r1", "action": SEND})
        outbox = world.delivery._outbox
        await world.until(lambda: bool(outbox._under_way))
        close_all = world.delivery.hub.close_all

        async def closing(code: int, reason: str) -> None:
            assert not outbox._under_way, "sockets are closed before actions are done"
            await close_all(code, reason)

        world.delivery.hub.close_all = closing

        async def let_go() -> None:
            await world.until(lambda: outbox._closed)
            assert chat.hang is not None
            chat.hang.set()

        letting = asyncio.create_task(let_go())
    await letting
    async with open_world(chat=chat, directory=directory, name="connector-2") as world:
        gateway = await world.connect("alpha")
        result = await gateway.ask(SEND)
    (said,) = chat.said
    assert result == {"success": True, "message_id": said.message_id}


async def test_what_comes_too_late_is_left_for_the_next_connection(world: Any) -> None:
    gateway = await world.connect("alpha")
    await world.delivery._outbox.close()
    gateway.say({"type": "outbound", "requestId": "r1", "action": SEND})
    # A refusal would be the end of it, so there is no answer before that of the hello.
    await gateway.hello()
    assert world.chat.said == []

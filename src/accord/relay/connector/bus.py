"""The relay bus: hints from one connector process to the others.

A process that misses a hint finds out by its own sweep. A hint belongs to a tenant and never
carries message text or secrets.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import orjson
import structlog

_PREFIX = "accord:relay:"
_AGAIN_SECONDS = 1.0
_ANSWER_SECONDS = 10.0
_log = structlog.stdlib.get_logger(__name__)


class Topic(Enum):
    """What a hint is about."""

    ROWS = "rows"
    """Rows were added for an instance; `number` is the newest."""
    OPENED = "opened"
    """The instance's gateway has dialled; `number` is the epoch of that socket."""
    INTERRUPT = "interrupt"
    """Stop the turn of a session, by a frame to the instance's socket."""
    STOP = "stop"
    """The same, by the message `/stop` to a gateway that reads it itself; `session_key` is its
    source."""
    CHANGED = "changed"
    """The directory has changed."""
    COMMANDS = "commands"
    """An agent offers other commands."""
    PAUSED = "paused"
    """A platform asked the bot `instance` to wait `number` milliseconds before more of the requests
    that `session_key` names; `chat_id` is the connector that was told."""


@dataclass(frozen=True, slots=True)
class BusHint:
    """One message on the bus."""

    topic: Topic
    tenant: str
    instance: str = ""
    number: int = 0
    session_key: str = ""
    chat_id: str = ""


def write_hint(hint: BusHint) -> bytes:
    """The form on the bus."""
    return orjson.dumps(
        [hint.topic.value, hint.instance, hint.number, hint.session_key, hint.chat_id]
    )


def read_hint(tenant: str, data: Any) -> BusHint | None:
    """Read a hint; None for anything else."""
    try:
        topic, instance, number, key, chat_id = orjson.loads(data)
        named = Topic(topic)
    except (ValueError, TypeError):
        return None
    if type(number) is not int or not all(
        isinstance(each, str) for each in (instance, key, chat_id)
    ):
        return None
    return BusHint(named, tenant, instance, number, key, chat_id)


Listener = Callable[[BusHint], None]


class RelayBus(Protocol):
    """Carries hints between connector processes."""

    def publish(self, hint: BusHint) -> None:
        """Send a hint to every process, this one included; never waits and never fails."""
        ...

    def listen(self, listener: Listener) -> contextlib.AbstractAsyncContextManager[None]:
        """Receive every hint while inside."""
        ...


class LocalBus:
    """The bus of a single process."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def publish(self, hint: BusHint) -> None:
        """Tell every listener, at the next turn of the loop."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.call_soon(listener, hint)

    @contextlib.asynccontextmanager
    async def listen(self, listener: Listener) -> AsyncIterator[None]:
        """Receive every hint while inside."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


class RedisBus:
    """The bus over Redis pub/sub, one channel for each tenant.

    The library is loaded by those who use it: a connector alone starts sooner without it.

    Args:
        url: Where Redis is; it may hold a password and is never shown.
        waiting: How many hints may wait for Redis; more are dropped, which a sweep makes good.
    """

    def __init__(self, url: str, *, waiting: int = 10_000) -> None:
        self._url = url
        self._waiting: asyncio.Queue[BusHint] = asyncio.Queue(waiting)
        self.counts: Counter[str] = Counter()

    def publish(self, hint: BusHint) -> None:
        """Tell every process."""
        try:
            self._waiting.put_nowait(hint)
        except asyncio.QueueFull:
            self.counts["dropped"] += 1

    @contextlib.asynccontextmanager
    async def listen(self, listener: Listener) -> AsyncIterator[None]:
        """Receive every hint; entered once the subscription is confirmed.

        Raises:
            OSError: Redis does not answer at the start; later failures are retried.
        """
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        client = Redis.from_url(self._url, socket_connect_timeout=_ANSWER_SECONDS)
        channel = client.pubsub()
        try:
            try:
                await channel.psubscribe(f"{_PREFIX}*")
                if await channel.get_message(timeout=_ANSWER_SECONDS) is None:
                    raise TimeoutError("the subscription was not confirmed")
            except RedisError as error:
                # The error's text may hold the address with its password.
                raise ConnectionError(type(error).__name__) from None
            receiving = asyncio.create_task(self._receive(channel, listener))
            sending = asyncio.create_task(self._send(client))
            try:
                yield
            finally:
                for task in (receiving, sending):
                    task.cancel()
                await asyncio.gather(receiving, sending, return_exceptions=True)
        finally:
            await channel.aclose()  # type: ignore[no-untyped-call]
            await client.aclose()

    async def _receive(self, channel: Any, listener: Listener) -> None:
        from redis.exceptions import RedisError

        while True:
            try:
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=None)
            except (RedisError, OSError) as error:
                self.counts["lost"] += 1
                _log.warning("the relay bus does not answer", reason=type(error).__name__)
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            if message is None:
                continue
            tenant = message["channel"].decode("utf-8", "replace").removeprefix(_PREFIX)
            hint = read_hint(tenant, message["data"])
            if hint is None:
                self.counts["bad"] += 1
            else:
                listener(hint)

    async def _send(self, client: Any) -> None:
        from redis.exceptions import RedisError

        while True:
            hints = [await self._waiting.get()]
            while not self._waiting.empty() and len(hints) < 256:
                hints.append(self._waiting.get_nowait())
            try:
                pipe = client.pipeline(transaction=False)
                for hint in hints:
                    pipe.publish(f"{_PREFIX}{hint.tenant}", write_hint(hint))
                await pipe.execute()
            except (RedisError, OSError) as error:
                self.counts["dropped"] += len(hints)
                _log.warning("the relay bus does not answer", reason=type(error).__name__)
                await asyncio.sleep(_AGAIN_SECONDS)

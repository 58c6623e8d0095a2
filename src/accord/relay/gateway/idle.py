"""When a gateway may sleep: section 3.4 of the specification.

Owns the conditions. Going to sleep is the gateway's own drain, and there is no other way to it.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

import structlog

_RESOLVE_SECONDS: Final = 5.0
_log = structlog.stdlib.get_logger(__name__)


async def obstacle(wake_url: str | None) -> str | None:
    """Why this machine must not sleep, or None.

    A wake URL that this machine would have to answer itself is as good as none, and so is one whose
    host is not known.
    """
    if not wake_url:
        return "no wake URL is registered"
    try:
        parts = urlsplit(wake_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "the wake URL cannot be read"
    if parts.scheme not in ("https", "http") or not host:
        return "the wake URL is no http or https address"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            found = await loop.getaddrinfo(host, port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return "the host of the wake URL is not known"
    if any(_is_ours(family, address) for family, _, _, _, address in found):
        return "the wake URL is served by this machine, which would be asleep"
    return None


def _is_ours(family: int, address: tuple[object, ...]) -> bool:
    """Whether an address belongs to this machine: only then can a socket be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When to sleep.

    Attributes:
        wake_url: What the connector pokes; it must be registered there, and answered by something
            that is awake while this machine sleeps.
        after: How many seconds without a message, and without a turn under way.
        obstacle: Tells why this machine must not sleep all the same.
    """

    wake_url: str | None
    after: float = 600.0
    obstacle: Callable[[str | None], Awaitable[str | None]] = obstacle


class Sleeper(Protocol):
    """What may go to sleep."""

    def idle_for(self) -> float:
        """How many seconds nothing has been under way; 0 while something is."""
        ...

    def stay_awake(self) -> None:
        """Begin to count anew."""
        ...

    async def go_idle(self) -> bool:
        """Sleep; False when it cannot be done now."""
        ...


async def watch(policy: IdlePolicy, sleeper: Sleeper) -> None:
    """Put something to sleep whenever nothing happens for long, until cancelled."""
    told: str | None = None
    while True:
        left = policy.after - sleeper.idle_for()
        if left > 0:
            await asyncio.sleep(max(left, 1.0))
            continue
        reason = await policy.obstacle(policy.wake_url)
        if reason is not None and reason != told:
            _log.warning("the gateway stays awake", reason=reason)
        told = reason
        if reason is not None or not await sleeper.go_idle():
            sleeper.stay_awake()

"""When a gateway may suspend itself: section 3.4 of the specification."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_RESOLVE_SECONDS: Final = 5.0


async def obstacle(wake_url: str | None) -> str | None:
    """Why this machine must not be suspended, such as a wake URL on itself; None if it may."""
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
    if any(_is_local_address(family, address) for family, _, _, _, address in found):
        return "the wake URL is served by this machine, which would be asleep"
    return None


def _is_local_address(family: int, address: tuple[object, ...]) -> bool:
    """Whether an address belongs to this machine: only then can a socket be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When to suspend.

    Attributes:
        wake_url: Registered at the connector, and answered by something that stays awake.
        after: Seconds without a message and without a turn.
        obstacle: Returns why this machine must not be suspended, or None.
    """

    wake_url: str | None
    after: float = 600.0
    obstacle: Callable[[str | None], Awaitable[str | None]] = obstacle

"""Settings of a gateway, none of them secret, and when it may suspend itself."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

from accord.kernel.clock import Clock
from accord.relay.gateway.inbox import Inbox, open_memory_inbox, open_stored_inbox
from accord.relay.gateway.limits import GatewayLimits
from accord.relay.rules.frames import Result
from accord.relay.rules.messages import (
    GENERIC_PLATFORM,
    Dialect,
    MessageEvent,
    PassthroughForward,
    SessionRules,
    interaction_event,
    read_profile,
)

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


async def known_to_connector(wake_url: str | None) -> str | None:
    """The same, where the connector may know a wake URL that this gateway does not."""
    return None if wake_url is None else await obstacle(wake_url)


def _is_local_address(family: int, address: tuple[object, ...]) -> bool:
    """Whether an address belongs to this machine: only then can a socket be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


async def _none() -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When to suspend."""

    # Registered at the connector, and answered by something that stays awake.
    wake_url: str | None
    # Seconds without a message and without a turn.
    after: float = 600.0
    # Returns why this machine must not be suspended, or None.
    obstacle: Callable[[str | None], Awaitable[str | None]] = obstacle
    # Names the messaging connections of this machine that do not go through the relay: nobody
    # would wake it for them. Asked again before each suspend.
    other_connections: Callable[[], Awaitable[Collection[str]]] = _none


WhenBusy = Literal["queue", "interrupt"]
ReadForward = Callable[[PassthroughForward], MessageEvent | None]


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What can be chosen."""

    # The platforms and bot ids that are fronted, one hello each; the first is the default.
    # `accord.relay.rules.read_identities` reads them from an environment.
    identities: tuple[tuple[str, str], ...] = ((GENERIC_PLATFORM, ""),)
    # How sessions are named. `scoped` keeps equal ids of different servers apart; connectors that
    # do not know it want `hermes`.
    session_keys: Dialect = "scoped"
    # Whether everybody in a group, or in a thread, has a session of their own.
    group_sessions_per_user: bool = True
    thread_sessions_per_user: bool = False
    # The profile in whose name the agent works; it is a part of the keys.
    profile: str | None = None
    # `require_mention` and `free_response_channels`, at the top or by platform.
    relevance: Mapping[str, Any] = field(default_factory=dict)
    # Where `{PLATFORM}_ALLOW_BOTS` is looked up.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Where events and replies are kept: a folder or a `postgresql://` URL; `memory` for agents that
    # may lose events and replies in a crash; an inbox of your own, which keeps no replies; None for
    # a folder in the user's state folder.
    inbox: str | os.PathLike[str] | Inbox | None = None
    # Whether a message in a busy session waits, or ends the running turn.
    when_busy: WhenBusy = "queue"
    # What a user is told when the agent failed; None for nothing.
    apology: str | None = "Sorry, something went wrong."
    # Is called with the end of each action whose result said that it is queued.
    on_outcome: Callable[[Result], None] | None = None
    # When to suspend; None for never.
    idle: IdlePolicy | None = None
    # Told to the connector at each start; None leaves what it knows. One that its operator has set
    # stays.
    wake_url: str | None = None
    # Turns a forwarded request into a message; the default reads Discord interactions.
    read_forward: ReadForward = interaction_event
    # The commands to offer, sent in every hello.
    command_manifest: Any = None
    limits: GatewayLimits = field(default_factory=GatewayLimits)

    @property
    def session_rules(self) -> SessionRules:
        """How sessions are keyed, as every hello declares it."""
        return SessionRules(
            self.session_keys,
            self.group_sessions_per_user,
            self.thread_sessions_per_user,
            read_profile(self.profile),
        )

    def open_inbox(self, gateway_id: str, clock: Clock) -> Inbox:
        """The chosen inbox, not yet opened."""
        where = self.inbox
        if where is None:
            where = state_folder() / quote(gateway_id, safe="")
        if isinstance(where, str | os.PathLike):
            limits = self.limits
            if where == "memory":
                return open_memory_inbox(limits.waiting)
            return open_stored_inbox(where, clock, keep=limits.keep, downtime=limits.downtime)
        return where


def state_folder() -> Path:
    """The default folder of gateways' inboxes."""
    chosen = os.environ.get("XDG_STATE_HOME")
    base = Path(chosen) if chosen else Path.home() / ".local" / "state"
    return base / "accord" / "gateways"

"""Settings of a gateway; none of them is secret."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from accord.kernel.clock import Clock
from accord.relay.gateway.idle import IdlePolicy
from accord.relay.gateway.inbox import Inbox, open_memory_inbox, open_stored_inbox
from accord.relay.gateway.rules import GatewayLimits
from accord.relay.gateway.sessions import ReadForward, WhenBusy
from accord.relay.rules.messages import GENERIC_PLATFORM, Dialect, interaction_event


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What can be chosen.

    Attributes:
        identities: The platforms and bot ids that are fronted, one hello each; the first is the
            default. `accord.relay.rules.read_identities` reads them from an environment.
        session_keys: How sessions are named. `scoped` keeps equal ids of different servers apart;
            connectors that do not know it want `hermes`.
        relevance: `require_mention` and `free_response_channels`, at the top or by platform.
        environment: Where `{PLATFORM}_ALLOW_BOTS` is looked up.
        inbox: A folder or a `postgresql://` URL; `memory` for agents that may lose events in a
            crash; an inbox of your own; None for a folder in the user's state folder.
        when_busy: Whether a message in a busy session waits, or ends the running turn.
        apology: What a user is told when the agent failed; None for nothing.
        idle: When to suspend; None for never.
        read_forward: Turns a forwarded request into a message; the default reads Discord
            interactions.
        command_manifest: The commands to offer, sent in every hello.
    """

    identities: tuple[tuple[str, str], ...] = ((GENERIC_PLATFORM, ""),)
    session_keys: Dialect = "scoped"
    relevance: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    inbox: str | os.PathLike[str] | Inbox | None = None
    when_busy: WhenBusy = "queue"
    apology: str | None = "Sorry, something went wrong."
    idle: IdlePolicy | None = None
    read_forward: ReadForward = interaction_event
    command_manifest: Any = None
    limits: GatewayLimits = field(default_factory=GatewayLimits)

    def open_inbox(self, gateway_id: str, clock: Clock) -> Inbox:
        """The chosen inbox, not yet opened."""
        where = self.inbox
        if where is None:
            where = state_folder() / quote(gateway_id, safe="")
        if isinstance(where, str | os.PathLike):
            return open_memory_inbox() if where == "memory" else open_stored_inbox(where, clock)
        return where


def state_folder() -> Path:
    """The default folder of gateways' inboxes."""
    chosen = os.environ.get("XDG_STATE_HOME")
    base = Path(chosen) if chosen else Path.home() / ".local" / "state"
    return base / "accord" / "gateways"

"""How a gateway behaves, and as whom; nothing secret is in here."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from accord.kernel.clock import Clock
from accord.relay.gateway.idle import IdlePolicy
from accord.relay.gateway.inbox import Inbox, memory
from accord.relay.gateway.intake import ReadForward, WhenBusy
from accord.relay.gateway.limits import Limits
from accord.relay.gateway.stored import stored
from accord.relay.wire import GENERIC_PLATFORM, Dialect, interaction_event


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What can be chosen.

    Attributes:
        identities: The platforms and bot ids that are fronted, one hello each; the first is the
            default. `accord.relay.wire.identities` reads them from an environment.
        session_keys: How sessions are named. `scoped` keeps equal ids of different servers apart;
            connectors that do not know it want `hermes`.
        relevance: `require_mention` and `free_response_channels`, at the top or by platform.
        environment: Where `{PLATFORM}_ALLOW_BOTS` is looked up.
        inbox: A folder or a `postgresql://` URL that keeps what was taken; `memory` for agents
            that accept to lose that in a crash; an inbox of your own; None for a folder of this
            gateway's in the user's state folder.
        when_busy: Whether a message in a busy session waits, or ends the running turn.
        apology: What a user is told when the agent failed; None for nothing.
        idle: When to sleep; None for never.
        read_forward: What a forwarded request amounts to; the default reads Discord interactions.
        command_manifest: The commands to offer, told in every hello.
        limits: Times and sizes.
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
    limits: Limits = field(default_factory=Limits)

    def open_inbox(self, gateway_id: str, clock: Clock) -> Inbox:
        """The inbox that was chosen, to be opened."""
        where = self.inbox
        if where is None:
            where = state_folder() / quote(gateway_id, safe="")
        if isinstance(where, str | os.PathLike):
            return memory() if where == "memory" else stored(where, clock)
        return where


def state_folder() -> Path:
    """Where gateways keep their inboxes unless they are told otherwise."""
    chosen = os.environ.get("XDG_STATE_HOME")
    base = Path(chosen) if chosen else Path.home() / ".local" / "state"
    return base / "accord" / "gateways"

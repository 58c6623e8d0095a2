"""What may be set about a bus."""

from dataclasses import dataclass, field
from typing import Final

from accord.community.bus.legacy import Legacy
from accord.community.bus.rates import Limits

MAX_BODY: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BusSettings:
    """The limits of a bus.

    Attributes:
        limits: How many calls a second are served.
        require_to: Whether every call must name its recipient.
        max_body: The longest body of a request, in bytes.
        max_unverified: How many bytes, in all, are held of bodies not yet verified.
        body_seconds: How long a body may take to arrive.
        stall_seconds: How long a stream waits for a client that has stopped reading.
        ack_window: How many frames a stream runs ahead of what the client has acknowledged.
        legacy: From where calls are taken that nobody signed.
        max_listeners: How many subscriptions there may be at once, and a 64th of it for one caller.
    """

    limits: Limits = field(default_factory=Limits)
    require_to: bool = False
    max_body: int = MAX_BODY
    max_unverified: int = 16 * MAX_BODY
    body_seconds: float = 30.0
    stall_seconds: float = 60.0
    ack_window: int = 64
    legacy: Legacy = Legacy.OFF
    max_listeners: int = 1024

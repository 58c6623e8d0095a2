"""How a gateway connects and reconnects: addresses, close codes, limits and pauses.

Time and chance are arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import Field

from accord.kernel import canonical
from accord.kernel.section import Section
from accord.relay.rules.frames import MAX_LINE, MAX_MESSAGE
from accord.relay.rules.messages import GENERIC_PLATFORM

UNAUTHORIZED: Final = 4401
"""The close code of a socket whose token is not, or no longer, valid."""

REPLACED: Final = 4409
"""The close code of a socket whose gateway has dialled again."""

RESTARTING: Final = 1012
"""The close code of a connector that restarts; the gateway dials again."""

_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 30.0


class CloseReason(Enum):
    """The reason of a close with `UNAUTHORIZED`."""

    REVOKED = "revoked"
    UNAUTHORIZED = "unauthorized"
    EXPIRED = "expired"


class AfterClose(Enum):
    """What a gateway does after a close."""

    RETRY = "retry"
    """Dial again after the backoff."""
    FRESH_TOKEN = "fresh token"  # noqa: S105 (a state, not a secret)
    """Make a fresh token and dial again at once."""
    TERMINAL = "terminal"
    """Stop: the access was revoked."""


def after_close(code: int, reason: str, *, handshaken: bool, retried: bool) -> AfterClose:
    """Decide what a gateway does after a close.

    An expired token, as after a machine slept, is never a revocation. A revocation is final only
    after one immediate dial with a fresh token, and never before the first handshake.

    Args:
        handshaken: Whether a handshake ever succeeded with this secret.
        retried: Whether the closed socket was that immediate dial, without a handshake since.
    """
    if code != UNAUTHORIZED:
        return AfterClose.RETRY
    if reason == CloseReason.EXPIRED.value:
        # Expired twice in a row means a wrong clock: do not dial in a tight loop.
        return AfterClose.RETRY if retried else AfterClose.FRESH_TOKEN
    if not handshaken:
        return AfterClose.RETRY
    return AfterClose.TERMINAL if retried else AfterClose.FRESH_TOKEN


def backoff(
    attempt: int, chance: float, *, first: float = _FIRST_DELAY, longest: float = _LONGEST_DELAY
) -> float:
    """Seconds to wait before dialling again: doubling from `first` to `longest`, with jitter.

    Args:
        attempt: How many dials have failed since the last handshake, from 0.
        chance: A random number from 0 to 1, which takes off up to half of the delay.
    """
    delay = min(longest, first * 2.0 ** min(max(attempt, 0), 60))
    return delay * (0.5 + min(max(chance, 0.0), 1.0) / 2)


_TO_SOCKET: Final = {"https://": "wss://", "http://": "ws://"}
_TO_HTTP: Final = {"wss://": "https://", "ws://": "http://"}


def dial_url(url: str) -> str:
    """The address of the socket, from whatever form of the connector's address was configured."""
    return _scheme(_base(url), _TO_SOCKET) + "/relay"


def http_url(url: str, route: str) -> str:
    """The address of one of the connector's routes, such as `/relay/policy`."""
    return _scheme(_base(url), _TO_HTTP) + route


def read_identities(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The identities that a gateway fronts, as platform and bot id; unreadable bot ids are empty.

    One hello is sent for each. The first is the default.
    """
    named = environment.get("GATEWAY_RELAY_PLATFORMS", "").split(",")
    platforms = list(dict.fromkeys(name.strip() for name in named if name.strip()))
    try:
        bots = canonical.decode(environment.get("GATEWAY_RELAY_BOT_IDS") or "{}")
    except canonical.CanonicalError:
        bots = {}
    return tuple((name, _bot_id(bots, name)) for name in platforms or [GENERIC_PLATFORM])


def _bot_id(bots: object, platform: str) -> str:
    entry = bots.get(platform) if isinstance(bots, dict) else None
    value = entry.get("botId") if isinstance(entry, dict) else None
    return str(value).strip() if isinstance(value, (str, int)) else ""


def _base(url: str) -> str:
    scheme, separator, place = url.strip().rstrip("/").rpartition("://")
    return scheme + separator + place.removesuffix("/relay").rstrip("/")


def _scheme(url: str, schemes: Mapping[str, str]) -> str:
    for old, new in schemes.items():
        if url.lower().startswith(old):
            return new + url[len(old) :]
    return url


def _seconds(default: float, about: str) -> Any:
    return Field(default=default, gt=0, le=366 * 86_400, description=about)


def _count(default: int, about: str, *, most: int = 10_000_000) -> Any:
    return Field(default=default, ge=1, le=most, description=about)


def _bytes(default: int, about: str) -> Any:
    return Field(default=default, ge=1024, le=1 << 30, description=about)


class GatewayLimits(Section):
    """Limits of one gateway; times are in seconds."""

    handshake: float = _seconds(30.0, "how long it may take from a dial to the last descriptor")
    outbound: float = _seconds(
        30.0, "how long an agent waits for the end of an action, a reconnection included"
    )
    idle_ack: float = _seconds(
        10.0, "how long the connector may take to confirm that it buffers, before a suspend"
    )
    held: float = _seconds(
        60.0, "how long a gateway that was suspended without a hook waits before it dials again"
    )
    first_delay: float = _seconds(
        1.0, "the pause before the first dial after a failure; pauses double"
    )
    longest_delay: float = _seconds(30.0, "the longest such pause")
    near_delay: float = _seconds(
        5.0, "the longest such pause to a connector on this machine or network"
    )
    drain: float = _seconds(
        30.0, "how long turns under way may take to finish when the gateway is stopped"
    )
    ping: float = _seconds(
        20.0, "the time between two probes of the socket, and for the answer to one"
    )
    close: float = _seconds(2.0, "how long the connector may take to close a socket, too")
    request: float = _seconds(
        10.0, "how long a policy or a wake URL may take to be told to the connector"
    )
    edit: float = _seconds(
        1.0, "the shortest pause between two edits, or two messages, of one streamed reply"
    )
    typing: float = _seconds(5.0, "the time between two renewals of the typing indicator")
    turns: int = _count(64, "how many turns run at once; each session has at most one")
    attempts: int = _count(3, "how often a turn is started that the process did not survive")
    command: float = _seconds(300.0, "how long the command of `--command` may take for one event")
    command_bytes: int = _bytes(1024 * 1024, "how much that command may print for one event")
    waiting: int = _count(
        10_000, "how many events wait for their turns where they are kept in memory"
    )
    frames: int = _count(
        1024, "how many frames are read ahead of the inbox; a connector sends no more than 256"
    )
    chats: int = _count(10_000, "how many chats are remembered for messages outside a turn")
    keep: float = _seconds(
        8 * 86_400.0,
        "how long it is remembered what was handled; longer than a connector keeps events",
    )
    pending_outbound: int = _count(32, "how many actions are in progress at once")
    outbox: float = _seconds(86_400.0, "how long a stored action is tried")
    outbox_rows: int = _count(1000, "how many stored actions may wait")
    follow: float = _seconds(
        5.0, "the pause before the end of a queued action is asked for again; pauses double"
    )
    longest_follow: float = _seconds(300.0, "the longest such pause")
    followers: int = _count(4, "how many such questions are asked at once")
    request_window: float = _seconds(
        600.0, "how long a connector that does not say so recognises a repeated request"
    )
    line_bytes: int = _bytes(MAX_LINE, "the longest line that is read")
    message_bytes: int = _bytes(
        2 * MAX_LINE, "the longest WebSocket message that is read; a longer one ends the socket"
    )
    action_bytes: int = _bytes(MAX_MESSAGE, "the longest action that is sent")


_FAR: Final = 99


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """How a connection ended, or failed to begin."""

    # The close code; 0 where there was none.
    code: int
    reason: str
    # Whether its handshake had succeeded.
    handshaken: bool = False


def is_nearby(url: str) -> bool:
    """Whether a connector is on this machine or its network, judged by its URL alone."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_private
    except ValueError:
        return False


class Redial:
    """The pauses between the dials of one gateway, shorter to a connector that is `near`."""

    def __init__(self, limits: GatewayLimits, *, near: bool = False) -> None:
        self._limits = limits
        near_delay = limits.near_delay if near else limits.longest_delay
        self._longest = min(near_delay, limits.longest_delay)
        self._attempt = 0
        self._was_handshaken = False
        self._is_retry = False
        self._retried_at = float("-inf")

    def after(self, end: ConnectionEnd, *, now: float, chance: float) -> float | None:
        """Seconds to wait before the next dial; None when there is to be none."""
        if end.handshaken:
            self._attempt, self._was_handshaken, self._is_retry = 0, True, False
        step = after_close(
            end.code, end.reason, handshaken=self._was_handshaken, retried=self._is_retry
        )
        if step is AfterClose.TERMINAL:
            return None
        self._is_retry = step is AfterClose.FRESH_TOKEN
        if self._is_retry and now - self._retried_at > self._limits.longest_delay:
            self._retried_at = now
            return 0.0
        if end.code == RESTARTING and end.handshaken:
            # A planned restart: dial again soon, but not all gateways at the same moment.
            return chance * self._limits.first_delay / 2
        attempt = self._attempt
        self._attempt += 1
        if end.code == REPLACED:
            # Two gateways with one id must not replace each other all the time.
            return backoff(_FAR, chance, longest=self._limits.longest_delay)
        return self.pause(attempt, chance)

    def pause(self, attempt: int, chance: float) -> float:
        """The pause after so many failures."""
        return backoff(attempt, chance, first=self._limits.first_delay, longest=self._longest)

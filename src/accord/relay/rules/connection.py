"""How a gateway connects and reconnects: addresses, close codes and pauses.

Time and chance are arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from accord.kernel import canonical
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
    """The pauses between the dials of one gateway."""

    def __init__(
        self,
        *,
        first: float = _FIRST_DELAY,
        longest: float = _LONGEST_DELAY,
        near: float = _LONGEST_DELAY,
    ) -> None:
        self._first, self._longest = first, longest
        # The longest pause after a failure; a connector that is near is dialled again sooner.
        self._near = min(near, longest)
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
        if self._is_retry and now - self._retried_at > self._longest:
            self._retried_at = now
            return 0.0
        if end.code == RESTARTING and end.handshaken:
            # A planned restart: dial again soon, but not all gateways at the same moment.
            return chance * self._first / 2
        attempt = self._attempt
        self._attempt += 1
        if end.code == REPLACED:
            # Two gateways with one id must not replace each other all the time.
            return backoff(_FAR, chance, longest=self._longest)
        return self.pause(attempt, chance)

    def pause(self, attempt: int, chance: float) -> float:
        """The pause after so many failures."""
        return backoff(attempt, chance, first=self._first, longest=self._near)

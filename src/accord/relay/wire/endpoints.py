"""Where a gateway dials, and as whom: what its few settings mean.

Owns the derivation of addresses and identities. It reads no environment: that is an argument.
"""

from collections.abc import Mapping
from typing import Final

from accord.kernel import canonical
from accord.relay.wire.source import GENERIC_PLATFORM

_TO_SOCKET: Final = {"https://": "wss://", "http://": "ws://"}
_TO_HTTP: Final = {"wss://": "https://", "ws://": "http://"}


def dial_url(url: str) -> str:
    """The address of the socket, from whatever form of the connector's address was configured."""
    return _scheme(_base(url), _TO_SOCKET) + "/relay"


def http_url(url: str, route: str) -> str:
    """The address of one of the connector's routes, such as `/relay/policy`."""
    return _scheme(_base(url), _TO_HTTP) + route


def identities(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The identities that a gateway fronts, as platform and bot id; the first is the default.

    One hello is sent for each. Bot ids that cannot be read are empty.
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

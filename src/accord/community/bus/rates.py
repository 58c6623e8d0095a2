"""Rates: how often an address or a caller may come.

Pure: time is an argument. Each key costs one number, the moment at which its bucket is full again,
and only the keys that came last are remembered, so that no crowd of strangers fills the memory.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

_SLACK: Final = 1e-9
# What a proxy adds: then whoever asks is not who is connected.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


@dataclass(frozen=True, slots=True)
class Limits:
    """How many calls a second are served.

    Attributes:
        per_capability: Of one capability to one caller.
        per_caller: In all to one caller.
        hard: How many times `per_caller` one address may send, before anything is verified.
        remembered: How many addresses and callers are remembered.
    """

    per_capability: float = 10.0
    per_caller: float = 100.0
    hard: float = 10.0
    remembered: int = 8192


class Buckets:
    """A token bucket for each key; it holds the tokens of one second.

    Args:
        rate: Tokens a second, at least one.
        remembered: How many keys are kept; the one not seen for longest is forgotten first.
    """

    def __init__(self, rate: float, remembered: int) -> None:
        self._interval = 1.0 / rate
        self._tolerance = 1.0 - self._interval + _SLACK
        self._remembered = remembered
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, key: Hashable, now: float) -> float:
        """Seconds until a token is there; 0 when there is one."""
        ahead = self._full_at.get(key, now) - now
        return ahead - self._tolerance if ahead > self._tolerance else 0.0

    def take(self, key: Hashable, now: float) -> None:
        """Take the token that `wait` found."""
        self._full_at[key] = max(self._full_at.get(key, now), now) + self._interval
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._remembered:
            self._full_at.popitem(last=False)


class Rates:
    """The three limits of a bus. Each answers in seconds to wait, 0 when the call is admitted."""

    def __init__(self, limits: Limits) -> None:
        self._addresses = Buckets(limits.per_caller * limits.hard, limits.remembered)
        self._callers = Buckets(limits.per_caller, limits.remembered)
        self._uses = Buckets(limits.per_capability, 4 * limits.remembered)

    def __len__(self) -> int:
        return len(self._addresses) + len(self._callers) + len(self._uses)

    def address(self, host: str, now: float) -> float:
        """Count a request from an address."""
        key = address_key(host)
        wait = self._addresses.wait(key, now)
        if not wait:
            self._addresses.take(key, now)
        return wait

    def caller(self, node_id: str, capability: str | None, now: float) -> float:
        """Count a call, or a request to another path; one that is refused costs nothing."""
        use = (node_id, capability)
        wait = self._callers.wait(node_id, now)
        if capability is not None:
            wait = max(wait, self._uses.wait(use, now))
        if wait:
            return wait
        self._callers.take(node_id, now)
        if capability is not None:
            self._uses.take(use, now)
        return 0.0


def address_key(host: str) -> str:
    """What counts as one address: IPv6 is handed out by /64, so that is one."""
    if ":" not in host:
        return host
    try:
        packed = ipaddress.IPv6Address(host.partition("%")[0]).packed
    except ValueError:
        return host
    return packed[:8].hex()


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_from_here(host: str, headers: Mapping[str, str]) -> bool:
    """Whether a request was made on this machine; one that a proxy here passes on was not.

    Args:
        host: The address that is connected.
        headers: Those of the request, by small names.
    """
    return is_loopback(host) and not any(name in headers for name in _FORWARDED)

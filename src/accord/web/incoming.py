"""Incoming requests: whose they are, their bodies, and how often one may ask.

`X-Forwarded-For` is read from its end: the first address that is not a trusted proxy's is the
client's. Without a trusted proxy it is ignored. Bodies have a limit of bytes and time: slow senders
hold a socket and a task, so a body has a deadline, which arriving bytes extend only at a minimum
rate. Rates are limited by token buckets, in bounded memory.
"""

import asyncio
import ipaddress
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

# Headers that a proxy adds; then the connected address is not the client's.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_HEADER = b"x-forwarded-for"


def address_key(host: str) -> str:
    """Return the key of an address for limits: an IPv6 /64 network, or a mapped IPv4 address."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped) if address.ipv4_mapped else address.packed[:8].hex()


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_from_here(host: str, headers: Mapping[str, str]) -> bool:
    """Whether a request was made on this machine and not passed on by a proxy here."""
    return is_loopback(host) and not any(name in headers for name in _FORWARDED)


def is_own_name(host: str, names: Collection[str] = (), *, is_reached_from_afar: bool) -> bool:
    """Whether a server may answer for the name in a request's `Host`, against DNS rebinding.

    Accepted are addresses and own names, which another site cannot claim.

    `names` are further ones, in lower case and without a port. If other machines reach the server,
    names without a dot, which belong to their network, are accepted too.
    """
    name = _PORT.sub("", host.strip().lower())
    if not name or name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return is_reached_from_afar and re.fullmatch(r"[a-z0-9_-]{1,63}", name) is not None
    return True


class TrustedProxies:
    """ASGI middleware that sets the client's address; `networks` are the proxies' ranges."""

    def __init__(self, app: ASGIApp, networks: Sequence[Network]) -> None:
        self._app = app
        self._networks = networks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set the client's address and call the application."""
        if self._networks and scope["type"] in ("http", "websocket") and scope.get("client"):
            host, port = scope["client"]
            said = [value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER]
            client = client_of(host, said, self._networks)
            scope = {**scope, "client": (client, port if client == host else 0)}
        await self._app(scope, receive, send)


def client_of(peer: str, said: Iterable[str], networks: Sequence[Network]) -> str:
    """The client's address; `said` are the `X-Forwarded-For` headers, `networks` the proxies'."""
    believed = _address(peer)
    if believed is None:
        return peer
    steps = ",".join(said).split(",")
    while any(believed in network for network in networks) and steps:
        before = _address(steps.pop())
        if before is None:
            break  # a proxy that writes no address is the last one that is known
        believed = before
    return str(believed)


def _address(text: str) -> Address | None:
    """Parse an address as proxies write it: alone, or with a port."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


# Enough for a form or a small object over any line.
SECONDS: Final = 10.0


class BodyError(AccordError):
    """A body that is too long, too slow or incomplete; `status` is the HTTP status."""

    def __init__(self, what: str, *, mend: str | None = None, status: int = 400) -> None:
        super().__init__(what, mend=mend)
        self.status = status


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a body."""

    most: int  # bytes of the whole body
    seconds: float = SECONDS  # until the body must be complete
    rate: int = 0  # bytes that extend the deadline by a second; 0 for no extension


async def read(request: Request, limits: BodyLimits) -> bytes:
    """Read a whole body, or raise `BodyError`: too long (413), slow (408), incomplete (400)."""
    async with aclosing(parts(request, limits)) as arriving:
        return b"".join([part async for part in arriving])


async def parts(request: Request, limits: BodyLimits) -> AsyncGenerator[bytes, None]:
    """Yield a body as it arrives; close the generator to drop the rest.

    Raises:
        BodyError: As `read`; a declared length is checked before anything is read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared[:20]) > limits.most:
        raise _too_long(limits)
    begun = asyncio.get_running_loop().time()
    count = 0
    async with aclosing(request.stream()) as stream:
        while True:
            earned = count / limits.rate if limits.rate else 0.0
            try:
                async with asyncio.timeout_at(begun + limits.seconds + earned):
                    part = await anext(stream, None)
            except TimeoutError:
                raise BodyError(
                    "the body did not arrive in time", mend="send it again, faster", status=408
                ) from None
            except ClientDisconnect:
                raise BodyError("the body broke off", mend="send it again") from None
            if part is None:
                return
            count += len(part)
            if count > limits.most:
                raise _too_long(limits)
            if part:
                yield part


def _too_long(limits: BodyLimits) -> BodyError:
    return BodyError(f"a body has at most {limits.most} bytes", mend="send less", status=413)


_SLACK: Final = 1e-9
_MOST_KEYS: Final = 10_000


class TokenBuckets:
    """A token bucket for each key; pure, as time is an argument.

    A key costs one number, the time when its bucket is full again. The `remembered` most recent
    keys are kept. A bucket holds `burst` tokens, by default those of one second.
    """

    def __init__(self, rate: float, remembered: int, burst: float | None = None) -> None:
        self._interval = 1.0 / rate
        self._tolerance = ((rate if burst is None else burst) - 1.0) * self._interval + _SLACK
        self._remembered = remembered
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until a token is available; 0 if there is one."""
        ahead = self._full_at.get(key, now) - now
        return ahead - self._tolerance if ahead > self._tolerance else 0.0

    def take(self, key: Hashable, now: float) -> None:
        """Take the token that `wait` found."""
        self._full_at[key] = max(self._full_at.get(key, now), now) + self._interval
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._remembered:
            self._full_at.popitem(last=False)

    def full_at(self, key: Hashable) -> float:
        """Return when the bucket of a key that was loaded or taken from is full."""
        return self._full_at[key]

    def load(self, key: Hashable, full_at: float) -> None:
        """Set when the bucket of a key is full, as it was stored."""
        self._full_at[key] = full_at

    def keep(self, key: Hashable) -> None:
        """Remember a key that was refused as if it had just been served."""
        self._full_at.move_to_end(key)


class RateLimiter:
    """Lets each key act `burst` times at once, and `per_minute` times a minute in the long run."""

    def __init__(self, clock: Clock, *, per_minute: float, burst: int) -> None:
        self._clock = clock
        self._buckets = TokenBuckets(per_minute / 60, _MOST_KEYS, burst)

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, key: str) -> float:
        """Take one token: 0 when there was one, else the seconds until there is one."""
        now = self._clock.monotonic()
        if seconds := self._buckets.wait(key, now):
            self._buckets.keep(key)
        else:
            self._buckets.take(key, now)
        return seconds

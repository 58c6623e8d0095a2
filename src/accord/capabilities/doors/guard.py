"""Who may use the local APIs: clients on this machine with the token, and holders of keys.

A web page in a local browser has neither, and its Host header is refused. Other machines come by
the listener for the home network, with a key that is made for it.
"""

import hmac
import ipaddress
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from accord.capabilities.doors.errors import OpenAiError, closed_door, error_response
from accord.capabilities.doors.keys import DoorKeys
from accord.capabilities.doors.rules import OWNER, Door, DoorKey, DoorScope
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock
from accord.kernel.files import sync_folder
from accord.telemetry.metrics import family
from accord.web.incoming import RateLimiter, TokenBuckets, address_key, is_from_here

_BEARER: Final = "bearer "
_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT: Final = re.compile(r":[0-9]{1,5}\Z")
_LEAST: Final = 16
_OTHERS: Final = 0o077
_MOST_KEYS: Final = 1000
# Wrong keys of one address of the home network.
_WRONG_PER_MINUTE: Final = 30
_BUSY_MS: Final = 1000
_HOME: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "127.0.0.0/8",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "169.254.0.0/16",
            "::1/128",
            "fe80::/10",
            "fc00::/7",
        ),
    )
)
SCOPE: Final = "accord.door"
"""Where the ASGI scope holds the `DoorScope` of a request."""


def door_token(file: Path) -> str:
    """Read the token of the local APIs from its file; create it on first use with mode 0600.

    Raises:
        CommunityError: The file is unusable, readable by others, or its token too short.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_token(file)
        token = file.read_text("ascii").strip()
        is_open = bool(file.stat().st_mode & _OTHERS)
    except (OSError, ValueError) as error:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the token of the local APIs cannot be read or created ({error})",
            where=str(file),
            mend="let this user own the folder, or remove the file",
        ) from error
    if is_open or len(token) < _LEAST:
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the token of the local APIs {'can be read by others' if is_open else 'is too short'}",
            where=str(file),
            mend="remove the file, and a new one is made",
        )
    return token


def _make_token(file: Path) -> None:
    """Write a new token atomically unless the file exists."""
    if file.exists():
        return
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(secrets.token_urlsafe(32) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process was first
    finally:
        draft.unlink()
    sync_folder(file.parent)


@dataclass(eq=False, repr=False)
class DoorAccess:
    """The token and the keys, with what they use at the moment.

    Args:
        token: The local token, which opens everything and only to this machine.
    """

    token: str
    keys: DoorKeys
    clock: Clock
    _running: Counter[str] = field(default_factory=Counter, init=False)
    _rates: dict[str, tuple[int, TokenBuckets]] = field(default_factory=dict, init=False)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _wrong: RateLimiter = field(init=False)

    def __post_init__(self) -> None:
        self._wrong = RateLimiter(self.clock, per_minute=_WRONG_PER_MINUTE, burst=_WRONG_PER_MINUTE)

    def collect(self) -> Iterator[Metric]:
        """All metric families."""
        yield family("accord_door_requests_total", self._counts)

    def is_owner(self, bearer: str) -> bool:
        """Whether this is the local token."""
        return hmac.compare_digest(bearer.encode(), self.token.encode())

    def key(self, bearer: str) -> DoorKey | None:
        """The key with this secret."""
        return self.keys.find(bearer, self.clock.now())

    def count(self, door: Door, outcome: str) -> None:
        """Count a request."""
        self._counts[door.value, outcome] += 1

    def blocked(self, address: str) -> bool:
        """Count a wrong key; whether this address has shown too many of them."""
        return self._wrong.wait(address_key(address)) > 0

    def begin(self, key: DoorKey) -> None:
        """Take a place of a key, or raise for its limits; `end` gives it back."""
        scope = key.scope
        if scope.at_once is not None and self._running[key.id] >= scope.at_once:
            raise _limited(f"This key takes {scope.at_once} requests at once.", _BUSY_MS)
        if scope.per_minute is not None:
            wait = self._wait(key.id, scope.per_minute)
            if wait > 0:
                raise _limited(
                    f"This key takes {scope.per_minute} requests a minute.", int(wait * 1000) + 1
                )
        self._running[key.id] += 1

    def end(self, key: DoorKey) -> None:
        """Give back the place of a request."""
        self._running[key.id] -= 1
        if not self._running[key.id]:
            del self._running[key.id]

    def _wait(self, key_id: str, per_minute: int) -> float:
        known = self._rates.get(key_id)
        if known is None or known[0] != per_minute:
            while len(self._rates) >= _MOST_KEYS:
                del self._rates[next(iter(self._rates))]
            known = self._rates[key_id] = per_minute, TokenBuckets(per_minute / 60, 1, per_minute)
        now = self.clock.monotonic()
        wait = known[1].wait(key_id, now)
        if not wait:
            known[1].take(key_id, now)
        return wait


@dataclass(eq=False, repr=False)
class DoorGuard:
    """ASGI middleware that checks address, Host header, and token or key.

    Args:
        network: Whether it stands on the listener for the home network, which takes only keys
            that are made for it.
    """

    app: ASGIApp
    access: DoorAccess
    door: Door
    network: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then call the application."""
        try:
            key = self._admit(scope)
            if key is not None:
                self.access.begin(key)
        except CommunityError as error:
            is_limit = error.code is Code.RATE_LIMITED
            self.access.count(self.door, "limited" if is_limit else "refused")
            await error_response(error)(scope, receive, send)
            return
        self.access.count(self.door, "admitted")
        try:
            opened: DoorScope = OWNER if key is None else key.scope
            await self.app({**scope, SCOPE: opened}, receive, send)
        finally:
            if key is not None:
                self.access.end(key)

    def _admit(self, scope: Scope) -> DoorKey | None:
        """The key of a request, None for the local token; or raise."""
        headers = Headers(scope=scope)
        client = (scope.get("client") or ("", 0))[0]
        host = _PORT.sub("", headers.get("host", "").lower())
        if self.network:
            if not _is_at_home(client):
                raise _refused("This API answers machines of the home network only.")
        elif not is_from_here(client, headers) or host not in _NAMES:
            raise CommunityError(
                Code.UNAUTHORIZED,
                "this API answers clients on this machine only",
                mend="use http://127.0.0.1 or http://localhost with the station's port",
            )
        shown = headers.get("authorization", "")
        given = shown[len(_BEARER) :] if shown[: len(_BEARER)].lower() == _BEARER else ""
        bearer = given.strip()
        if not self.network and self.access.is_owner(bearer):
            return None
        key = self.access.key(bearer)
        if key is None:
            if self.network and self.access.blocked(client):
                raise _limited("Too many wrong keys came from this address.", 60_000)
            raise self._wrong_key()
        if self.network and not key.scope.network:
            raise closed_door("home network")
        if self.door not in key.scope.doors:
            raise closed_door(self.door.value)
        return key

    def _wrong_key(self) -> CommunityError:
        if self.network:
            return _refused("This API requires a key that is made for the home network.")
        return CommunityError(
            Code.UNAUTHORIZED,
            "this API requires the local token or a key",
            mend="send the content of the station's keys/door.token, or what "
            "`accord door-key new` has printed, as API key",
        )


def scope_of(scope: Scope) -> DoorScope:
    """What the holder of a request's key may do."""
    found: DoorScope = scope[SCOPE]
    return found


def _refused(what: str) -> OpenAiError:
    return OpenAiError(Code.UNAUTHORIZED, what, param=None, openai_code="invalid_api_key")


def _limited(what: str, milliseconds: int) -> OpenAiError:
    return OpenAiError(
        Code.RATE_LIMITED,
        what,
        param=None,
        openai_code="rate_limit_exceeded",
        details={"retry_after_ms": milliseconds},
    )


def _is_at_home(address: str) -> bool:
    """Whether an address is this machine's, or one of a network that is not the internet."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    plain = getattr(found, "ipv4_mapped", None) or found
    return any(plain in network for network in _HOME)

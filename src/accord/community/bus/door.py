"""Who comes in: the first six checks, which every signed request passes, call or not.

Owns reading a body within its limits of size and time, and what is known of a request while it is
checked. It never looks at what the request asks for.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from starlette.requests import Request as HttpRequest

from accord.community.bus import checks
from accord.community.bus.answering import Visit
from accord.community.bus.checks import Commons
from accord.community.bus.legacy import Legacy, Stranger, is_flat
from accord.community.bus.presence import GoneError
from accord.community.bus.rates import Rates, is_loopback
from accord.community.bus.settings import BusSettings
from accord.community.envelope import calls, headers
from accord.community.envelope.calls import Request
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.ulid import is_ulid

_MAX_HEADERS: Final = 64
_MAX_HEADER_BYTES: Final = 16 * 1024
# A longer body is read beside the event loop, which serves others meanwhile.
_LONG: Final = 64 * 1024
_REQUEST_ID: Final = headers.REQUEST_ID.lower().encode()


@dataclass(frozen=True, slots=True)
class Guest:
    """A caller whose request passed the door.

    Attributes:
        request: What was signed.
        commons: The community in which it speaks.
        level: How far that trusts the caller.
        own: Whether it is this node's own client on this machine.
        body: The JSON value, or bytes where the route takes bytes; None where there is no body.
    """

    request: Request
    commons: Commons | None
    level: Level
    own: bool
    body: Any


_Reader: TypeAlias = Callable[[bytes], tuple[Request, Any]]


class Door:
    """Checks requests as they come in."""

    def __init__(
        self,
        node_id: str,
        clock: Clock,
        rates: Rates,
        communities: Mapping[str, Commons],
        settings: BusSettings,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._rates = rates
        self._communities = communities
        self._settings = settings
        self._stranger = Stranger(settings.legacy, clock)
        self._unverified = 0

    async def admit(self, http: HttpRequest, visit: Visit) -> Guest:
        """Let a bus call in.

        Raises:
            CommunityError: The first check that refuses it.
        """
        sent = http.scope["headers"]
        if self._settings.legacy is not Legacy.OFF and is_flat(sent):
            return await self._let_stranger_in(http, visit)

        def read(raw: bytes) -> tuple[Request, Any]:
            body = _json(raw)
            if not isinstance(body, dict):
                raise CommunityError(Code.BAD_REQUEST, "the body of a call is a JSON object")
            return calls.read_request(sent, body), body

        return await self._let_in(http, visit, read)

    async def admit_path(
        self, http: HttpRequest, visit: Visit, *, opaque: bool = False, strangers: bool = False
    ) -> Guest:
        """Let a signed request to another path in.

        Args:
            http: The request.
            visit: What is known of it.
            opaque: Whether its body is bytes instead of JSON.
            strangers: Whether those who are no members may come in; the route then looks itself.

        Raises:
            CommunityError: The first check that refuses it.
        """
        scope = http.scope
        path = scope.get("raw_path", b"") or scope["path"].encode()
        query = scope["query_string"].decode("ascii", "replace")

        def read(raw: bytes) -> tuple[Request, Any]:
            if not raw:
                body, signed = None, calls.NO_BODY
            elif opaque:
                body, signed = raw, calls.opaque(raw)
            else:
                body = signed = _json(raw)
            request = calls.read_path_request(
                scope["headers"], path=path.decode("ascii", "replace"), query=query, body=signed
            )
            return request, body

        return await self._let_in(http, visit, read, strangers=strangers)

    async def _let_in(
        self, http: HttpRequest, visit: Visit, read: _Reader, *, strangers: bool = False
    ) -> Guest:
        try:
            raw = await self._receive(http, visit)
            request, body = await self._open(visit, raw, read)
        finally:
            self._unverified -= visit.size
        return self._know(http, visit, request, body, strangers=strangers)

    async def _let_stranger_in(self, http: HttpRequest, visit: Visit) -> Guest:
        try:
            raw = await self._receive(http, visit)
        finally:
            self._unverified -= visit.size
        visit.check = checks.SIGNATURE
        self._stranger.check(http.client.host if http.client else "", http.headers)
        visit.check = checks.HEADERS
        request, body = self._stranger.read(_json(raw), self._communities)
        visit.know(request)
        visit.check = checks.MEMBERSHIP
        commons = self._communities.get(request.community)
        if commons is None:
            raise CommunityError(Code.NOT_FOUND, "this node is not in that community")
        return Guest(request, commons, Level.MEMBER, False, body)

    async def _receive(self, http: HttpRequest, visit: Visit) -> bytes:
        sent: list[tuple[bytes, bytes]] = http.scope["headers"]
        ids = [value for name, value in sent if name == _REQUEST_ID]
        if len(ids) == 1 and is_ulid(text := ids[0].decode("ascii", "replace")):
            visit.request_id = text
        visit.check, visit.unread = checks.SIZE, True
        most = self._settings.max_body
        declared = http.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > most:
            raise _too_long(most)
        visit.check = checks.ADDRESS_RATE
        host = http.client.host if http.client else ""
        if not is_loopback(host) and (wait := self._rates.address(host, self._clock.monotonic())):
            raise rate_limited("this address", wait)
        visit.check = checks.SIZE
        raw = await self._read_body(http, visit)
        visit.unread = False
        visit.check = checks.HEADERS
        size = sum(len(name) + len(value) for name, value in sent)
        if len(sent) > _MAX_HEADERS or size > _MAX_HEADER_BYTES:
            raise CommunityError(
                Code.BAD_REQUEST,
                f"a request has at most {_MAX_HEADERS} headers of {_MAX_HEADER_BYTES} bytes in all",
            )
        return raw

    async def _read_body(self, http: HttpRequest, visit: Visit) -> bytes:
        chunks: list[bytes] = []
        seconds = self._settings.body_seconds
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await http.receive()
                    if message["type"] == "http.disconnect":
                        raise GoneError
                    chunks.append(message.get("body", b""))
                    self._hold(visit, len(chunks[-1]))
                    if not message.get("more_body", False):
                        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        except TimeoutError:
            raise CommunityError(
                Code.TIMEOUT, f"the body did not arrive within {seconds:g} seconds"
            ) from None

    def _hold(self, visit: Visit, size: int) -> None:
        visit.size += size
        self._unverified += size
        if visit.size > self._settings.max_body:
            raise _too_long(self._settings.max_body)
        if self._unverified > self._settings.max_unverified:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "too much is being sent to this node",
                details={"retry_after_ms": 1000},
            )

    async def _open(self, visit: Visit, raw: bytes, read: _Reader) -> tuple[Request, Any]:
        def open_it() -> tuple[Request, Any]:
            request, body = read(raw)
            visit.know(request)
            visit.check = checks.SIGNATURE
            calls.verify_request(request, self._node_id)
            return request, body

        return open_it() if len(raw) <= _LONG else await asyncio.to_thread(open_it)

    def _know(
        self, http: HttpRequest, visit: Visit, request: Request, body: Any, *, strangers: bool
    ) -> Guest:
        caller = request.caller
        commons = self._communities.get(request.community)
        required = self._settings.require_to or (
            commons is not None and commons.requires_to(caller)
        )
        checks.check_recipient(request, required=required)
        visit.check = checks.FRESHNESS
        headers.check_fresh(request.timestamp, self._clock.now())
        visit.check = checks.MEMBERSHIP
        level = Level.UNKNOWN
        if not strangers:
            commons, level = checks.check_membership(commons, caller)
        elif commons is not None:
            level = commons.level_of(caller)
        own = caller == self._node_id and http.client is not None and is_loopback(http.client.host)
        return Guest(request, commons, level, own, body)


def rate_limited(who: str, wait: float) -> CommunityError:
    """The refusal of somebody who comes too often."""
    return CommunityError(
        Code.RATE_LIMITED,
        f"{who} calls too often",
        details={"retry_after_ms": int(wait * 1000) + 1},
    )


def _json(raw: bytes) -> Any:
    try:
        return canonical.decode(raw)
    except canonical.CanonicalError as error:
        raise CommunityError(Code.BAD_REQUEST, f"the body is not strict JSON: {error}") from None


def _too_long(most: int) -> CommunityError:
    return CommunityError(
        Code.BAD_REQUEST, f"a body is at most {most} bytes", mend="send large content as a file"
    )

"""A request and its answer: the checks that every signed request passes, and what is signed.

Admission makes the first six checks of `rules.checks`, and limits rates per address and caller.
Unsigned calls are admitted only where the operator allows them. Answers and refusals are those of
sections 5.2 and 5.4.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

import structlog
from blake3 import blake3
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import checks, wire
from accord.community.rules.checks import SIZE, CallCheck, CommunityFacts
from accord.community.rules.formats import Level
from accord.community.rules.wire import Named, SignedRequest
from accord.community.settings import BusSettings, RateLimits, UnsignedCalls
from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.kernel.identifiers import Trace, UlidSource, is_ulid
from accord.kernel.signing import SigningKey
from accord.web import sse
from accord.web.incoming import TokenBuckets, address_key, is_from_here, is_loopback

_log = structlog.stdlib.get_logger(__name__)

_MESSAGE: Final = 500
_LINGER_SECONDS: Final = 1.0


@dataclass(slots=True)
class RequestContext:
    """What is known of a request so far; enough to sign its answer.

    Attributes:
        started: Arrival time, by the monotonic clock.
        check: The check in progress; None once all are passed.
        unread: Whether part of the body is unread, so that the connection must be closed.
        refused: The code of the refusal, if there was one.
        trace: The trace of the call. It is not signed, so no decision depends on it.
    """

    started: float
    check: CallCheck | None = SIZE
    request_id: str | None = None
    request: SignedRequest | None = None
    digest: str | None = None
    size: int = 0
    unread: bool = False
    refused: Code | None = None
    trace: Trace | None = None

    def know(self, request: SignedRequest) -> None:
        """Set the request that was read."""
        self.request_id, self.request, self.digest = request.request_id, request, request.digest


@dataclass(frozen=True, slots=True)
class SignedAnswer:
    """A signed answer that can be sent, also repeatedly."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def size(self) -> int:
        """The length of its body."""
        return len(self.content)

    @property
    def digest(self) -> str:
        """BLAKE3 of its body."""
        return f"blake3:{blake3(self.content).hexdigest()}"

    def response(self) -> Response:
        """The answer as a Starlette response."""
        made = _LingeringResponse if "Connection" in self.headers else Response
        return made(self.content, self.status, dict(self.headers))


class _LingeringResponse(Response):
    """A response to a request that is still being sent.

    Closing at once would reset the connection and the client would lose the answer, so the rest of
    the body is read and dropped for a moment.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True, slots=True)
class SentAnswer:
    """Size and digest of an answer that is not stored."""

    status: int
    size: int
    digest: str


class AnswerSigner:
    """Signs answers with the node's key."""

    def __init__(self, key: SigningKey, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        self.node_id = key.id

    def sign(self, visit: RequestContext, status: int, body: Any) -> dict[str, str]:
        """The signature headers for a body, which is JSON or `opaque` of other bytes."""
        request = visit.request
        return wire.sign_response(
            self._key,
            request_id=visit.request_id,
            request_digest=visit.digest,
            to=request.caller if request else None,
            timestamp=format_time(self._clock.now()),
            status=status,
            body=body,
        )

    def answer(self, visit: RequestContext, body: Any, status: int = 200) -> SignedAnswer:
        """Sign a JSON body; raises if it has no canonical form, which is a bug of this node."""
        try:
            content = canonical.encode(body)
        except canonical.CanonicalError as error:
            _log.error("an answer is not JSON", error=str(error), request_id=visit.request_id)
            raise internal_failure() from None
        headers = self.sign(visit, status, body) | {"Content-Type": "application/json"}
        if visit.unread:
            headers["Connection"] = "close"
        return SignedAnswer(status, headers, content)

    def opaque(self, visit: RequestContext, content: bytes) -> SignedAnswer:
        """Sign bytes that are not JSON."""
        headers = self.sign(visit, 200, wire.opaque(content))
        return SignedAnswer(200, headers | {"Content-Type": "application/octet-stream"}, content)

    def refusal(self, visit: RequestContext, error: CommunityError) -> SignedAnswer:
        """Sign an error."""
        visit.refused = error.code
        return self.answer(visit, error_body(error), error.code.status)


def error_body(error: CommunityError) -> dict[str, Any]:
    """An error as JSON; only its code, if its details are not JSON."""
    body = {**error.details, "error": error.code.value, "message": str(error)[:_MESSAGE]}
    try:
        canonical.encode(body)
    except canonical.CanonicalError:
        return {"error": error.code.value}
    return body


def storage_failure() -> CommunityError:
    """The error for a call that cannot be stored and is therefore not run."""
    return CommunityError(
        Code.CAPACITY_EXCEEDED,
        "the node cannot store anything now",
        mend="try again later; `accord doctor` on that node says why",
        details={"retry_after_ms": 5000},
    )


def internal_failure() -> CommunityError:
    """The error for a bug of this node; it tells nothing of the cause."""
    return CommunityError(Code.INTERNAL_ERROR, "the node failed to do this; its log says why")


_PREFIX: Final = b"x-hearthnet-"
_OF_BROWSERS: Final = ("origin", "sec-fetch-site")
_UNSIGNED_MEMBERS: Final = frozenset(
    {"capability", "version", "community", "params", "input", "stream"}
)


def is_unsigned(raw: list[tuple[bytes, bytes]]) -> bool:
    """Whether a request has none of the protocol's headers."""
    return not any(name.lower().startswith(_PREFIX) for name, _ in raw)


class UnsignedCaller:
    """The common identity of all unsigned calls."""

    def __init__(self, legacy: UnsignedCalls, clock: Clock) -> None:
        self._legacy = legacy
        self._clock = clock
        self._key = SigningKey.generate()
        self._ids = UlidSource(clock)

    def check(self, host: str, headers: Mapping[str, str]) -> None:
        """Raise `invalid_signature` unless unsigned calls are allowed from this host.

        A browser is refused, which any web page could make send such a call; it names its page.
        """
        is_page = any(name in headers for name in _OF_BROWSERS)
        is_near = self._legacy is UnsignedCalls.LOOPBACK and is_from_here(host, headers)
        if not is_page and (is_near or self._legacy is UnsignedCalls.ANYWHERE):
            return
        raise CommunityError(Code.INVALID_SIGNATURE, "the request is not signed")

    def read(
        self, body: Any, communities: Mapping[str, Any]
    ) -> tuple[SignedRequest, dict[str, Any]]:
        """Read a flat call, in the community that it names or in the only one."""
        if not isinstance(body, dict) or not body.keys() <= _UNSIGNED_MEMBERS:
            raise bad_request(f"expected an object of {', '.join(sorted(_UNSIGNED_MEMBERS))}")
        community = body.get("community") or next(iter(communities), None)
        named = (body.get("capability"), body.get("version", "1.0"), community)
        if not all(isinstance(each, str) for each in named):
            raise bad_request("capability, version and community are texts")
        capability, version, community = (str(each) for each in named)
        said = {"params": body.get("params", {}), "input": body.get("input", {})}
        request = wire.sign_request(
            self._key,
            capability=capability,
            version=version,
            request_id=self._ids.new(),
            community=community,
            timestamp=format_time(self._clock.now()),
            body=said,
        )
        return request, said


class Rates:
    """The three rate limits of a bus. Each returns seconds to wait, 0 if the call is admitted."""

    def __init__(self, limits: RateLimits) -> None:
        self._addresses = TokenBuckets(limits.per_caller * limits.hard, limits.remembered)
        self._callers = TokenBuckets(limits.per_caller, limits.remembered)
        self._uses = TokenBuckets(limits.per_capability, 4 * limits.remembered)

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
        """Count a call, or a request to another path; a refused one costs nothing."""
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


class SenderClaim(Enum):
    """Who a sender claims to be, before its signature is checked."""

    OWNER = "owner"
    MEMBER = "member"
    STRANGER = "stranger"


class Sender(NamedTuple):
    """The origin of a body that is not verified yet."""

    claim: SenderClaim
    address: str
    caller: str | None


class UnverifiedBytes:
    """Limits the bytes held of bodies that are not verified yet.

    Strangers, claimed members and the owner have separate room. A claim may be false, so no address
    and no claimed id may fill the room of members.
    """

    def __init__(self, *, members: int, strangers: int, stranger_body: int) -> None:
        self._most = {
            SenderClaim.OWNER: (members // 4, members // 4),
            SenderClaim.MEMBER: (members, members // 4),
            SenderClaim.STRANGER: (strangers, 2 * stranger_body),
        }
        self._held: Counter[tuple[SenderClaim, str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, sender: Sender, size: int) -> bool:
        """Hold more bytes of a sender; False if there is no room."""
        most, most_each = self._most[sender.claim]
        total, *each = keys = _keys(sender)
        for key in keys:
            self._held[key] += size
        return self._held[total] <= most and all(self._held[key] <= most_each for key in each)

    def remove(self, sender: Sender, size: int) -> None:
        """Release bytes."""
        for key in _keys(sender):
            self._held[key] -= size
            if self._held[key] <= 0:
                del self._held[key]


def _keys(sender: Sender) -> list[tuple[SenderClaim, str, str]]:
    keys = [(sender.claim, "", ""), (sender.claim, "address", address_key(sender.address))]
    if sender.caller is not None:
        keys.append((sender.claim, "caller", sender.caller))
    return keys


_MAX_HEADERS: Final = 64
_MAX_HEADER_BYTES: Final = 16 * 1024
# A longer body is parsed in a thread.
_LONG: Final = 64 * 1024
_EVERY: Final = (
    wire.REQUEST_ID,
    wire.FROM,
    wire.COMMUNITY,
    wire.TIMESTAMP,
    wire.SIGNATURE,
)
_REQUEST_ID: Final = wire.REQUEST_ID.lower().encode()


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that passed admission.

    Attributes:
        level: The caller's trust level in the community.
        own: Whether it is from this node's own client on this machine.
        body: The JSON value, or bytes where the route takes bytes; None without a body.
    """

    request: SignedRequest
    community: CommunityFacts | None
    level: Level
    own: bool
    body: Any


_Reader: TypeAlias = Callable[[Named, bytes], tuple[SignedRequest, Any]]


class Admission:
    """Checks incoming requests."""

    def __init__(
        self,
        node_id: str,
        clock: Clock,
        rates: Rates,
        communities: Mapping[str, CommunityFacts],
        settings: BusSettings,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._rates = rates
        self._communities = communities
        self._settings = settings
        self._stranger = UnsignedCaller(settings.legacy, clock)
        self._unverified = UnverifiedBytes(
            members=settings.max_unverified,
            strangers=16 * settings.max_stranger_body,
            stranger_body=settings.max_stranger_body,
        )

    async def admit(self, http: HttpRequest, visit: RequestContext) -> AdmittedRequest:
        """Admit a bus call, or raise the error of the first check that refuses it."""
        if self._settings.legacy is not UnsignedCalls.OFF and is_unsigned(http.scope["headers"]):
            return await self._let_stranger_in(http, visit)

        def read(named: Named, raw: bytes) -> tuple[SignedRequest, Any]:
            body = _json(raw)
            if not isinstance(body, dict):
                raise bad_request("the body of a call is a JSON object")
            return wire.read_request(named, body), body

        return await self._let_in(http, visit, read)

    async def admit_path(
        self,
        http: HttpRequest,
        visit: RequestContext,
        *,
        opaque: bool = False,
        strangers: bool = False,
    ) -> AdmittedRequest:
        """Admit a signed request to another path, or raise the error of the first failing check.

        Args:
            opaque: Whether its body is bytes instead of JSON.
            strangers: Whether non-members are admitted; the route then checks them itself.
        """
        scope = http.scope
        path = scope.get("raw_path", b"") or scope["path"].encode()
        query = scope["query_string"].decode("ascii", "replace")

        def read(named: Named, raw: bytes) -> tuple[SignedRequest, Any]:
            if not raw:
                body, signed = None, wire.NO_BODY
            elif opaque:
                body, signed = raw, wire.opaque(raw)
            else:
                body = signed = _json(raw)
            request = wire.read_path_request(
                named, path=path.decode("ascii", "replace"), query=query, body=signed
            )
            return request, body

        return await self._let_in(http, visit, read, strangers=strangers)

    async def _let_in(
        self, http: HttpRequest, visit: RequestContext, read: _Reader, *, strangers: bool = False
    ) -> AdmittedRequest:
        self._approach(http, visit)
        named = _named(http)
        sender = self._sender(http, named)
        try:
            raw = await self._read_body(http, visit, sender, named)
            request, body = await self._open(visit, lambda: read(named, raw), len(raw))
        finally:
            self._unverified.remove(sender, visit.size)
        return self._know(http, visit, request, body, strangers=strangers)

    async def _let_stranger_in(self, http: HttpRequest, visit: RequestContext) -> AdmittedRequest:
        self._approach(http, visit)
        visit.check = checks.SIGNATURE
        host = _host(http)
        self._stranger.check(host, http.headers)
        # The operator admits unsigned calls with the rights of a member.
        sender = Sender(SenderClaim.MEMBER, host, None)
        try:
            raw = await self._read_body(http, visit, sender, {})
        finally:
            self._unverified.remove(sender, visit.size)
        request, body = self._stranger.read(_json(raw), self._communities)
        visit.know(request)
        visit.check = checks.MEMBERSHIP
        community = self._communities.get(request.community)
        if community is None:
            raise CommunityError(Code.NOT_FOUND, "this node is not in that community")
        return AdmittedRequest(request, community, Level.MEMBER, False, body)

    def _approach(self, http: HttpRequest, visit: RequestContext) -> None:
        """Check what a request declares, before its body is read."""
        sent: list[tuple[bytes, bytes]] = http.scope["headers"]
        ids = [value for name, value in sent if name == _REQUEST_ID]
        if len(ids) == 1 and is_ulid(text := ids[0].decode("ascii", "replace")):
            visit.request_id = text
        visit.check, visit.unread = checks.SIZE, True
        if _declared(http) > self._settings.max_body:
            raise _too_long(self._settings.max_body)
        visit.check = checks.ADDRESS_RATE
        host = _host(http)
        if not is_loopback(host) and (wait := self._rates.address(host, self._clock.monotonic())):
            raise rate_limited("this address", wait)
        visit.check = checks.HEADERS
        size = sum(len(name) + len(value) for name, value in sent)
        if len(sent) > _MAX_HEADERS or size > _MAX_HEADER_BYTES:
            raise bad_request(
                f"a request has at most {_MAX_HEADERS} headers of {_MAX_HEADER_BYTES} bytes in all"
            )

    def _sender(self, http: HttpRequest, named: Named) -> Sender:
        host, caller = _host(http), named[wire.FROM]
        if caller == self._node_id:
            is_owner = is_from_here(host, http.headers)
            return Sender(SenderClaim.OWNER if is_owner else SenderClaim.STRANGER, host, None)
        try:
            self._check_claims(RequestContext(0.0), named)
        except CommunityError:
            return Sender(SenderClaim.STRANGER, host, None)
        return Sender(SenderClaim.MEMBER, host, caller)

    def _check_claims(self, visit: RequestContext, named: Named) -> None:
        """Check the unverified headers: member, fresh, for this node; they are checked again."""
        visit.check = checks.SIGNATURE
        wire.check_recipient(named.get(wire.TO), self._node_id)
        visit.check = checks.FRESHNESS
        wire.check_fresh(named[wire.TIMESTAMP], self._clock.now())
        visit.check = checks.MEMBERSHIP
        community = self._communities.get(named[wire.COMMUNITY])
        checks.check_membership(community, named[wire.FROM])

    async def _read_body(
        self, http: HttpRequest, visit: RequestContext, sender: Sender, named: Named
    ) -> bytes:
        most = self._settings.max_body
        if sender.claim is SenderClaim.STRANGER:
            most = min(most, self._settings.max_stranger_body)
            if _declared(http) > most:
                raise self._refused(visit, named, most)
        visit.check = checks.SIZE
        chunks: list[bytes] = []
        seconds = self._settings.body_seconds
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await http.receive()
                    if message["type"] == "http.disconnect":
                        raise sse.ClientGoneError
                    chunks.append(message.get("body", b""))
                    visit.size += len(chunks[-1])
                    is_room = self._unverified.add(sender, len(chunks[-1]))
                    if visit.size > most:
                        raise self._refused(visit, named, most)
                    if not is_room:
                        raise CommunityError(
                            Code.CAPACITY_EXCEEDED,
                            "too much is being sent to this node",
                            details={"retry_after_ms": 1000},
                        )
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise CommunityError(
                Code.TIMEOUT, f"the body did not arrive within {seconds:g} seconds"
            ) from None
        visit.unread = False
        visit.check = checks.HEADERS
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _refused(self, visit: RequestContext, named: Named, most: int) -> CommunityError:
        """The error for a body that is too long, in general or for such a sender."""
        if most < self._settings.max_body:
            try:
                self._check_claims(visit, named)
            except CommunityError as error:
                return error
        visit.check = checks.SIZE
        return _too_long(most)

    async def _open(
        self, visit: RequestContext, read: Callable[[], tuple[SignedRequest, Any]], size: int
    ) -> tuple[SignedRequest, Any]:
        def open_it() -> tuple[SignedRequest, Any]:
            request, body = read()
            visit.know(request)
            visit.check = checks.SIGNATURE
            wire.verify_request(request, self._node_id)
            return request, body

        return open_it() if size <= _LONG else await asyncio.to_thread(open_it)

    def _know(
        self,
        http: HttpRequest,
        visit: RequestContext,
        request: SignedRequest,
        body: Any,
        *,
        strangers: bool,
    ) -> AdmittedRequest:
        caller = request.caller
        community = self._communities.get(request.community)
        required = self._settings.require_to or (
            community is not None and community.requires_to(caller)
        )
        checks.check_names_recipient(request, required=required)
        visit.check = checks.FRESHNESS
        wire.check_fresh(request.timestamp, self._clock.now())
        visit.check = checks.MEMBERSHIP
        level = Level.UNKNOWN
        if not strangers:
            community, level = checks.check_membership(community, caller)
        elif community is not None:
            level = community.level_of(caller)
        own = caller == self._node_id and is_loopback(_host(http))
        return AdmittedRequest(request, community, level, own, body)


def rate_limited(who: str, wait: float) -> CommunityError:
    """The error for a caller above its rate."""
    return CommunityError(
        Code.RATE_LIMITED,
        f"{who} calls too often",
        details={"retry_after_ms": int(wait * 1000) + 1},
    )


def _host(http: HttpRequest) -> str:
    return http.client.host if http.client else ""


def _declared(http: HttpRequest) -> int:
    declared = http.headers.get("content-length", "")
    return int(declared[:20]) if declared.isascii() and declared.isdecimal() else 0


def _named(http: HttpRequest) -> Named:
    """The protocol's headers; raises if one is missing, repeated or malformed."""
    named = wire.find_headers(http.scope["headers"])
    for name in _EVERY:
        wire.required_header(named, name)
    return named


def _json(raw: bytes) -> Any:
    try:
        return canonical.decode(raw)
    except canonical.CanonicalError as error:
        raise bad_request(f"the body is not strict JSON: {error}") from None


def _too_long(most: int) -> CommunityError:
    return bad_request(f"a body is at most {most} bytes", mend="send large content as a file")

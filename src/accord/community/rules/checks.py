"""The checks of a call in their order, and the guard against replayed requests."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import wire
from accord.community.rules.capabilities import CapabilityDescriptor
from accord.community.rules.formats import Level
from accord.community.rules.wire import SignedRequest

SCHEMA_HASH: Final = "X-HearthNet-Schema-Hash"
"""A caller that wants the very same schemas, not only a fitting version, sends their hash."""


@dataclass(frozen=True, slots=True)
class CallCheck:
    """One check: its stable name for metrics and journal, its question, and its codes."""

    name: str
    asks: str
    codes: frozenset[Code]


def _call_check(name: str, asks: str, *codes: Code) -> CallCheck:
    return CallCheck(name, asks, frozenset(codes))


SIZE: Final = _call_check(
    "size",
    "Is the body short enough, does it come in time, and is there room for it?",
    Code.BAD_REQUEST,
    Code.TIMEOUT,
    Code.CAPACITY_EXCEEDED,
)
ADDRESS_RATE: Final = _call_check(
    "address_rate", "Is this address within its rate limit?", Code.RATE_LIMITED
)
HEADERS: Final = _call_check(
    "headers",
    "Is each header there once and well formed, and the body strict JSON?",
    Code.BAD_REQUEST,
    Code.INVALID_SIGNATURE,
)
SIGNATURE: Final = _call_check(
    "signature", "Did the caller sign just this, for this node?", Code.INVALID_SIGNATURE
)
FRESHNESS: Final = _call_check(
    "freshness", "Is the timestamp within 60 seconds of this node's clock?", Code.EXPIRED
)
MEMBERSHIP: Final = _call_check(
    "membership",
    "Is this node in the community, and the caller in it and not revoked?",
    Code.NOT_FOUND,
    Code.REVOKED,
    Code.UNAUTHORIZED,
)
REPLAY: Final = _call_check(
    "replay", "Is the request's id new?", Code.BAD_REQUEST, Code.CAPACITY_EXCEEDED
)
TRUST: Final = _call_check(
    "trust", "Is the caller trusted enough for this capability?", Code.UNAUTHORIZED
)
SCHEMA: Final = _call_check(
    "schema",
    "Do version and schemas agree, and does the body keep the schema?",
    Code.SCHEMA_MISMATCH,
    Code.BAD_REQUEST,
)
CALLER_RATE: Final = _call_check(
    "caller_rate", "Is this caller within its rate limit?", Code.RATE_LIMITED
)
CAPABILITY: Final = _call_check(
    "capability",
    "Is the capability offered here, and is there room for another call?",
    Code.NOT_FOUND,
    Code.CAPACITY_EXCEEDED,
)

CHECKS: Final = (
    SIZE,
    ADDRESS_RATE,
    HEADERS,
    SIGNATURE,
    FRESHNESS,
    MEMBERSHIP,
    REPLAY,
    TRUST,
    SCHEMA,
    CALLER_RATE,
    CAPABILITY,
)
"""Every check, in order. The first that refuses decides the answer."""


class CommunityFacts(Protocol):
    """What the bus must know of a community."""

    @property
    def community_id(self) -> str:
        """The full id."""
        ...

    def level_of(self, node_id: str) -> Level:
        """The trust level of a node; UNKNOWN if it is not a member."""
        ...

    def is_revoked(self, node_id: str) -> bool:
        """Whether the node was revoked."""
        ...

    def requires_to(self, node_id: str) -> bool:
        """Whether the node's logged manifest declared that its calls name their recipient."""
        ...


def check_names_recipient(request: SignedRequest, *, required: bool) -> None:
    """Raise `invalid_signature` if a call must name its recipient and does not."""
    if required and request.to is None:
        raise CommunityError(
            Code.INVALID_SIGNATURE,
            "the request names no recipient, and its caller has declared that it names one",
            where=wire.TO,
            mend="sign the request with `to`",
        )


def check_membership(community: CommunityFacts | None, caller: str) -> tuple[CommunityFacts, Level]:
    """Check that the caller is a member; raises `not_found`, `revoked` or `unauthorized`."""
    if community is None:
        raise CommunityError(
            Code.NOT_FOUND, "this node is not in that community", where=wire.COMMUNITY
        )
    if community.is_revoked(caller):
        raise CommunityError(Code.REVOKED, "the caller was revoked", where=wire.FROM)
    level = community.level_of(caller)
    if level is Level.UNKNOWN:
        raise CommunityError(
            Code.UNAUTHORIZED, "the caller is no member of the community", where=wire.FROM
        )
    return community, level


def check_trust(level: Level, descriptor: CapabilityDescriptor) -> None:
    """Raise `unauthorized` if the caller's trust level is too low."""
    if level < descriptor.trust:
        raise CommunityError(
            Code.UNAUTHORIZED,
            f"{descriptor.name} is for {descriptor.trust.text}s, and the caller is {level.text}",
        )


def check_offered(request: SignedRequest, offered: Sequence[CapabilityDescriptor]) -> None:
    """Raise `schema_mismatch` if only other versions are offered."""
    if not offered:
        return
    newest = max(offered, key=lambda each: each.version)
    raise CommunityError(
        Code.SCHEMA_MISMATCH,
        f"{request.capability} is not offered in a version that serves {request.version}",
        where=wire.VERSION,
        details={
            "alt_capabilities": sorted(each.key for each in offered),
            "schema_hash_expected": newest.schema_hash,
        },
    )


def check_schema(descriptor: CapabilityDescriptor, body: Any, schema_hash: str | None) -> None:
    """Check the caller's `schema_hash`, if it sent one, and the body.

    Raises `schema_mismatch`, or `bad_request` with what is wrong in the body.
    """
    if schema_hash is not None and schema_hash != descriptor.schema_hash:
        raise CommunityError(
            Code.SCHEMA_MISMATCH,
            f"the caller has other schemas for {descriptor.key}",
            where=SCHEMA_HASH,
            details={"schema_hash_expected": descriptor.schema_hash},
        )
    if descriptor.request.is_valid(body):
        return
    findings = descriptor.request.findings(body)
    raise CommunityError(
        Code.BAD_REQUEST,
        findings[0].message,
        where=findings[0].pointer or None,
        findings=findings,
    )


REPLAY_SECONDS: Final = 600.0
"""For how long a request's id is remembered."""

# Beyond this, and twice the freshness of a timestamp, a request is refused as too old anyway.
_NEEDED_SECONDS: Final = 130.0


class RequestStatus(Enum):
    """The state of a request."""

    UNDER_WAY = "under way"
    ANSWERED = "answered"
    OPEN = "open"


@dataclass(slots=True)
class RequestClaim:
    """A used request id.

    Attributes:
        number: Its place in the order of arrival.
        digest: BLAKE3 of what its caller signed, as text.
        seen_at: When it arrived.
        status: Whether an answer is stored; OPEN if there is none and none is coming.
        durable: Whether it is stored.
    """

    number: int
    caller: str
    request_id: str
    digest: str
    seen_at: float
    status: RequestStatus = RequestStatus.UNDER_WAY
    durable: bool = False


class ReplayGuard:
    """The requests of the last ten minutes.

    At most `most` are remembered. Beyond that, the oldest that could no longer be replayed are
    forgotten; if there are none, calls are refused.
    """

    def __init__(self, most: int = 1 << 18) -> None:
        self._most = most
        self._claims: OrderedDict[tuple[str, str], RequestClaim] = OrderedDict()
        self._next = 1

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def oldest(self) -> int:
        """The number of the oldest remembered request."""
        return next((claim.number for claim in self._claims.values()), self._next)

    def restore(self, claim: RequestClaim) -> None:
        """Load stored requests, oldest first."""
        self._claims[claim.caller, claim.request_id] = claim
        self._next = max(self._next, claim.number + 1)

    def claim(
        self, caller: str, request_id: str, digest: str, now: float, *, idempotent: bool
    ) -> tuple[RequestClaim, bool]:
        """Register a request id; returns the claim and whether it is new.

        Raises `bad_request` if the id was used before, `capacity_exceeded` if there is no room.
        """
        self._forget(now)
        key = (caller, request_id)
        known = self._claims.get(key)
        if known is not None:
            if idempotent and known.digest == digest:
                return known, False
            raise bad_request(
                "a request with this id came before",
                where="X-HearthNet-Request-Id",
                mend="give each request an id of its own",
            )
        if len(self._claims) >= self._most:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "more requests came than can be remembered",
                details={"retry_after_ms": 1000},
            )
        claim = RequestClaim(self._next, caller, request_id, digest, now)
        self._next += 1
        self._claims[key] = claim
        return claim, True

    def renew(self, claim: RequestClaim, now: float) -> None:
        """Reopen an idempotent request without an answer, to run it again."""
        claim.number, claim.seen_at, claim.durable = self._next, now, False
        claim.status = RequestStatus.UNDER_WAY
        self._next += 1
        self._claims.pop((claim.caller, claim.request_id), None)
        self._claims[claim.caller, claim.request_id] = claim

    def _forget(self, now: float) -> None:
        keep = _NEEDED_SECONDS if len(self._claims) >= self._most else REPLAY_SECONDS
        while self._claims:
            oldest = next(iter(self._claims.values()))
            if now - oldest.seen_at <= keep:
                return
            self._claims.popitem(last=False)

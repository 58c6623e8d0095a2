"""The checks of a call, in the order in which they are made, as data.

Pure. The table is what the documentation shows and what the tests go through; the functions are
the checks that need facts about the community or the capability. The rest need a request in hand
and are made where it is read (`door`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from accord.community.envelope import headers
from accord.community.envelope.calls import Request
from accord.community.envelope.names import Level
from accord.community.envelope.schemas import Descriptor
from accord.community.errors import Code, CommunityError

SCHEMA_HASH: Final = "X-HearthNet-Schema-Hash"
"""A caller that wants the very same schemas, not only a fitting version, sends their hash."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: Its stable name, which metrics and journal carry.
        asks: What it asks, as a sentence.
        codes: The codes that it refuses with.
    """

    name: str
    asks: str
    codes: frozenset[Code]


def _check(name: str, asks: str, *codes: Code) -> Check:
    return Check(name, asks, frozenset(codes))


SIZE: Final = _check(
    "size",
    "Is the body short enough, does it come in time, and is there room for it?",
    Code.BAD_REQUEST,
    Code.TIMEOUT,
    Code.CAPACITY_EXCEEDED,
)
ADDRESS_RATE: Final = _check(
    "address_rate", "Does this address send at a bearable rate?", Code.RATE_LIMITED
)
HEADERS: Final = _check(
    "headers",
    "Is each header there once and well formed, and the body strict JSON?",
    Code.BAD_REQUEST,
    Code.INVALID_SIGNATURE,
)
SIGNATURE: Final = _check(
    "signature", "Did the caller sign just this, for this node?", Code.INVALID_SIGNATURE
)
FRESHNESS: Final = _check(
    "freshness", "Is the timestamp within 60 seconds of this node's clock?", Code.EXPIRED
)
MEMBERSHIP: Final = _check(
    "membership",
    "Is this node in the community, and the caller in it and not revoked?",
    Code.NOT_FOUND,
    Code.REVOKED,
    Code.UNAUTHORIZED,
)
REPLAY: Final = _check(
    "replay", "Is the request's id new?", Code.BAD_REQUEST, Code.CAPACITY_EXCEEDED
)
TRUST: Final = _check(
    "trust", "Is the caller trusted enough for this capability?", Code.UNAUTHORIZED
)
SCHEMA: Final = _check(
    "schema",
    "Do version and schemas agree, and does the body keep the schema?",
    Code.SCHEMA_MISMATCH,
    Code.BAD_REQUEST,
)
CALLER_RATE: Final = _check(
    "caller_rate", "Does this caller call at a bearable rate?", Code.RATE_LIMITED
)
CAPABILITY: Final = _check(
    "capability",
    "Is the capability offered here, and is there room for a call more?",
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


class Commons(Protocol):
    """What the bus must know of a community."""

    @property
    def community_id(self) -> str:
        """Which community."""
        ...

    def level_of(self, node_id: str) -> Level:
        """How far the community trusts a node; UNKNOWN when it is no member."""
        ...

    def is_revoked(self, node_id: str) -> bool:
        """Whether the node was a member and is no more."""
        ...

    def requires_to(self, node_id: str) -> bool:
        """Whether the node's logged manifest declared that its calls name their recipient."""
        ...


def check_recipient(request: Request, *, required: bool) -> None:
    """Check that a call names its recipient where its caller has said that it does.

    Raises:
        CommunityError: `invalid_signature`.
    """
    if required and request.to is None:
        raise CommunityError(
            Code.INVALID_SIGNATURE,
            "the recipient was left out by a caller that names it",
            where=headers.TO,
            mend="sign the request with `to`",
        )


def check_membership(commons: Commons | None, caller: str) -> tuple[Commons, Level]:
    """Check that the caller belongs to a community of this node.

    Raises:
        CommunityError: `not_found`, `revoked` or `unauthorized`.
    """
    if commons is None:
        raise CommunityError(
            Code.NOT_FOUND, "this node is not in that community", where=headers.COMMUNITY
        )
    if commons.is_revoked(caller):
        raise CommunityError(Code.REVOKED, "the caller was revoked", where=headers.FROM)
    level = commons.level_of(caller)
    if level is Level.UNKNOWN:
        raise CommunityError(
            Code.UNAUTHORIZED, "the caller is no member of the community", where=headers.FROM
        )
    return commons, level


def check_trust(level: Level, descriptor: Descriptor) -> None:
    """Check that the caller is trusted enough.

    Raises:
        CommunityError: `unauthorized`.
    """
    if level < descriptor.trust:
        raise CommunityError(
            Code.UNAUTHORIZED,
            f"{descriptor.name} is for {descriptor.trust.text}s, and the caller is {level.text}",
        )


def check_offered(request: Request, offered: Sequence[Descriptor]) -> None:
    """Refuse a version that is not offered; a name that is not offered at all comes later.

    Raises:
        CommunityError: `schema_mismatch`, with what is offered.
    """
    if not offered:
        return
    newest = max(offered, key=lambda each: each.version)
    raise CommunityError(
        Code.SCHEMA_MISMATCH,
        f"{request.capability} is not offered in a version that serves {request.version}",
        where=headers.VERSION,
        details={
            "alt_capabilities": sorted(each.key for each in offered),
            "schema_hash_expected": newest.schema_hash,
        },
    )


def check_schema(descriptor: Descriptor, body: Any, schema_hash: str | None) -> None:
    """Check that both sides have the same schemas and that the body keeps them.

    Args:
        descriptor: The capability as it is offered.
        body: The body of the call.
        schema_hash: What the caller takes the schemas to be, where it says so.

    Raises:
        CommunityError: `schema_mismatch`, or `bad_request` with what is wrong in the body.
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

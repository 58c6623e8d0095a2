"""Which requests came before.

Pure: time is an argument and nothing is stored here; the ledger does that. A request that is heard
twice is refused, unless it is the same request, byte for byte, for a capability that declares
itself idempotent: that one gets its answer again.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

from accord.community.errors import Code, CommunityError

REPLAY_SECONDS: Final = 600.0
"""For how long a request's id is remembered."""

# Beyond this, and twice the freshness of a timestamp, a request is refused as too old anyway.
_NEEDED_SECONDS: Final = 130.0


class Standing(Enum):
    """What became of a request."""

    UNDER_WAY = "under way"
    ANSWERED = "answered"
    OPEN = "open"


@dataclass(slots=True)
class Claim:
    """A request's id, taken.

    Attributes:
        number: Its place in the order in which requests came.
        digest: BLAKE3 of what its caller signed, as text.
        seen_at: When it came.
        standing: Whether an answer is kept for it; OPEN when there is none and none is coming.
        durable: Whether the store knows it.
    """

    number: int
    caller: str
    request_id: str
    digest: str
    seen_at: float
    standing: Standing = Standing.UNDER_WAY
    durable: bool = False


class Replay:
    """The requests of the last ten minutes.

    Args:
        most: How many are remembered. When more come than that, the oldest that could not be
            replayed any more are forgotten; if there are none, calls are refused.
    """

    def __init__(self, most: int = 1 << 18) -> None:
        self._most = most
        self._claims: OrderedDict[tuple[str, str], Claim] = OrderedDict()
        self._next = 1

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def oldest(self) -> int:
        """The number of the oldest request that is still remembered."""
        return next((claim.number for claim in self._claims.values()), self._next)

    def restore(self, claim: Claim) -> None:
        """Remember what the store kept, oldest first."""
        self._claims[claim.caller, claim.request_id] = claim
        self._next = max(self._next, claim.number + 1)

    def claim(
        self, caller: str, request_id: str, digest: str, now: float, *, idempotent: bool
    ) -> tuple[Claim, bool]:
        """Take a request's id, and say whether the request is new.

        Raises:
            CommunityError: The id was used before (`bad_request`), or there is no room
                (`capacity_exceeded`).
        """
        self._forget(now)
        key = (caller, request_id)
        known = self._claims.get(key)
        if known is not None:
            if idempotent and known.digest == digest:
                return known, False
            raise CommunityError(
                Code.BAD_REQUEST,
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
        claim = Claim(self._next, caller, request_id, digest, now)
        self._next += 1
        self._claims[key] = claim
        return claim, True

    def renew(self, claim: Claim, now: float) -> None:
        """An idempotent request that has no answer is done again."""
        claim.number, claim.seen_at, claim.durable = self._next, now, False
        claim.standing = Standing.UNDER_WAY
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

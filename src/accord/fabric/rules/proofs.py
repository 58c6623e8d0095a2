"""Signed requests: headers, freshness, signature, reply inbox and replay window. Pure."""

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import is_proved, prove, rpc_message
from accord.fabric.rules.errors import UnauthorizedError, UnavailableError
from accord.kernel.signing import SigningKey

SESSION: Final = "session-key"
PROOF: Final = "proof"
IAT: Final = "iat"
REQUEST_ID: Final = "request-id"

FRESH_SECONDS: Final = 30
"""Seconds by which a request's time may differ from ours."""

# A request signed 30 s ahead of our clock stays fresh for twice as long.
_GENERATION: Final = 2 * FRESH_SECONDS + 1

_SESSION_FORM: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_IAT_FORM: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_ID_FORM: Final = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)


class RequestSignature(NamedTuple):
    """The signature headers of a request; `iat` is when it was signed, in seconds."""

    session: str
    request_id: str
    iat: int
    proof: str


def sign(
    key: SigningKey, session: str, subject: str, payload: bytes, iat: int, request_id: str
) -> dict[str, str]:
    """The signature headers of a request."""
    message = rpc_message(session, subject, payload, iat, request_id)
    return {SESSION: session, PROOF: prove(key, message), IAT: str(iat), REQUEST_ID: request_id}


def read(headers: Mapping[str, str] | None) -> RequestSignature:
    """The unverified signature headers; raises UnauthorizedError if missing or malformed."""
    given = headers or {}
    session, iat = given.get(SESSION, ""), given.get(IAT, "")
    request_id, proof = given.get(REQUEST_ID, ""), given.get(PROOF, "")
    for name, form, value in (
        (SESSION, _SESSION_FORM, session),
        (IAT, _IAT_FORM, iat),
        (REQUEST_ID, _ID_FORM, request_id),
    ):
        if form.fullmatch(value) is None:
            raise UnauthorizedError(f"the header {name} is missing or malformed")
    return RequestSignature(session, request_id, int(iat), proof)


def verify(signed: RequestSignature, subject: str, payload: bytes, now: float) -> None:
    """Raise UnauthorizedError unless the request is fresh and signed by its session."""
    if abs(now - signed.iat) > FRESH_SECONDS:
        raise UnauthorizedError(
            f"the request is not of the last {FRESH_SECONDS} seconds", mend="check both clocks"
        )
    message = rpc_message(signed.session, subject, payload, signed.iat, signed.request_id)
    if not is_proved(signed.session, message, signed.proof):
        raise UnauthorizedError("the proof is not that of the session for this request")


def is_own_inbox(session: str, reply: str) -> bool:
    """Whether a reply subject lies in the session's inbox."""
    return _SESSION_FORM.fullmatch(session) is not None and reply.startswith(
        f"{inbox_prefix(session)}."
    )


class ReplayWindow:
    """Recent requests, for as long as their signatures are fresh.

    Kept as two generations of hashes; the older one is dropped as a whole. A false alarm has a
    probability of 2^-40. Requests beyond `most` per generation are refused.
    """

    def __init__(self, most: int = 1 << 20) -> None:
        self._most = most
        self._since = -math.inf
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def claim(self, signed: RequestSignature, now: float) -> None:
        """Remember a verified request; UnauthorizedError if seen, UnavailableError if full."""
        age = now - self._since
        if age > _GENERATION:
            self._old = self._young if age <= 2 * _GENERATION else set()
            self._young, self._since = set(), now
        key = hash((signed.session, signed.request_id))
        if key in self._young or key in self._old:
            raise UnauthorizedError(
                "a request with this id came before", mend="sign each request anew"
            )
        if len(self._young) >= self._most:
            raise UnavailableError("more requests came than can be remembered")
        self._young.add(key)

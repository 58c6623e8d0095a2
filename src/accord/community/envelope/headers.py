"""The headers of signed requests and answers, read strictly: each once, each in its one form."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from accord.community.envelope import forms
from accord.community.envelope.names import Version, check_capability
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import parse_time
from accord.kernel.ulid import is_ulid

CAPABILITY: Final = "X-HearthNet-Capability"
VERSION: Final = "X-HearthNet-Capability-Version"
REQUEST_ID: Final = "X-HearthNet-Request-Id"
FROM: Final = "X-HearthNet-From"
TO: Final = "X-HearthNet-To"
COMMUNITY: Final = "X-HearthNet-Community"
TIMESTAMP: Final = "X-HearthNet-Timestamp"
SIGNATURE: Final = "X-HearthNet-Signature"

FRESH_SECONDS: Final = 60
"""How far a timestamp may lie from the reader's clock, either way."""

RawHeaders = Iterable[tuple[bytes, bytes]]
"""Headers as ASGI and httpx (`headers.raw`) give them, repetitions included."""

Named = dict[str, str]
"""The headers of ours that were found, by the names above."""


def find(raw: RawHeaders) -> Named:
    """Pick out our headers and check their forms; others are not looked at.

    Raises:
        CommunityError: One is repeated or malformed: `bad_request`, or `invalid_signature` where
            it is the signature.
    """
    found: Named = {}
    for raw_name, raw_value in raw:
        name = _NAMES.get(raw_name.lower())
        if name is None:
            continue
        if name in found:
            raise _bad("the header comes more than once", name)
        found[name] = raw_value.decode("ascii", "replace")
    check(found)
    return found


def check(named: Named) -> None:
    """Check the forms of headers; see `find`."""
    for name, value in named.items():
        is_right, form = _FORMS[name]
        if not is_right(value):
            code = Code.INVALID_SIGNATURE if name == SIGNATURE else Code.BAD_REQUEST
            raise CommunityError(code, f"expected {form}", where=name)


def required(named: Named, name: str) -> str:
    """The value of a header that must be there.

    Raises:
        CommunityError: It is missing: `bad_request`.
    """
    value = named.get(name)
    if value is None:
        raise _bad("the header is missing", name)
    return value


def signature(named: Named) -> bytes:
    """The 64 bytes of the signature, which must be there.

    Raises:
        CommunityError: It is missing: `bad_request`.
    """
    return forms.read_signature(required(named, SIGNATURE)) or b""


def present(named: Mapping[str, str | None]) -> Named:
    """Leave out the headers that have no value."""
    return {name: value for name, value in named.items() if value is not None}


def refused(named: Named, *names: str) -> None:
    """Check that headers are not there.

    Raises:
        CommunityError: One is: `bad_request`.
    """
    for name in names:
        if name in named:
            raise _bad("the header has no place here", name)


def check_fresh(timestamp: str, now: float) -> None:
    """Check that a request or an answer was made about now.

    Raises:
        CommunityError: `expired`.
    """
    if abs(now - parse_time(timestamp)) > FRESH_SECONDS:
        raise CommunityError(
            Code.EXPIRED,
            f"the timestamp lies more than {FRESH_SECONDS} seconds from this node's clock",
            where=TIMESTAMP,
            mend="set the clock, and sign again",
        )


def _is_capability(value: str) -> bool:
    return _passes(check_capability, value)


def _is_version(value: str) -> bool:
    return _passes(Version.parse, value)


def _passes(check: Callable[[str], object], value: str) -> bool:
    try:
        check(value)
    except CommunityError:
        return False
    return True


_FORMS: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    CAPABILITY: (_is_capability, "a capability such as llm.chat"),
    VERSION: (_is_version, "a version such as 1.0"),
    REQUEST_ID: (is_ulid, "a ULID"),
    FROM: (forms.is_id, "the full id of a node"),
    TO: (forms.is_id, "the full id of a node"),
    COMMUNITY: (forms.is_id, "the full id of a community"),
    TIMESTAMP: (forms.is_time, "a time such as 2026-05-26T08:14:22Z"),
    SIGNATURE: (forms.read_signature, "ed25519: and 86 characters of base64url"),
}

_NAMES: Final = {name.lower().encode(): name for name in _FORMS}


def _bad(what: str, where: str) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
